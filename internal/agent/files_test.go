package agent

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

func TestFilesStreamBothWays(t *testing.T) {
	sb := newSandbox(t)
	const size = 64<<20 + 1
	content := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{2}), size) }
	grew := memoryPeak(t, func() {
		if err := sb.WriteFile(testContext(t), "/sandbox/a/b/big", 0o640, content()); err != nil {
			t.Fatal(err)
		}
		r, info, err := sb.ReadFile(testContext(t), "/sandbox/a/b/big")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if info.Size != size || info.Mode != 0o640 || string(info.Path) != "/sandbox/a/b/big" || time.Since(info.ModTime) > time.Minute {
			t.Errorf("got %+v", info)
		}
		if !sameContent(t, r, content()) {
			t.Error("other bytes came back")
		}
	})
	if grew > 24<<20 {
		t.Errorf("memory grew by %d MiB", grew>>20)
	}
	if st, err := os.Stat(sb.file("a/b")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("parent is %v, %v", st.Mode(), err)
	}
}

func sameContent(t *testing.T, got, want io.Reader) bool {
	t.Helper()
	a, b := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(got, a)
		m, _ := io.ReadFull(want, b)
		if !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return true
		default:
			t.Fatal(err)
		}
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("f"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader("new"), iotest.ErrReader(errors.New("the source broke")))
	if err := sb.WriteFile(testContext(t), "/sandbox/f", 0o644, broken); err == nil || !strings.Contains(err.Error(), "the source broke") {
		t.Errorf("got %v", err)
	}
	await(t, "the agent to clean up", func() bool {
		names, err := os.ReadDir(sb.file(""))
		return err == nil && len(names) == 1
	})
	if data, _ := os.ReadFile(sb.file("f")); string(data) != "old" {
		t.Errorf("the old file became %q", data)
	}
}

func TestWriteFiles(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	changed := time.Unix(1e9, 0)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	files := []NewFile{
		{Path: "/sandbox/a/b/one", Mode: 0o755, Data: []byte("1"), ModTime: changed},
		{Path: "/sandbox/big", Mode: 0o644, Data: big},
		{Path: "/sandbox/a/empty", Mode: 0o600},
		{Path: "/sandbox/log/place", Mode: 0o600, Data: []byte("in"), InPlace: true, ModTime: changed},
	}
	if err := sb.WriteFiles(ctx, files...); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Join(sb.root, f.Path)
		data, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(data, f.Data) {
			t.Errorf("%s holds %d bytes, %v; want %d", f.Path, len(data), err, len(f.Data))
		}
		st, err := os.Stat(name)
		if err != nil || st.Mode().Perm() != f.Mode || !f.ModTime.IsZero() && !st.ModTime().Equal(f.ModTime) {
			t.Errorf("%s: %v, %v, %v", f.Path, st.Mode(), st.ModTime(), err)
		}
	}
	// Those before the one that fails are there, and it is named.
	err := sb.WriteFiles(ctx, NewFile{Path: "/sandbox/first", Mode: 0o644, Data: []byte("x")}, NewFile{Path: "/sandbox/a", Mode: 0o644})
	if refused := (*RemoteError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "/sandbox/a:") {
		t.Errorf("writing over a directory: %v", err)
	}
	if data, err := os.ReadFile(sb.file("first")); string(data) != "x" {
		t.Errorf("the one before: %q, %v", data, err)
	}
	if names, err := filepath.Glob(filepath.Join(sb.root, "sandbox", ".belljar-*")); err != nil || len(names) > 0 {
		t.Errorf("left behind: %q, %v", names, err)
	}
}

// A request that ends early, or lies about sizes, replaces no file.
func TestWriteFilesChecksTheRequest(t *testing.T) {
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("f"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`[{"path":"/sandbox/f","mode":420,"size":9}]short`,
		`[{"path":"/sandbox/f","mode":420,"size":-1}]`,
		`[{"path":"/sandbox/f","mode":2541,"size":1}]x`,
		`[{"path":"/sandbox/f"`,
	} {
		if err := sb.call(testContext(t), "PUT", "files", nil, strings.NewReader(body), maxHeader, nil); err == nil {
			t.Errorf("%s: accepted", body)
		}
		if data, _ := os.ReadFile(sb.file("f")); string(data) != "old" {
			t.Errorf("%s: the file became %q", body, data)
		}
	}
}

func TestWriteReplacesLink(t *testing.T) {
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("target"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target", sb.file("link")); err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(testContext(t), "/sandbox/link", 0o755, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(sb.file("link"))
	if err != nil || st.Mode() != 0o755 {
		t.Errorf("link is %v, %v", st.Mode(), err)
	}
	if data, _ := os.ReadFile(sb.file("target")); string(data) != "old" {
		t.Errorf("written through the link: %q", data)
	}
	var refused *RemoteError
	if err := sb.WriteFile(testContext(t), "/sandbox", 0o644, strings.NewReader("")); !errors.As(err, &refused) {
		t.Errorf("writing over a directory: %v", err)
	}
}

// oddities fills a directory with what is no regular file.
func oddities(t *testing.T, dir string) (names []string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	must(os.Symlink("/etc", filepath.Join(dir, "dirlink")))
	must(os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(err)
	t.Cleanup(func() { unix.Close(fd) })
	names = []string{"fifo", "link", "dirlink", "dangling"}
	if p := filepath.Join(dir, "socket"); len(p) < 100 {
		must(unix.Bind(fd, &unix.SockaddrUnix{Name: p}))
		names = append(names, "socket")
	}
	if unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) == nil {
		names = append(names, "device")
	}
	return names
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	sb := newSandbox(t)
	for _, name := range append(oddities(t, sb.file("")), "", ".") {
		var refused *RemoteError
		r, _, err := sb.ReadFile(testContext(t), "/sandbox/"+name)
		if !errors.As(err, &refused) {
			t.Errorf("reading %q: got %v, %v; want a refusal", name, r, err)
		}
		if _, _, err := sb.Preview(testContext(t), "/sandbox/"+name, 100, 1000); !errors.As(err, &refused) {
			t.Errorf("previewing %q: %v", name, err)
		}
		spec := bash("x", "true")
		spec.Stdin = "/sandbox/" + name
		if err := sb.StartJob(testContext(t), spec); !errors.As(err, &refused) {
			t.Errorf("stdin from %q: %v", name, err)
		}
	}
	for _, name := range []string{"/nowhere", "/sandbox/../../../../../etc/passwd", "/sandbox/fifo/x"} {
		if _, _, err := sb.ReadFile(testContext(t), name); !errors.Is(err, ErrNoFile) {
			t.Errorf("reading %q: %v; want ErrNoFile", name, err)
		}
	}
}

func TestShrinkingFileIsAnError(t *testing.T) {
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sb.file("f"), 1<<40); err != nil { // sparse
		t.Fatal(err)
	}
	r, info, err := sb.ReadFile(testContext(t), "/sandbox/f")
	if err != nil || info.Size != 1<<40 {
		t.Fatalf("got %+v, %v", info, err)
	}
	defer r.Close()
	if err := os.Truncate(sb.file("f"), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("a cut file was read without an error")
	}
}

func paths(l Listing) (paths []string) {
	for _, f := range l.Files {
		paths = append(paths, string(f.Path))
	}
	return paths
}

func TestList(t *testing.T) {
	sb := newSandbox(t)
	deep := strings.Repeat("d/", maxDepth-1)
	want := []string{
		"a0", "a b", "a.txt", "a/z", "b/c/d", "latin\xff", "new\nline", "\u202emark",
		strings.Repeat("n", 255), deep + "deep", "A", "\\..\\x",
	}
	for _, name := range want {
		p := sb.file("out/" + name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(name), 0o604); err != nil {
			t.Fatal(err)
		}
	}
	odd := len(oddities(t, sb.file("out/b")))
	if err := os.MkdirAll(sb.file("out/"+deep+"d/d/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	l, err := sb.List(testContext(t), "/sandbox/out", 100)
	if err != nil {
		t.Fatal(err)
	}
	if got := paths(l); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if l.More != 0 || l.Skipped != int64(odd)+1 { // the one that is too deep
		t.Errorf("more %d, skipped %d of %d", l.More, l.Skipped, odd)
	}
	for _, f := range l.Files {
		if f.Size != int64(len(f.Path)) || f.Mode != 0o604 || time.Since(f.ModTime) > time.Minute {
			t.Errorf("got %+v", f)
		}
	}
	for _, n := range []int{0, 1, 5} {
		l, err := sb.List(testContext(t), "/sandbox/out", n)
		if err != nil || !slices.Equal(paths(l), want[:n]) || l.More != int64(len(want)-n) {
			t.Errorf("max %d: %q, more %d, %v", n, paths(l), l.More, err)
		}
	}
}

// Several directories are listed in one request, each by its own bounds, and
// one that is not there keeps none of the others back.
func TestListTrees(t *testing.T) {
	sb := newSandbox(t)
	for _, name := range []string{"out/deep/a", "out/b", "main.py", "z", "in/c", "in/deep/d"} {
		if err := os.MkdirAll(filepath.Dir(sb.file(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(sb.file(name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	odd := len(oddities(t, sb.file("")))
	all, err := sb.ListTrees(testContext(t),
		Tree{Dir: "/sandbox/out", Max: 10},
		Tree{Dir: "/sandbox/none", Max: 10},
		Tree{Dir: "/sandbox", Max: 1, Flat: true},
		Tree{Dir: "/sandbox/link", Max: 10},
		Tree{Dir: "/sandbox", Max: 10, Flat: true},
		Tree{Dir: "/sandbox/in", Max: 1},
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{{"b", "deep/a"}, nil, {"main.py"}, nil, {"main.py", "z"}, {"c"}} {
		if got := paths(all[i]); !slices.Equal(got, want) {
			t.Errorf("tree %d: got %q, want %q", i, got, want)
		}
	}
	if all[2].More != 1 || all[5].More != 1 || all[4].More != 0 || all[4].Skipped != int64(odd) || all[0].Skipped != 0 {
		t.Errorf("got %+v, %d oddities", all, odd)
	}
	var refused *RemoteError
	if !errors.Is(all[1].Err, ErrNoFile) || !errors.As(all[3].Err, &refused) || all[0].Err != nil {
		t.Errorf("got %v, %v, %v", all[0].Err, all[1].Err, all[3].Err)
	}
}

// An agent that was made before there were several trees answers for the
// first of them.
func TestListTreesOfOlderAgent(t *testing.T) {
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("path") == "/sandbox/out" && r.FormValue("max") == "10" {
			io.WriteString(w, `{"file":{"path":"YQ==","size":1,"mode":420}}`+"\n"+`{"end":{"more":0,"skipped":2}}`+"\n")
		}
	})
	all, err := c.ListTrees(testContext(t), Tree{Dir: "/sandbox/out", Max: 10}, Tree{Dir: "/sandbox", Max: 5, Flat: true})
	if err != nil || len(all) != 2 || !slices.Equal(paths(all[0]), []string{"a"}) || all[0].Skipped != 2 || all[1].Err == nil {
		t.Errorf("got %+v, %v", all, err)
	}
	// And one of now answers a request of that time.
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := sb.do(testContext(t), "GET", "list", url.Values{"path": {"/sandbox"}, "max": {"5"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if old, err := readListings(res.Body, []Tree{{Max: 5}}); err != nil || !slices.Equal(paths(old[0]), []string{"f"}) {
		t.Errorf("got %+v, %v", old, err)
	}
}

func TestListRefusals(t *testing.T) {
	sb := newSandbox(t)
	if err := os.Symlink("/etc", sb.file("output")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sb.file("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"output", "file"} {
		var refused *RemoteError
		if l, err := sb.List(testContext(t), "/sandbox/"+name, 10); !errors.As(err, &refused) {
			t.Errorf("listing %s: %v, %v", name, l, err)
		}
	}
	if _, err := sb.List(testContext(t), "/sandbox/none", 10); !errors.Is(err, ErrNoFile) {
		t.Errorf("got %v, want ErrNoFile", err)
	}
}

func TestListSurvivesImpossibleTimes(t *testing.T) {
	sb := newSandbox(t)
	if err := os.WriteFile(sb.file("f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	far := unix.NsecToTimespec(0)
	far.Sec = 1 << 40 // the year 36812
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, sb.file("f"), []unix.Timespec{far, far}, 0); err != nil {
		t.Skip("this file system keeps no such times: ", err)
	}
	l, err := sb.List(testContext(t), "/sandbox", 10)
	if err != nil || len(l.Files) != 1 {
		t.Errorf("got %+v, %v", l, err)
	}
	if r, _, err := sb.ReadFile(testContext(t), "/sandbox/f"); err != nil {
		t.Error(err)
	} else {
		r.Close()
	}
}

// A directory that is swapped for a link must lead no listing out of the tree.
func TestListNeverLeavesTreeThroughSwappedLink(t *testing.T) {
	sb := newSandbox(t)
	for _, dir := range []string{"out/real", "outside"} {
		if err := os.MkdirAll(sb.file(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"out/real/mine", "outside/secret"} {
		if err := os.WriteFile(sb.file(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(sb.file("outside"), sb.file("link")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, sb.file("link"), unix.AT_FDCWD, sb.file("out/real"), unix.RENAME_EXCHANGE)
			}
		}
	})
	seen := map[string]int{}
	for range 1000 {
		l, err := sb.List(testContext(t), "/sandbox/out", 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths(l) {
			seen[p]++
		}
	}
	close(stop)
	swaps.Wait()
	if seen["real/secret"] > 0 || seen["real/mine"] == 0 {
		t.Errorf("saw %v", seen)
	}
}

func TestWriteIsAtomic(t *testing.T) {
	sb := newSandbox(t)
	pr, pw := io.Pipe()
	done := make(chan error)
	go func() { done <- sb.WriteFile(testContext(t), "/sandbox/f", 0o644, pr) }()
	io.WriteString(pw, "half") // returns when it was taken
	if _, err := os.Stat(sb.file("f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a file is there: %v", err)
	}
	pw.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(sb.file("f")); string(data) != "half" {
		t.Errorf("got %q", data)
	}
}
