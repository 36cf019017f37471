package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// outside is a store in a directory next to files that no archive may touch,
// and a check that none did.
func outside(t testing.TB, o Options) (*Store, func(testing.TB)) {
	t.Helper()
	top := t.TempDir()
	for _, name := range []string{"victim", "foo", "passwd"} {
		if err := os.WriteFile(filepath.Join(top, name), []byte("precious"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, filepath.Join(top, "store"), o)
	return s, func(t testing.TB) {
		t.Helper()
		entries, err := os.ReadDir(top)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != 4 {
			t.Errorf("files outside of the root: %v", entries)
		}
		for _, name := range []string{"victim", "foo", "passwd"} {
			if got := readFile(t, filepath.Join(top, name)); got != "precious" {
				t.Errorf("%s was written to: %q", name, got)
			}
			if fi, err := os.Stat(filepath.Join(top, name)); err != nil || fi.Mode() != 0o644 {
				t.Errorf("%s has changed: %v, %v", name, fi, err)
			}
		}
	}
}

// unpacked applies layers and returns the root.
func unpacked(t testing.TB, s *Store, layers ...[]byte) (string, error) {
	t.Helper()
	root, err := s.newRoot("unpack-")
	if err != nil {
		t.Fatal(err)
	}
	b := s.budget()
	for _, l := range layers {
		if err := applyTar(t.Context(), root, bytes.NewReader(l), b); err != nil {
			return root, err
		}
	}
	return root, nil
}

func TestHostileArchives(t *testing.T) {
	needRoot(t)
	s, check := outside(t, Options{})
	top := filepath.Dir(s.dir)
	setuid := file("bin/su", "x")
	setuid.h.Mode = 0o4755
	for _, tt := range []struct {
		name    string
		entries []entry
		want    string // a path that must be in the root, "" for an error or nothing
	}{
		{"parent", []entry{file("../../victim", "bad")}, "victim"},
		{"parents in the middle", []entry{file("a/../../../victim", "bad")}, "victim"},
		{"absolute", []entry{file(top+"/victim", "bad")}, top + "/victim"},
		{"file through an absolute link", []entry{link("a", top), file("a/passwd", "bad")}, top + "/passwd"},
		{"file through a relative link", []entry{link("a", "../../.."), file("a/passwd", "bad")}, "passwd"},
		{"file over a link", []entry{link("a", top+"/victim"), file("a", "bad")}, "a"},
		{"directory over a link", []entry{link("a", top), dir("a"), file("a/victim", "bad")}, "a/victim"},
		{"link chain", []entry{link("a", "b/x"), link("b", top), dir("a/y"), file("a/victim", "bad")}, top + "/x/victim"},
		{"link loop", []entry{link("a", "b"), link("b", "a"), file("a/victim", "bad")}, ""},
		{"hard link out", []entry{hardlink("a", "../../../victim"), file("a", "bad")}, ""},
		{"hard link out, absolute", []entry{hardlink("a", top+"/victim"), file("a", "bad")}, ""},
		{"hard link through a link", []entry{link("l", top), hardlink("a", "l/victim"), file("a", "bad")}, ""},
		{"hard link to a link, then mode", []entry{link("l", top+"/victim"), hardlink("a", "l")}, "a"},
		{"hard link to the root", []entry{hardlink("a", "..")}, ""},
		{"whiteout through a link", []entry{link("x", top), file("x/.wh.foo", "")}, ""},
		{"whiteout through a link to /", []entry{link("x", "/"), file("x"+top+"/.wh.foo", "")}, ""},
		{"whiteout of the parent", []entry{dir("d"), file("d/.wh...", "")}, ""},
		{"whiteout of itself", []entry{dir("d"), file("d/.wh.", "")}, ""},
		{"opaque through a link", []entry{link("x", top), file("x/.wh..wh..opq", "")}, ""},
		{"directory mode through a link", []entry{dir("d"), link("d/l", top+"/victim"), {h: tar.Header{Name: "d/l", Typeflag: tar.TypeDir, Mode: 0o777}}}, "d/l"},
		{"dev and proc as links", []entry{link("dev", top), link("proc", top), file("dev/victim", "bad"), file("proc/foo", "bad")}, top + "/victim"},
		{"newline in a name", []entry{file("a\nb", "x")}, "a\nb"},
		{"control characters", []entry{file("a\x1b[2J\xff", "x")}, "a\x1b[2J\xff"},
		{"setuid", []entry{setuid}, "bin/su"},
		{"the root itself", []entry{link(".", top), dir("/"), file("..", "x")}, ""},
		{"name too long", []entry{file(strings.Repeat("a/", 4000)+"x", "x")}, ""},
		{"target too long", []entry{link("a", strings.Repeat("a/", 4000))}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, err := unpacked(t, s, makeTar(t, tt.entries...))
			check(t)
			if tt.want == "" {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(root, tt.want)); err != nil {
				t.Errorf("not in the root: %v\n%s", err, listing(t, root))
			}
		})
	}
}

func TestUnpackKeepsWhatAnImageNeeds(t *testing.T) {
	needRoot(t)
	s, _ := outside(t, Options{})
	su := file("bin/su", "x")
	su.h.Mode, su.h.Uid, su.h.Gid = 0o4755, 12, 34
	ping := file("bin/ping", "ping")
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	ping.h.PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability":    capability,
		"SCHILY.xattr.user.overlay.opaque":    "y",
		"SCHILY.xattr.trusted.overlay.opaque": "y",
		"SCHILY.xattr.user.mine":              "v",
	}
	root, err := unpacked(t, s,
		makeTar(t, dir("bin"), su, ping, dir("gone"), file("gone/x", "x"), dir("keep"), file("keep/old", "x"), file("a", "a"), hardlink("b", "a")),
		makeTar(t, file(".wh.gone", ""), dir("keep"), file("keep/new", "n"), file("keep/.wh..wh..opq", "")))
	if err != nil {
		t.Fatal(err)
	}
	want := `a -rw-r--r-- 0:0 "a"
b -rw-r--r-- 0:0 "a"
bin drwxr-xr-x 0:0
bin/ping -rw-r--r-- 0:0 "ping"
bin/su urwxr-xr-x 12:34 "x"
keep drwxr-xr-x 0:0
keep/new -rw-r--r-- 0:0 "n"
`
	if got := listing(t, root); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	a, _ := os.Stat(filepath.Join(root, "a"))
	b, _ := os.Stat(filepath.Join(root, "b"))
	if !os.SameFile(a, b) {
		t.Error("hard link became a copy")
	}
	buf := make([]byte, 1024)
	n, err := unix.Lgetxattr(filepath.Join(root, "bin/ping"), "security.capability", buf)
	if err != nil || string(buf[:n]) != capability {
		t.Errorf("file capability: %q, %v", buf[:max(n, 0)], err)
	}
	n, err = unix.Llistxattr(filepath.Join(root, "bin/ping"), buf)
	if list := string(buf[:max(n, 0)]); err != nil || strings.Contains(list, "overlay") || !strings.Contains(list, "user.mine") {
		t.Errorf("attributes: %q, %v", list, err)
	}
	fi, err := os.Stat(s.dir)
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("store is open to others: %v, %v", fi.Mode(), err)
	}
}

func TestNoDeviceIsMade(t *testing.T) {
	needRoot(t)
	s, _ := outside(t, Options{})
	dev := func(name string, kind byte, major, minor int64) entry {
		return entry{h: tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: major, Devminor: minor}}
	}
	root, err := unpacked(t, s, makeTar(t, dir("dev"),
		dev("dev/sda", tar.TypeBlock, 8, 0), dev("dev/mem", tar.TypeChar, 1, 1), dev("dev/white", tar.TypeChar, 0, 0), file("x", "x")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := listing(t, root), "dev drwxr-xr-x 0:0\nx -rw-r--r-- 0:0 \"x\"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// endlessZeros is a file of a size that is never there.
type endlessZeros struct{}

func (endlessZeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBounds(t *testing.T) {
	needRoot(t)
	huge := func(size int64) io.Reader {
		var head bytes.Buffer
		h := file("zeros", "").h
		h.Size = size
		if err := tar.NewWriter(&head).WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		return io.MultiReader(&head, io.LimitReader(endlessZeros{}, size))
	}
	many := func(n int, name func(i int) string) []byte {
		var entries []entry
		for i := range n {
			entries = append(entries, file(name(i), ""))
		}
		return makeTar(t, entries...)
	}
	for _, tt := range []struct {
		name string
		tar  io.Reader
		ok   bool
	}{
		{"one big file", huge(2 << 20), false},
		{"a size of 2^62", huge(1 << 62), false},
		{"a size that overflows the sum", io.MultiReader(bytes.NewReader(makeTar(t, file("x", "x"))[:1024]), huge(1<<63-1)), false},
		{"sparse file", bytes.NewReader(sparseTar(t, 1<<40)), false},
		{"many files", bytes.NewReader(many(101, func(i int) string { return fmt.Sprint(i) })), false},
		{"few files, many parents", bytes.NewReader(many(1, func(int) string { return strings.Repeat("a/", 200) + "x" })), false},
		{"the same file again and again", bytes.NewReader(many(101, func(int) string { return "x" })), false},
		{"trailing garbage without end", io.MultiReader(bytes.NewReader(makeTar(t, file("x", "x"))), endlessZeros{}), false},
		{"within", bytes.NewReader(many(90, func(i int) string { return fmt.Sprint(i) })), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, check := outside(t, Options{MaxBytes: 1 << 20, MaxFiles: 100})
			root, err := s.newRoot("unpack-")
			if err != nil {
				t.Fatal(err)
			}
			err = applyTar(t.Context(), root, tt.tar, s.budget())
			if tt.ok != (err == nil) || !tt.ok && !errors.Is(err, ErrTooBig) {
				t.Errorf("got %v", err)
			}
			if used, err := diskUsage(root); err != nil || used > 1<<20 {
				t.Errorf("%d bytes on disk, %v", used, err)
			}
			check(t)
		})
	}
}

// sparseTar is a PAX sparse file of a huge size in a few bytes.
func sparseTar(t testing.TB, size int64) []byte {
	t.Helper()
	content := "1\n0\n0\n"
	content += strings.Repeat("\x00", 512-len(content))
	plain := makeTar(t, entry{h: tar.Header{
		Name: "sparse", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)),
		PAXRecords: map[string]string{"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.realsize": fmt.Sprint(size), "XXX.sparse.name": "big"},
	}, content: content})
	// The writer refuses these records under their names.
	return bytes.ReplaceAll(plain, []byte("XXX.sparse"), []byte("GNU.sparse"))
}

func TestSparseFileIsOne(t *testing.T) {
	h, err := tar.NewReader(bytes.NewReader(sparseTar(t, 1<<40))).Next()
	if err != nil || h.Size != 1<<40 || h.Name != "big" {
		t.Fatalf("the test's archive is not what it should be: %+v, %v", h, err)
	}
}

func TestBombStopsEarly(t *testing.T) {
	needRoot(t)
	s, check := outside(t, Options{MaxBytes: 1 << 20, MaxFiles: 100})
	plain := makeTar(t, file("zeros", strings.Repeat("\x00", 64<<20)))
	l := memoryLayer(gzipped(t, plain), plain)
	var read int
	root, err := s.newRoot("unpack-")
	if err != nil {
		t.Fatal(err)
	}
	err = l.unpack(t.Context(), root, s.budget(), func(n int) { read += n })
	if !errors.Is(err, ErrTooBig) {
		t.Errorf("got %v", err)
	}
	if read > 32<<10+64<<10 {
		t.Errorf("%d compressed bytes were read", read)
	}
	check(t)
}

func memoryLayer(stored, plain []byte) layer {
	sum := sha256.Sum256(plain)
	return layer{
		size: int64(len(stored)), diffID: "sha256:" + hex.EncodeToString(sum[:]),
		open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stored)), nil },
	}
}

func TestDamagedLayers(t *testing.T) {
	needRoot(t)
	s, _ := outside(t, Options{})
	plain := makeTar(t, file("a", strings.Repeat("content", 1000)), file("b", "b"))
	packed := gzipped(t, plain)
	other := makeTar(t, file("a", strings.Repeat("CONTENT", 1000)), file("b", "b"))
	for _, tt := range []struct {
		name   string
		stored []byte
		ok     bool
	}{
		{"whole", packed, true},
		{"not compressed", plain, true},
		{"zstd", zstdCompressed(t, plain), true},
		{"cut in the zstd stream", zstdCompressed(t, plain)[:100], false},
		{"cut in the gzip stream", packed[:len(packed)/2], false},
		{"cut in a file", plain[:1000], false},
		{"cut between files", plain[:512+7168], false},
		{"without its end", plain[:len(plain)-1024], false},
		{"another content", other, false},
		{"something behind it", append(bytes.Clone(plain), "more"...), false},
		{"empty", nil, false},
		{"xz", []byte("\xfd7zXZ\x00 and so on"), false},
		{"no archive", []byte(strings.Repeat("nonsense", 1000)), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, err := s.newRoot("unpack-")
			if err != nil {
				t.Fatal(err)
			}
			err = memoryLayer(tt.stored, plain).unpack(t.Context(), root, s.budget(), func(int) {})
			if tt.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func zstdCompressed(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func FuzzUnpack(f *testing.F) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		f.Skip("needs root")
	}
	f.Add(makeTar(f, dir("a"), file("a/b", "x"), link("l", "/"), hardlink("h", "a/b")))
	f.Add(makeTar(f, link("x", "../.."), file("x/.wh.foo", ""), file("x/victim", "bad")))
	f.Add(sparseTar(f, 1<<40))
	s, check := outside(f, Options{MaxBytes: 1 << 20, MaxFiles: 100})
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := s.newRoot("unpack-")
		if err != nil {
			t.Fatal(err)
		}
		defer removeAll(root)
		if r, err := decompress(bytes.NewReader(data)); err == nil {
			applyTar(t.Context(), root, r, s.budget()) // an error is fine
			r.Close()
		}
		filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type()&fs.ModeDevice != 0 {
				t.Errorf("device %q", path)
			}
			return nil
		})
		check(t)
	})
}
