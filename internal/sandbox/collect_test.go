package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"belljar/internal/artifact"

	"github.com/google/go-cmp/cmp"
)

// Fault 20, and the order.
func TestTree(t *testing.T) {
	b := newBench(t)
	res := b.must(t, bash(`cd output; mkdir -p z/y/x empty; echo 1 >z/y/x/deep; echo 2 >b; echo 3 >a; echo 4 >z/w; : >none; printf 'bad\377name' | xargs -0 touch`))
	want := []string{"a", "b", "bad\uFFFDname", "none", "z/w", "z/y/x/deep"}
	if diff := cmp.Diff(want, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if f, _ := b.file(t, res, "none"); f.Text == nil || *f.Text != "" || f.Bytes != 0 {
		t.Errorf("an empty file: %+v", f)
	}
	if len(res.Notes) != 0 {
		t.Errorf("notes: %q", res.Notes)
	}
}

// Fault 17: what is not a file below the directory stays inside.
func TestSymlinks(t *testing.T) {
	b := newBench(t)
	res := b.must(t, bash("cd output; ln -s /etc/passwd leak; ln -s / root; mkfifo pipe; ln -s nowhere dangling; echo ok >fine"))
	if diff := cmp.Diff([]string{"fine"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "4 entries that are neither files nor directories")

	res = b.must(t, bash("rmdir output; ln -s /etc output"))
	if len(res.OutputFiles) != 0 {
		t.Errorf("the directory is a link: %q", names(res))
	}
	wantNote(t, res, "output files are lost")
	if res = b.must(t, bash("rmdir output")); len(res.OutputFiles) != 0 || len(res.Notes) != 0 {
		t.Errorf("no directory: %+v", res)
	}
}

// Faults 10 and 11: endless output is cut, and the log is bounded.
func TestEndlessOutput(t *testing.T) {
	b := newBench(t, func(o *Options) { o.LogBytes = 1 << 20 })
	res := b.must(t, bash("head -c 30000000 /dev/zero | tr '\\0' x; echo END"))
	if !strings.HasPrefix(res.Stdout, "xxxx") || !strings.HasSuffix(res.Stdout, "xxxxEND\n") || len(res.Stdout) > 64<<10+50 {
		t.Errorf("%d bytes of stdout: %.20q ... %q", len(res.Stdout), res.Stdout, res.Stdout[max(0, len(res.Stdout)-20):])
	}
	if marker := fmt.Sprintf("\n[... %d bytes dropped ...]\n", 30000004-64<<10); !strings.Contains(res.Stdout, marker) {
		t.Errorf("no %q in stdout", marker)
	}
	f, data := b.file(t, res, "stdout.log")
	if f.Bytes != 1<<20 || !bytes.Equal(data, bytes.Repeat([]byte("x"), 1<<20)) {
		t.Errorf("log: %+v", f)
	}
	wantNote(t, res, "stdout holds 30000004 bytes", "first 1048576 bytes are in stdout.log")
}

// Fault 12: text is valid, the log is exact.
func TestBinaryOutput(t *testing.T) {
	b := newBench(t)
	res := b.must(t, bash(`printf 'a\377b'; printf 'h\303\251' >&2; echo mine >output/stdout.log`))
	if res.Stdout != "a\uFFFDb" || res.Stderr != "hé" {
		t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
	}
	// The script's own file of that name keeps it.
	if diff := cmp.Diff([]string{"stdout-2.log", "stdout.log"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if _, data := b.file(t, res, "stdout-2.log"); string(data) != "a\xffb" {
		t.Errorf("log: %q", data)
	}
	if _, data := b.file(t, res, "stdout.log"); string(data) != "mine\n" {
		t.Errorf("the script's file: %q", data)
	}
	wantNote(t, res, "stdout is not all UTF-8", "all of it is in stdout-2.log")
}

func TestFileLimits(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.MaxFiles, o.MaxFileBytes, o.MaxRunBytes, o.InlineBytes = 4, 10000, 15000, 100
	})
	res := b.must(t, bash(`cd output; for f in a b c d e f; do head -c 6000 /dev/zero >$f; done`))
	if diff := cmp.Diff([]string{"a", "b"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "the files of a run may hold 15000 bytes together", ": c, d")
	wantNote(t, res, "2 more files, since a run may give back 4 at most")

	res = b.must(t, bash(`cd output; head -c 10001 /dev/zero >big; truncate -s 1T sparse; head -c 10001 /dev/zero >$'two\nlines'; echo 1 >small`))
	if diff := cmp.Diff([]string{"small"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "a file may hold 10000 bytes at most", ": big, sparse, \"two\\nlines\"")
}

// Sparse files cost a script nothing, so they must cost nothing here either:
// each would be read up to the limit, and the rest never be reached.
func TestSparseFiles(t *testing.T) {
	store := new(stagedNames)
	b := newBench(t, func(o *Options) {
		o.InlineBytes = 1
		store.Store, o.Store = o.Store, store
	})
	res := b.must(t, bash(`cd output; for i in 1 2 3; do truncate -s 1T a$i; done; echo mine >b`))
	if diff := cmp.Diff([]string{"b"}, store.names); diff != "" {
		t.Errorf("files read (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "a file may hold 268435456 bytes at most", ": a1, a2, a3")
}

// stagedNames is a store that remembers what it was asked to keep.
type stagedNames struct {
	Store
	names []string
}

func (s *stagedNames) Stage(ctx context.Context, f artifact.File, r io.Reader) (artifact.Artifact, error) {
	s.names = append(s.names, f.Path)
	return s.Store.Stage(ctx, f, r)
}

// Text comes as text up to a bound, for one file and for all together.
func TestInline(t *testing.T) {
	b := newBench(t, func(o *Options) { o.InlineBytes = 1000 })
	res := b.must(t, bash(`cd output; printf '%01000d' 0 >at; printf '%01001d' 0 >above; printf 'a\0b' >nul; printf '\377' >invalid
for i in $(seq 10 40); do printf '%01000d' 0 >many$i; done`))
	inline := 0
	for _, f := range res.OutputFiles {
		if (f.Text == nil) == (f.URL == "") {
			t.Errorf("%s has both or neither of text and link", f.Name)
		}
		if f.Text != nil {
			inline++
		} else if f.ExpiresIn != 3600 {
			t.Errorf("%s expires in %d s", f.Name, f.ExpiresIn)
		}
	}
	if inline != inlineFiles || len(res.OutputFiles) != 35 {
		t.Errorf("%d of %d files are text", inline, len(res.OutputFiles))
	}
	for _, name := range []string{"above", "nul", "invalid"} {
		if f, _ := b.file(t, res, name); f.Text != nil {
			t.Errorf("%s came as text", name)
		}
	}
	if f, _ := b.file(t, res, "at"); f.Text == nil {
		t.Error("a file at the bound came as a link")
	}
}

// Fault 15: a name is no identity; two runs' files stay apart.
func TestSameName(t *testing.T) {
	b := newBench(t, func(o *Options) { o.InlineBytes = 1 })
	one := b.must(t, bash("echo one >output/f"))
	two := b.must(t, bash("echo two >output/f"))
	f1, data1 := b.file(t, one, "f")
	f2, data2 := b.file(t, two, "f")
	if f1.URL == f2.URL || string(data1) != "one\n" || string(data2) != "two\n" {
		t.Errorf("%+v %q, %+v %q", f1, data1, f2, data2)
	}
}

// faultyStore is a store that fails for one name.
type faultyStore struct {
	Store
	name string
	err  error
}

func (s *faultyStore) Stage(ctx context.Context, f artifact.File, r io.Reader) (artifact.Artifact, error) {
	if f.Path == s.name {
		return artifact.Artifact{}, s.err
	}
	return s.Store.Stage(ctx, f, r)
}

func TestStoreFailures(t *testing.T) {
	for want, err := range map[string]error{
		"the server's store of output files is full": fmt.Errorf("staging: %w", artifact.ErrFull),
		"the server failed to store them":            errors.New("disk on fire at /srv/secret"),
	} {
		b := newBench(t, func(o *Options) {
			o.InlineBytes = 1
			o.Store = &faultyStore{Store: o.Store, name: "b", err: err}
		})
		res := b.must(t, bash("cd output; echo 1 >a; echo 2 >b; echo 3 >c"))
		if diff := cmp.Diff([]string{"a", "c"}, names(res)); diff != "" || !res.Success {
			t.Errorf("%v: success %v, names (-want +got):\n%s", err, res.Success, diff)
		}
		wantNote(t, res, want, ": b")
		if strings.Contains(strings.Join(res.Notes, ""), "secret") {
			t.Errorf("notes tell too much: %q", res.Notes)
		}
	}
}
