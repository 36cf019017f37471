package image

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCopy(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	addImage(t, s, "base", dir("etc"), file("etc/passwd", "root:x:0:0::/:\nada:x:7:8::/:\n"), file("etc/group", "staff:x:50:\n"),
		dir("old"), file("old/a", "old"), file("old/b", "old"), dir("usr"), dir("usr/bin"), link("bin", "usr/bin"), link("abs", "/usr"))
	o := workspace(t, `FROM base
COPY a.txt /new/
COPY a.txt b.txt sub /many/
COPY a.txt /renamed
COPY a.txt /old
COPY *.txt /glob/
COPY sub /tree
COPY --chown=ada:staff --chmod=4750 a.txt /owned/
COPY --chown=9 a.txt /owned/nine
COPY sub/ /bin
COPY sub/inner /abs/bin/
COPY sub/toa /linked
WORKDIR /abs/here
COPY a.txt .
COPY <<E f
text
E
COPY . /all/
`, map[string]string{
		"a.txt": "a", "b.txt": "b", "sub/x": "x", "sub/inner/y": "y",
		"node_modules/z": "z", "secret.key": "k", "keep.key": "k", ".dockerignore": "node_modules\n*.key\n!keep.key\n.dockerignore\nContainerfile\n",
	})
	context := filepath.Dir(o.Containerfile)
	if err := os.Symlink("../a.txt", filepath.Join(context, "sub/toa")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(context, "sub/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	img, _ := mustBuild(t, s, o, noRunner{t})
	want := `abs Lrwxrwxrwx 0:0 -> /usr
all drwxr-xr-x 0:0
all/a.txt -rw-r--r-- 0:0 "a"
all/b.txt -rw-r--r-- 0:0 "b"
all/keep.key -rw-r--r-- 0:0 "k"
all/sub drwxr-xr-x 0:0
all/sub/inner drwxr-xr-x 0:0
all/sub/inner/y -rw-r--r-- 0:0 "y"
all/sub/toa Lrwxrwxrwx 0:0 -> ../a.txt
all/sub/x -rwxr-xr-x 0:0 "x"
bin Lrwxrwxrwx 0:0 -> usr/bin
etc drwxr-xr-x 0:0
etc/group -rw-r--r-- 0:0 "staff:x:50:\n"
etc/passwd -rw-r--r-- 0:0 "root:x:0:0::/:\nada:x:7:8::/:\n"
glob drwxr-xr-x 0:0
glob/a.txt -rw-r--r-- 0:0 "a"
glob/b.txt -rw-r--r-- 0:0 "b"
linked -rw-r--r-- 0:0 "a"
many drwxr-xr-x 0:0
many/a.txt -rw-r--r-- 0:0 "a"
many/b.txt -rw-r--r-- 0:0 "b"
many/inner drwxr-xr-x 0:0
many/inner/y -rw-r--r-- 0:0 "y"
many/toa Lrwxrwxrwx 0:0 -> ../a.txt
many/x -rwxr-xr-x 0:0 "x"
new drwxr-xr-x 0:0
new/a.txt -rw-r--r-- 0:0 "a"
old drwxr-xr-x 0:0
old/a -rw-r--r-- 0:0 "old"
old/a.txt -rw-r--r-- 0:0 "a"
old/b -rw-r--r-- 0:0 "old"
owned drwxr-xr-x 7:50
owned/a.txt urwxr-x--- 7:50 "a"
owned/nine -rw-r--r-- 9:9 "a"
renamed -rw-r--r-- 0:0 "a"
tree drwxr-xr-x 0:0
tree/inner drwxr-xr-x 0:0
tree/inner/y -rw-r--r-- 0:0 "y"
tree/toa Lrwxrwxrwx 0:0 -> ../a.txt
tree/x -rwxr-xr-x 0:0 "x"
usr drwxr-xr-x 0:0
usr/bin drwxr-xr-x 0:0
usr/bin/inner drwxr-xr-x 0:0
usr/bin/inner/y -rw-r--r-- 0:0 "y"
usr/bin/toa Lrwxrwxrwx 0:0 -> ../a.txt
usr/bin/x -rwxr-xr-x 0:0 "x"
usr/bin/y -rw-r--r-- 0:0 "y"
usr/here drwxr-xr-x 0:0
usr/here/a.txt -rw-r--r-- 0:0 "a"
usr/here/f -rw-r--r-- 0:0 "text\n"
`
	if diff := cmp.Diff(want, listing(t, img.Rootfs)); diff != "" {
		t.Error(diff)
	}
}

// What a pattern finds decides on a name in the image, so it is content.
func TestCopyOfAnotherNameIsNotCached(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	addImage(t, s, "base", dir("d"))
	o := workspace(t, "FROM base\nCOPY a* /d\n", map[string]string{"a1": "same"})
	mustBuild(t, s, o, noRunner{t})
	context := filepath.Dir(o.Containerfile)
	if err := os.Rename(filepath.Join(context, "a1"), filepath.Join(context, "a2")); err != nil {
		t.Fatal(err)
	}
	img, _ := mustBuild(t, s, o, noRunner{t})
	if got, want := listing(t, img.Rootfs), "d drwxr-xr-x 0:0\nd/a2 -rw-r--r-- 0:0 \"same\"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestCopyRefuses(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	addImage(t, s, "base", file("file", "x"), dir("dir"), link("loop", "loop"))
	for _, tt := range []struct{ text, want string }{
		{"COPY missing /", "no such file"},
		{"COPY *.nothing /", "no such file"},
		{"COPY ../secret /", "no such file"},
		{"COPY /../../secret /", "no such file"},
		{"COPY out /", "escapes"},
		{"COPY outdir/secret /", "escapes"},
		{"COPY outdir/* /", "no such file"},
		{"COPY hidden /", "no such file"},
		{"COPY a /file/", "not a directory"},
		{"COPY a /file/x", "not a directory"},
		{"COPY sub /file", "not a directory"},
		{"COPY a /loop/x", "too many"},
		{"COPY a? /x", "must end in /"},
		{"COPY --chown=nobody a /", `no "nobody"`},
		{"COPY pipe /", "neither file"},
		{"WORKDIR /file/x", "not a directory"},
		{"WORKDIR /loop", "too many"},
	} {
		o := workspace(t, "FROM base\n"+tt.text+"\n", map[string]string{"a": "a", "a1": "", "a2": "", "sub/dir": "", "hidden": "h", ".containerignore": "hidden\n"})
		context := filepath.Dir(o.Containerfile)
		outside := t.TempDir()
		for _, err := range []error{
			os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644),
			os.WriteFile(filepath.Join(filepath.Dir(context), "secret"), []byte("secret"), 0o644),
			os.Symlink(filepath.Join(outside, "secret"), filepath.Join(context, "out")),
			os.Symlink(outside, filepath.Join(context, "outdir")),
			syscall.Mkfifo(filepath.Join(context, "pipe"), 0o644),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Build(t.Context(), o, noRunner{t}, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", tt.text, err)
		}
	}
	isEmpty(t, s.path("tmp"))
}

// Links of the base image that lead out of it must lead into it.
func TestBuildStaysInside(t *testing.T) {
	needRoot(t)
	s, check := outside(t, Options{})
	top := filepath.Dir(s.dir)
	addImage(t, s, "base", link("abs", top), link("rel", "../../../../../../../../../.."+top), link("up", "../.."),
		link("victim", top+"/victim"), link("usr", top+"/usr"), link("etc", top+"/etc"),
		dir("d"), link("d/abs", top))
	o := workspace(t, `FROM base
COPY a /abs/victim
COPY a /rel/passwd
COPY a /up/foo
COPY a /d/abs/nested
COPY a /victim
COPY --chown=5 tree /abs/
WORKDIR /abs/made
WORKDIR ../../rel/made2
COPY a ./
COPY a ../../../victim2
`, map[string]string{"a": "bad", "tree/victim": "bad", "tree/foo": "bad"})
	img, _ := mustBuild(t, s, o, noRunner{t})
	check(t)
	for path, want := range map[string]string{
		top + "/victim": "bad", top + "/passwd": "bad", top + "/foo": "bad", "foo": "bad", "victim": "bad", top + "/nested": "bad",
	} {
		got, err := os.ReadFile(filepath.Join(img.Rootfs, path))
		if err != nil || string(got) != want {
			t.Errorf("%s in the image: %q, %v", path, got, err)
		}
	}
	var found []string
	filepath.WalkDir(img.Rootfs, func(path string, e os.DirEntry, err error) error {
		if err == nil && (e.Name() == "made" || e.Name() == "made2" || e.Name() == "victim2") {
			found = append(found, e.Name())
		}
		return err
	})
	if len(found) != 3 {
		t.Errorf("in the image are only %v", found)
	}
}

// The marker of a Python outside, reached through a link, is not ours.
func TestFreePipStaysInside(t *testing.T) {
	host, root := t.TempDir(), t.TempDir()
	marker := filepath.Join(host, "lib/python3.11/EXTERNALLY-MANAGED")
	if err := os.MkdirAll(filepath.Dir(marker), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{host, "../" + filepath.Base(host), "../../../../../../../../.." + host} {
		if err := os.Symlink(target, filepath.Join(root, "usr")); err != nil {
			t.Fatal(err)
		}
		if err := freePip(root); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(marker); err != nil {
			t.Errorf("through %s: %v", target, err)
		}
		if err := os.Remove(filepath.Join(root, "usr")); err != nil {
			t.Fatal(err)
		}
	}
}
