package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// workspace is a build context with a Containerfile.
func workspace(t testing.TB, containerfile string, files map[string]string) BuildOptions {
	t.Helper()
	dir := t.TempDir()
	o := BuildOptions{Name: "out", Containerfile: filepath.Join(dir, "Containerfile")}
	edit(t, o, "Containerfile", containerfile)
	for name, content := range files {
		edit(t, o, name, content)
	}
	return o
}

func edit(t testing.TB, o BuildOptions, name, content string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(o.Containerfile), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// noRunner is for builds that run nothing.
type noRunner struct{ t testing.TB }

func (n noRunner) RunStep(_ context.Context, s Step) error {
	n.t.Errorf("ran %q", s.Argv)
	return nil
}

func mustBuild(t testing.TB, s *Store, o BuildOptions, r Runner) (Image, string) {
	t.Helper()
	var rec recorder
	img, err := s.Build(t.Context(), o, r, rec.progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, rec.text())
	}
	return img, rec.text()
}

func TestBuildRuns(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	base := append(shellBase(t), dir("doomed"), file("doomed/x", "x"), dir("redone"), file("redone/old", "x"), file("gone", "x"),
		dir("usr"), dir("usr/lib"), dir("usr/lib/python3.13"), file("usr/lib/python3.13/EXTERNALLY-MANAGED", "no"), file("usr/lib/python3.13/os.py", ""))
	addImage(t, s, "base", base...)
	o := workspace(t, `FROM base
ARG GREETING=hi
ENV PATH=/bin LIST="a b"
WORKDIR /work/deep
RUN echo "$GREETING $LIST $HOME in $PWD" >out; echo shown; echo also shown >&2
RUN ["/bin/rm", "-r", "/doomed", "/gone"]
RUN rm -r /redone && mkdir /redone && echo n >/redone/new
RUN ln out hard && ln -s /etc/passwd soft
RUN <<EOF
#!/bin/sh -e
echo from a script >script
EOF
USER ada
RUN id -u >/tmp/id; id -g >>/tmp/id; echo "$HOME" >>/tmp/id
CMD nothing
`, nil)
	o.Args = map[string]string{"GREETING": "ho"}
	r := &overlayRunner{}
	var rec recorder
	img, err := s.Build(t.Context(), o, r, rec.progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, rec.text())
	}
	events := rec.text()
	if last := rec.events[len(rec.events)-1]; last.Step != 8 || last.Steps != 8 {
		t.Errorf("last event: %+v", last)
	}
	if len(r.steps) != 6 {
		t.Errorf("%d steps ran", len(r.steps))
	}
	for path, want := range map[string]string{
		"work/deep/out": "ho a b /root in /work/deep\n", "work/deep/script": "from a script\n",
		"redone/new": "n\n", "tmp/id": "1000\n1001\n/home/ada\n",
	} {
		if got := readFile(t, filepath.Join(img.Rootfs, path)); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"doomed", "gone", "redone/old", "usr/lib/python3.13/EXTERNALLY-MANAGED"} {
		if _, err := os.Lstat(filepath.Join(img.Rootfs, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(img.Rootfs, "tmp")); err != nil || fi.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("/tmp: %v, %v", fi.Mode(), err)
	}
	a, _ := os.Stat(filepath.Join(img.Rootfs, "work/deep/out"))
	b, err := os.Stat(filepath.Join(img.Rootfs, "work/deep/hard"))
	if err != nil || !os.SameFile(a, b) {
		t.Errorf("hard link became a copy: %v", err)
	}
	for _, want := range []string{"shown\n", "also shown\n", "FROM base\n", "host's network", "CMD has no meaning", "RUN <<EOF\n"} {
		if !strings.Contains(events, want) {
			t.Errorf("no %q in\n%s", want, events)
		}
	}
	// The base has kept its marker, and shares its files' bytes.
	baseImg, err := s.Get("base")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(baseImg.Rootfs, "usr/lib/python3.13/EXTERNALLY-MANAGED")); err != nil {
		t.Error(err)
	}
	x, _ := os.Stat(filepath.Join(baseImg.Rootfs, "bin/sh"))
	y, _ := os.Stat(filepath.Join(img.Rootfs, "bin/sh"))
	if !os.SameFile(x, y) {
		t.Error("files were copied, not linked")
	}
	if !strings.HasPrefix(img.Source, "built from Containerfile on base") {
		t.Errorf("source: %s", img.Source)
	}
	if diff := cmp.Diff(Config{Env: []string{"PATH=/bin", "LIST=a b"}, Workdir: "/work/deep", User: "ada"}, img.Config); diff != "" {
		t.Error(diff)
	}

	again, events := mustBuild(t, s, o, noRunner{t})
	if again.Digest != img.Digest || strings.Count(events, "(cached)") != 7 {
		t.Errorf("second build: %s\n%s", again.Digest, events)
	}
	isEmpty(t, s.path("tmp"))
}

func TestBuildCache(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	addImage(t, s, "base", shellBase(t)...)
	text := "FROM base\nENV PATH=/bin\nARG V=1\nRUN echo $V >/a\nCOPY data /data\nRUN cat /data >/b\n"
	o := workspace(t, text, map[string]string{"data": "one"})
	r := &overlayRunner{}
	ran := func(want int, o BuildOptions) Image {
		t.Helper()
		before := len(r.steps)
		img, events := mustBuild(t, s, o, r)
		if got := len(r.steps) - before; got != want {
			t.Errorf("%d commands ran, want %d\n%s", got, want, events)
		}
		return img
	}
	first := ran(2, o)
	if again := ran(0, o); again.Digest != first.Digest {
		t.Error("the same build is another image")
	}
	// A time is no content.
	edit(t, o, "data", "one")
	ran(0, o)
	edit(t, o, "data", "two")
	if img := ran(1, o); readFile(t, filepath.Join(img.Rootfs, "b")) != "two" {
		t.Error("stale content")
	}
	o.Args = map[string]string{"V": "2"}
	if img := ran(2, o); readFile(t, filepath.Join(img.Rootfs, "a")) != "2\n" {
		t.Error("stale argument")
	}
	fresh := o
	fresh.NoCache = true
	newest := ran(2, fresh)
	if err := os.Chmod(filepath.Join(filepath.Dir(o.Containerfile), "data"), 0o600); err != nil {
		t.Fatal(err)
	}
	ran(1, o)
	if _, err := s.Get(newest.Digest); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image without a name is left: %v", err)
	}
	layers, err := os.ReadDir(s.path("layers"))
	if err != nil || len(layers) != 3 {
		t.Errorf("layers of one build: %v, %v", layers, err)
	}

	// The outcome of steps before one that fails is not lost, also not to
	// another process.
	edit(t, o, "Containerfile", text+"RUN echo slow >/slow\nRUN exit 3\n")
	var exit *ExitError
	if _, err := s.Build(t.Context(), o, r, nil); !errors.As(err, &exit) || exit.Code != 3 || !strings.Contains(err.Error(), "line 8: RUN exit 3") {
		t.Errorf("a failing command: %v", err)
	}
	s = openStore(t, s.dir, Options{})
	edit(t, o, "Containerfile", text+"RUN echo slow >/slow\nRUN echo good\n")
	ran(1, o)

	// Layers that are gone, also a failed build's, are made again.
	again := o
	again.Containerfile += ".again"
	edit(t, o, "Containerfile.again", text+"RUN echo slow >/slow\nRUN echo other\n")
	edit(t, o, "Containerfile", text+"RUN echo new\nRUN exit 3\n")
	if _, err := s.Build(t.Context(), o, r, nil); !errors.As(err, &exit) {
		t.Errorf("a failing command: %v", err)
	}
	if err := os.RemoveAll(s.path("layers")); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.dir, Options{})
	ran(4, again)
	if err := s.Remove(t.Context(), "out"); err != nil {
		t.Fatal(err)
	}
	isEmpty(t, s.path("layers"))
	isEmpty(t, s.path("tmp"))
}

// Both of an overlay's ways to say that something is gone.
func TestFlatten(t *testing.T) {
	needRoot(t)
	top := t.TempDir()
	mk := func(layer string, paths ...string) string {
		for _, p := range paths {
			full := filepath.Join(top, layer, p)
			if strings.HasSuffix(p, "/") {
				if err := os.MkdirAll(full, 0o755); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(full, []byte(layer), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Join(top, layer)
	}
	base := mk("base", "a/", "a/x", "b/", "b/x", "c", "d", "e/", "e/x", "f/", "f/x", "g", "h/")
	upper := mk("upper", "a/", "a/y", "b/", "b/y", "d", "e/", "g/", "g/x", "h2/", "k")
	attr := func(path, name, value string) {
		if err := unix.Lsetxattr(filepath.Join(upper, path), name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	attr("b", "trusted.overlay.opaque", "y")
	attr("e", "user.overlay.opaque", "y")
	attr("h2", "trusted.overlay.opaque", "x") // says only that whiteouts may be below
	if err := os.Truncate(filepath.Join(upper, "d"), 0); err != nil {
		t.Fatal(err)
	}
	attr("d", "trusted.overlay.whiteout", "y")
	attr("k", "user.mine", "v")
	attr("k", "trusted.overlay.origin", "v")
	for _, name := range []string{"c", "f"} {
		if err := unix.Mknod(filepath.Join(upper, name), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(upper, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	want := `a drwxr-xr-x 0:0
a/x -rw-r--r-- 0:0 "base"
a/y -rw-r--r-- 0:0 "upper"
b drwxr-xr-x 0:0
b/y -rw-r--r-- 0:0 "upper"
e drwxr-xr-x 0:0
g drwxr-xr-x 0:0
g/x -rw-r--r-- 0:0 "upper"
h drwxr-xr-x 0:0
h2 drwxr-xr-x 0:0
k -rw-r--r-- 0:0 "upper"
`
	dst := t.TempDir()
	if err := flatten(t.Context(), dst, []string{base, upper}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, listing(t, dst)); diff != "" {
		t.Error(diff)
	}
	if got := overlayAttr(filepath.Join(dst, "b"), "opaque"); got != "" {
		t.Error("the overlay's attributes are in the image")
	}
	// What resolves a path in layers must agree with what makes one of them.
	v := view{upper, base}
	for path, exists := range map[string]bool{
		"a/x": true, "a/y": true, "b/x": false, "b/y": true, "c": false, "d": false, "e/x": false, "f/x": false, "f": false, "g/x": true, "h": true, "k": true,
	} {
		if _, n, err := v.resolve(path); err != nil || n.exists() != exists {
			t.Errorf("%s: exists is %v, %v", path, n.exists(), err)
		}
	}
	attr("a", "trusted.overlay.redirect", "/elsewhere")
	if err := flatten(t.Context(), t.TempDir(), []string{base, upper}); err == nil || !strings.Contains(err.Error(), "redirect") {
		t.Errorf("a redirected directory: %v", err)
	}
}

func TestBuildFromScratchAndCancel(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	img, _ := mustBuild(t, s, workspace(t, "FROM scratch\nCOPY x /x\n", map[string]string{"x": "x"}), noRunner{t})
	if got := listing(t, img.Rootfs); got != "x -rw-r--r-- 0:0 \"x\"\n" {
		t.Errorf("got %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := workspace(t, "FROM out\nRUN never\n", nil)
	o.Name = "other"
	if _, err := s.Build(ctx, o, cancelRunner{cancel}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Get("other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a cancelled build is there: %v", err)
	}
	isEmpty(t, s.path("tmp"))
	if err := s.Remove(t.Context(), "out"); err != nil {
		t.Errorf("the base is still held: %v", err)
	}
}

// cancelRunner ends the build while its step runs.
type cancelRunner struct{ cancel func() }

func (c cancelRunner) RunStep(ctx context.Context, _ Step) error {
	c.cancel()
	<-ctx.Done()
	return ctx.Err()
}
