package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readPart(t *testing.T, sb *sandbox, path string, offset, length int64) (string, FileStat) {
	t.Helper()
	r, st, err := sb.ReadRange(testContext(t), path, offset, length)
	must(t, err)
	defer r.Close()
	data, err := io.ReadAll(r)
	must(t, err)
	return string(data), st
}

func TestStat(t *testing.T) {
	sb := newSandbox(t)
	must(t, os.WriteFile(sb.file("f"), []byte("12345"), 0o640))
	must(t, os.Chtimes(sb.file("f"), time.Time{}, time.Unix(1e9, 5)))
	must(t, os.Symlink("f", sb.file("to-f")))
	must(t, os.Symlink("to-f", sb.file("to-to-f")))
	must(t, os.Symlink("nowhere", sb.file("dangling")))
	must(t, os.Symlink("loop", sb.file("loop")))
	must(t, os.Symlink(".", sb.file("to-dir")))
	must(t, unix.Mkfifo(sb.file("fifo"), 0o600))
	for name, want := range map[string]struct {
		kind   Kind
		size   int64
		target string
	}{
		"f": {KindFile, 5, ""}, "to-f": {KindFile, 5, "f"}, "to-to-f": {KindFile, 5, "to-f"},
		"dangling": {KindLink, 0, "nowhere"}, "loop": {KindLink, 0, "loop"},
		"": {KindDir, 0, ""}, "to-dir": {KindDir, 0, "."}, "to-dir/f": {KindFile, 5, ""},
		"fifo": {KindOther, 0, ""}, "../../sandbox/f": {KindFile, 5, ""},
	} {
		st, err := sb.Stat(testContext(t), "/sandbox/"+name)
		if err != nil || st.Kind != want.kind || st.Size != want.size || string(st.Target) != want.target {
			t.Errorf("%q: %+v, %v", name, st, err)
		}
		if want.kind == KindFile && (st.Mode != 0o640 || !st.ModTime.Equal(time.Unix(1e9, 5))) {
			t.Errorf("%q: mode %o, time %v", name, st.Mode, st.ModTime)
		}
	}
	for name, want := range map[string]string{"f": "", "to-to-f": "/sandbox/f", "to-dir/to-dir/f": "/sandbox/f", "dangling": ""} {
		if st, err := sb.Stat(testContext(t), "/sandbox/"+name); err != nil || string(st.Real) != want {
			t.Errorf("%s is really %q, %v", name, st.Real, err)
		}
	}
	for _, name := range []string{"none", "f/x", "none/x"} {
		if _, err := sb.Stat(testContext(t), "/sandbox/"+name); !errors.Is(err, ErrNoFile) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A version differs after each change, an identity when another file has the
// name, also one that got the inode of the old one.
func TestVersions(t *testing.T) {
	sb := newSandbox(t)
	stat := func() FileStat {
		st, err := sb.Stat(testContext(t), "/sandbox/f")
		must(t, err)
		return st
	}
	must(t, os.WriteFile(sb.file("f"), []byte("one"), 0o644))
	first := stat()
	if again := stat(); again.Version != first.Version || again.Identity != first.Identity {
		t.Errorf("without a change %v became %v", first, again)
	}
	await(t, "the kernel's clock to tick", func() bool { // ctime is coarse
		must(t, os.WriteFile(sb.file("f"), []byte("two"), 0o644))
		return stat().Version != first.Version
	})
	if second := stat(); second.Identity != first.Identity {
		t.Errorf("another content is another file: %v, %v", first, second)
	}
	must(t, os.Remove(sb.file("f")))
	must(t, os.WriteFile(sb.file("f"), []byte("two"), 0o644))
	if stat().Identity == first.Identity {
		t.Error("another file has the same identity")
	}
}

func TestReadRange(t *testing.T) {
	sb := newSandbox(t)
	must(t, os.WriteFile(sb.file("f"), []byte("0123456789"), 0o644))
	must(t, os.Symlink("f", sb.file("link")))
	for _, tt := range []struct {
		offset, length int64
		want           string
	}{
		{0, -1, "0123456789"}, {3, -1, "3456789"}, {3, 4, "3456"}, {8, 100, "89"}, {10, -1, ""}, {1 << 60, 1 << 62, ""}, {0, 0, ""},
	} {
		got, st := readPart(t, sb, "/sandbox/link", tt.offset, tt.length)
		if got != tt.want || st.Size != 10 || st.Kind != KindFile {
			t.Errorf("%d+%d: %q of %+v", tt.offset, tt.length, got, st)
		}
	}
	// Files of /proc say to be empty, and are not. The link leads there,
	// since the sandbox of a test has no /proc.
	must(t, os.Symlink("/proc/self/status", sb.file("status")))
	if got, st := readPart(t, sb, "/sandbox/status", 0, -1); !strings.HasPrefix(got, "Name:\t") || st.Size != int64(len(got)) {
		t.Errorf("/proc: %d bytes, %+v", len(got), st)
	}
	must(t, os.Mkdir(sb.file("dir"), 0o755))
	must(t, unix.Mkfifo(sb.file("fifo"), 0o644))
	must(t, os.Symlink("/dev/zero", sb.file("zero")))
	for name, want := range map[string]error{"dir": ErrIsDir, "none": ErrNoFile, "f/x": ErrNoFile, "fifo": nil, "zero": nil} {
		_, _, err := sb.ReadRange(testContext(t), "/sandbox/"+name, 0, -1)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// A file that shrinks while it is read ends in an error, and memory stays
// small whatever the size.
func TestReadRangeOfChangingFile(t *testing.T) {
	sb := newSandbox(t)
	must(t, os.WriteFile(sb.file("f"), nil, 0o644))
	const size = 1 << 30
	must(t, os.Truncate(sb.file("f"), size))
	grew := memoryPeak(t, func() {
		r, _, err := sb.ReadRange(testContext(t), "/sandbox/f", 0, -1)
		must(t, err)
		defer r.Close()
		if _, err := io.CopyN(io.Discard, r, 64<<20); err != nil {
			t.Fatal(err)
		}
		must(t, os.Truncate(sb.file("f"), 65<<20))
		if n, err := io.Copy(io.Discard, r); err == nil {
			t.Errorf("%d more bytes came and then a clean end", n)
		}
	})
	if grew > 24<<20 {
		t.Errorf("memory grew by %d MiB", grew>>20)
	}
}

func TestPutFile(t *testing.T) {
	sb := newSandbox(t)
	put := func(p Put, text string) (FileStat, error) {
		p.Path = "/sandbox/" + p.Path
		return sb.PutFile(testContext(t), p, strings.NewReader(text))
	}
	want := func(name, text string, mode fs.FileMode) {
		t.Helper()
		data, err := os.ReadFile(sb.file(name))
		st, _ := os.Lstat(sb.file(name))
		if err != nil || string(data) != text || st.Mode() != mode {
			t.Errorf("%s: %q, mode %v, %v; want %q, %v", name, data, st.Mode(), err, text, mode)
		}
	}
	st, err := put(Put{Path: "a/b/new"}, "new")
	if err != nil || st.Size != 3 || st.Kind != KindFile || st.Mode != 0o644 {
		t.Errorf("a new file: %+v, %v", st, err)
	}
	want("a/b/new", "new", 0o644)

	// The mode and the owner of what is replaced stay, unless a mode is asked.
	must(t, os.WriteFile(sb.file("tool"), []byte("old"), 0o600))
	must(t, os.Chown(sb.file("tool"), 1234, 2345))
	must(t, os.Chmod(sb.file("tool"), fs.ModeSetuid|0o751))
	if _, err := put(Put{Path: "tool"}, "newer"); err != nil {
		t.Error(err)
	}
	want("tool", "newer", fs.ModeSetuid|0o751)
	info, err := os.Stat(sb.file("tool"))
	must(t, err)
	if sys := info.Sys().(*syscall.Stat_t); sys.Uid != 1234 || sys.Gid != 2345 {
		t.Errorf("the owner became %d:%d", sys.Uid, sys.Gid)
	}
	mode := fs.FileMode(0o600)
	if _, err := put(Put{Path: "tool", Mode: &mode}, "x"); err != nil {
		t.Error(err)
	}
	want("tool", "x", 0o600)

	// Links lead to where the file is written, and stay.
	must(t, os.Symlink("../a/b/new", sb.file("a/link")))
	must(t, os.Rename(sb.file("a/link"), sb.file("a/b/link")))
	must(t, os.Remove(sb.file("a/b/link")))
	must(t, os.Symlink("b/new", sb.file("a/link")))
	must(t, os.Symlink("a/link", sb.file("link")))
	must(t, os.Symlink("made/here", sb.file("dangling")))
	for link, to := range map[string]string{"link": "a/b/new", "dangling": "made/here"} {
		if _, err := put(Put{Path: link}, "by "+link); err != nil {
			t.Error(err)
		}
		want(to, "by "+link, 0o644)
		if st, err := os.Lstat(sb.file(link)); err != nil || st.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s: %v, %v", link, st, err)
		}
	}
}

func TestPutRefuses(t *testing.T) {
	sb := newSandbox(t)
	must(t, os.Mkdir(sb.file("dir"), 0o755))
	must(t, os.WriteFile(sb.file("f"), []byte("old"), 0o644))
	must(t, unix.Mkfifo(sb.file("fifo"), 0o644))
	must(t, os.Symlink("loop", sb.file("loop")))
	for name, want := range map[string]error{"dir": ErrIsDir, "": ErrIsDir, "f/x": ErrNotDir, "f/x/y": ErrNotDir, "fifo": nil, "loop": nil} {
		_, err := sb.PutFile(testContext(t), Put{Path: "/sandbox/" + name}, strings.NewReader("x"))
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	broken := io.MultiReader(strings.NewReader("new"), iotest.ErrReader(errors.New("the source broke")))
	if _, err := sb.PutFile(testContext(t), Put{Path: "/sandbox/x/y/z"}, broken); err == nil {
		t.Error("half a file was taken")
	}
	await(t, "the agent to clean up", func() bool {
		left, err := filepath.Glob(sb.file("*"))
		hidden, _ := filepath.Glob(sb.file(".*"))
		return err == nil && len(left) == 4 && len(hidden) == 0
	})
	if data, _ := os.ReadFile(sb.file("f")); string(data) != "old" {
		t.Errorf("the file became %q", data)
	}
}

// Of many who replace the same version, one does.
func TestPutVersion(t *testing.T) {
	sb := newSandbox(t)
	st, err := sb.PutFile(testContext(t), Put{Path: "/sandbox/f"}, strings.NewReader("first"))
	must(t, err)
	var wg sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		wg.Go(func() {
			_, results[i] = sb.PutFile(testContext(t), Put{Path: "/sandbox/f", Version: st.Version}, strings.NewReader(fmt.Sprint(i)))
		})
	}
	wg.Wait()
	done := -1
	for i, err := range results {
		switch {
		case err == nil && done >= 0:
			t.Errorf("%d and %d both replaced the version", done, i)
		case err == nil:
			done = i
		case !errors.Is(err, ErrChanged):
			t.Error(err)
		}
	}
	if data, _ := os.ReadFile(sb.file("f")); string(data) != fmt.Sprint(done) {
		t.Errorf("the file is %q, written by %d", data, done)
	}
	if _, err := sb.PutFile(testContext(t), Put{Path: "/sandbox/none", Version: st.Version}, strings.NewReader("x")); !errors.Is(err, ErrChanged) {
		t.Errorf("a version of nothing: %v", err)
	}
}

// What an agent announces for a range is what comes, or an error.
func TestReadRangeOfHostileAgent(t *testing.T) {
	const regular = `{"kind":"file","size":100,"mode":420,"identity":"1","version":"1"}`
	for _, tt := range []struct {
		header         string
		announce, sent int
		fine           bool
	}{
		{regular, 10, 10, true}, {regular, 10, 9, false}, {regular, 9, 9, false}, {regular, 11, 11, false},
		{strings.Replace(regular, "file", "dir", 1), 10, 10, false}, {strings.Replace(regular, "100", "-1", 1), 10, 10, false},
		{strings.Replace(regular, "100", "94", 1), 10, 10, false}, {strings.Replace(regular, "100", "95", 1), 10, 10, true},
	} {
		c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(fileHeader, tt.header)
			w.Header().Set("Content-Length", fmt.Sprint(tt.announce))
			io.WriteString(w, strings.Repeat("x", tt.sent))
		})
		n := int64(0)
		r, _, err := c.ReadRange(testContext(t), "/f", 85, 10)
		if err == nil {
			n, err = io.Copy(io.Discard, r)
			r.Close()
		}
		if (err == nil) != tt.fine || n > 10 {
			t.Errorf("%+v: %d bytes, %v", tt, n, err)
		}
	}
}
