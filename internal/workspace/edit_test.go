package workspace

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (p *place) edit(t *testing.T, path, old, new string, all bool) (*Edited, error) {
	t.Helper()
	return p.Edit(testContext(t), EditRequest{FileRef: ref(path), Old: old, New: new, All: all})
}

func TestWrite(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	mode := fs.FileMode(0o755)
	w, err := p.Write(testContext(t), WriteRequest{FileRef: ref("dir/run.sh"), Data: []byte("#!/bin/sh\n"), Mode: &mode})
	must(t, err)
	if diff := cmp.Diff(&Written{Path: "/sandbox/dir/run.sh", Bytes: 10, Mode: "0755", Created: true}, w); diff != "" {
		t.Error(diff)
	}
	w, err = p.Write(testContext(t), WriteRequest{FileRef: ref("dir/run.sh"), Data: []byte("\x00\xff")})
	must(t, err)
	if diff := cmp.Diff(&Written{Path: "/sandbox/dir/run.sh", Bytes: 2, Mode: "0755"}, w); diff != "" {
		t.Error(diff)
	}
	p.has(t, "dir/run.sh", "\x00\xff")
	for path, part := range map[string]string{"dir": "is a directory", "new/": "names a directory", "dir/run.sh/x": "is a file and not a directory", "": "path: want"} {
		_, err := p.Write(testContext(t), WriteRequest{FileRef: ref(path)})
		wantRefusal(t, err, part)
	}
}

func TestEdit(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	p.put(t, "a.py", "def f():\n    return 1\n\ndef g():\n    return 1\n")
	must(t, os.Chmod(p.file("a.py"), 0o750))
	e, err := p.edit(t, "a.py", "def g():\n    return 1", "def g():\n    x = 2\n    return x", false)
	must(t, err)
	want := &Edited{Path: "/sandbox/a.py", Replaced: 1, Lines: []int{4}, Bytes: 55,
		Snippet: "     1\tdef f():\n     2\t    return 1\n     3\t\n     4\tdef g():\n     5\t    x = 2\n     6\t    return x\n     7\t\n"}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	p.has(t, "a.py", "def f():\n    return 1\n\ndef g():\n    x = 2\n    return x\n")
	if st, _ := os.Stat(p.file("a.py")); st.Mode() != 0o750 {
		t.Errorf("mode %v", st.Mode())
	}
	e, err = p.edit(t, "a.py", "return", "yield 0;\n    return", true)
	must(t, err)
	if e.Replaced != 2 || fmt.Sprint(e.Lines) != "[2 7]" {
		t.Errorf("%+v", e)
	}
	p.has(t, "a.py", "def f():\n    yield 0;\n    return 1\n\ndef g():\n    x = 2\n    yield 0;\n    return x\n")

	// A file of Windows keeps its line ends, a mixed one what is not touched.
	p.put(t, "win.txt", "one\r\ntwo\r\nthree\r\n")
	_, err = p.edit(t, "win.txt", "one\ntwo\n", "1\n2\n", false)
	must(t, err)
	p.has(t, "win.txt", "1\r\n2\r\nthree\r\n")
	p.put(t, "mixed", "one\r\ntwo\nthree\xff\r\n")
	_, err = p.edit(t, "mixed", "two\n", "2\n", false)
	must(t, err)
	p.has(t, "mixed", "one\r\n2\nthree\xff\r\n")
	_, err = p.edit(t, "mixed", "2\n", "", false)
	must(t, err)
	p.has(t, "mixed", "one\r\nthree\xff\r\n")
}

func TestEditRefuses(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	p.put(t, "a.go", "package a\n\nfunc add(x, y int) int {\n\treturn x + y\n}\n\nfunc sub(x, y int) int {\n\treturn x - y\n}\n")
	for _, tt := range []struct {
		path, old, new string
		parts          []string
	}{
		{"a.go", "(x, y int) int", "()", []string{"at 2 places", "lines 3, 7", "set all"}},
		{"a.go", "func add(x, y int) int {\n    return x + y", "q", []string{"with other spaces it does, at lines 3 to 4", "func add(x, y int) int {\n\treturn x + y"}},
		{"a.go", "func add(x, y int64) int64 {", "q", []string{"the nearest to its first line is line 3", "func add(x, y int) int {"}},
		{"a.go", "zzz", "q", []string{"nor anything like it", "read_file"}},
		{"a.go", "", "q", []string{"write_file"}},
		{"a.go", "q", "q", []string{"the same as old"}},
		{"none", "a", "b", []string{"does not exist"}},
		{".", "a", "b", []string{"is a directory"}},
	} {
		_, err := p.edit(t, tt.path, tt.old, tt.new, false)
		wantRefusal(t, err, tt.parts...)
	}
	p.put(t, "big", "")
	must(t, os.Truncate(p.file("big"), maxEdit+1))
	_, err := p.edit(t, "big", "a", "b", false)
	wantRefusal(t, err, "use sed by execute")
	p.put(t, "grow", strings.Repeat("a", 1<<20))
	_, err = p.edit(t, "grow", "a", strings.Repeat("b", 100), true)
	wantRefusal(t, err, "would grow")
}

// Edits at the same time, of which each changes the file, are all done.
func TestEditsAtTheSameTime(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	const n = 6
	var b, want strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "<%d>\n", i)
		fmt.Fprintf(&want, "done %d\n", i)
	}
	p.put(t, "f", b.String())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := p.edit(t, "f", fmt.Sprintf("<%d>", i), fmt.Sprintf("done %d", i), false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.has(t, "f", want.String())
}

func FuzzEdit(f *testing.F) {
	f.Add("a\nb a\n", "a", "xx\n")
	f.Add("\r\n\r\n", "\n", "")
	f.Fuzz(func(t *testing.T, data, old, replacement string) {
		if old == "" {
			return
		}
		at := positions([]byte(data), []byte(old))
		if len(at) != strings.Count(data, old) {
			t.Errorf("%d places of %d", len(at), strings.Count(data, old))
		}
		for i, line := range linesOf([]byte(data), at) {
			if want := 1 + strings.Count(data[:at[i]], "\n"); line != want {
				t.Errorf("place %d is on line %d, not %d", i, line, want)
			}
		}
		if err := notFound("/f", data, old); len(err.Error()) > 5000 {
			t.Errorf("a hint of %d bytes", len(err.Error()))
		}
	})
}
