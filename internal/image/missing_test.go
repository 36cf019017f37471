package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// network is a Runner whose steps find the variable REACHABLE set while it is
// reachable, and why it is not in WHY.
type network struct {
	overlayRunner
	why string // "" while it is reachable
}

func (n *network) RunStep(ctx context.Context, s Step) error {
	if s.Env = append(s.Env, "WHY="+n.why); n.why == "" {
		s.Env = append(s.Env, "REACHABLE=1")
	}
	return n.overlayRunner.RunStep(ctx, s)
}

func TestBuildLeavesOut(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	addImage(t, s, "base", shellBase(t)...)
	o := workspace(t, `FROM base
ENV PATH=/bin
RUN echo 1 >/first
RUN if [ "$REACHABLE" ]; then echo 1 >/got; else mkdir -p /usr/share/belljar/missing && echo "$WHY" >/usr/share/belljar/missing/python.obspy; fi
RUN cat /got >/copy || echo nothing >/copy
`, nil)
	n := &network{}
	build := func(why string, ran int, missing ...Missing) Image {
		t.Helper()
		n.why = why
		before := len(n.steps)
		img, events := mustBuild(t, s, o, n)
		if got := len(n.steps) - before; got != ran {
			t.Errorf("%d commands ran, want %d\n%s", got, ran, events)
		}
		if diff := cmp.Diff(missing, img.Missing); diff != "" {
			t.Errorf("missing (-want +got):\n%s", diff)
		}
		for _, m := range missing {
			if !strings.HasSuffix(events, "left out: "+m.String()+"\n") {
				t.Errorf("no word of %s in\n%s", m, events)
			}
		}
		if len(missing) == 0 && strings.Contains(events, "left out") {
			t.Errorf("nothing is missing:\n%s", events)
		}
		return img
	}
	down := Missing{"python.obspy", "no route"}
	first := build("no route", 3, down)

	// What is missing is tried again; the image changes only if that helps.
	if again := build("no route", 1, down); again.Digest != first.Digest {
		t.Error("it tried in vain, and made another image")
	}
	s = openStore(t, s.dir, Options{})
	build("no route", 1, down)
	if all, err := s.List(); err != nil || len(all) != 2 || cmp.Diff([]Missing{down}, all[1].Missing) != "" {
		t.Errorf("images: %+v, %v", all, err)
	}
	build("no name", 2, Missing{"python.obspy", "no name"})
	whole := build("", 2)
	if got := readFile(t, filepath.Join(whole.Rootfs, "copy")); got != "1\n" {
		t.Errorf("the step after it stands on an old outcome: %q", got)
	}
	if again := build("no route", 0); again.Digest != whole.Digest {
		t.Error("a complete build was not kept")
	}
	o.NoCache = true
	build("no route", 3, down)

	// An image on top lacks the same, until it has it.
	top := workspace(t, "FROM out\nRUN echo 1 >/more\n", nil)
	top.Name = "top"
	if img, _ := mustBuild(t, s, top, n); cmp.Diff([]Missing{down}, img.Missing) != "" {
		t.Errorf("on top: %v", img.Missing)
	}
	edit(t, top, "Containerfile", "FROM out\nRUN rm /usr/share/belljar/missing/python.obspy\nRUN echo 1 >/more\n")
	before := len(n.steps)
	for range 2 {
		if img, _ := mustBuild(t, s, top, n); len(img.Missing) != 0 {
			t.Errorf("made up for: %v", img.Missing)
		}
	}
	if ran := len(n.steps) - before; ran != 2 {
		t.Errorf("%d commands ran, want 2, once each", ran)
	}
}

// Two builds may know a step: what one of them left out, the other may have.
func TestOutcomePrefersWhatIsComplete(t *testing.T) {
	x := index{Builds: map[string]build{
		"a": {Done: []cached{{"key", "lacking", []Missing{{"julia", "no route"}}}}},
		"b": {Tried: []cached{{"key", "complete", nil}}},
	}}
	for range 10 {
		if c, ok := x.outcome("key"); !ok || c.Layer != "complete" {
			t.Fatalf("got %+v, %v", c, ok)
		}
	}
}

// What stands in the directory is the image's doing.
func TestMissingOfHostileImage(t *testing.T) {
	needRoot(t)
	mk := func(layer, name, text string) {
		t.Helper()
		path := filepath.Join(layer, missingDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	upper, lower := t.TempDir(), t.TempDir()
	dir := filepath.Join(upper, missingDir)
	mk(lower, "octave", "below\n")
	mk(lower, "r", "gone\n")
	mk(lower, "julia", "covered\n")
	mk(upper, "julia", "\x1b]0;title\a no\troute \u202e\xff\nsecond line\n")
	mk(upper, "long", strings.Repeat("ä", 1<<20))
	mk(upper, "empty", "")
	mk(upper, "Bad name", "x")
	mk(upper, "directory/x", "x")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, "r"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ä", 100) + "…"
	added := []Missing{{"empty", "no reason is given"}, {"julia", "]0;title no route \uFFFD"}, {"long", long}}
	if diff := cmp.Diff(added, view{upper, lower}.added()); diff != "" {
		t.Errorf("added by the upper layer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(append(added, Missing{"octave", "below"}), view{upper, lower}.missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}

	many := t.TempDir()
	for i := range 3 * maxMissing {
		mk(many, fmt.Sprintf("x%d", i), "x")
	}
	if got := len(view{many}.missing()); got != maxMissing {
		t.Errorf("%d of too many are listed", got)
	}

	// A link in the way leads nowhere outside, and no other file is read.
	outside, link := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(outside, "missing"), filepath.Join(link, "usr/share")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "missing/julia"), []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(link, "usr/share/belljar")); err != nil {
		t.Fatal(err)
	}
	if got := (view{link}).missing(); got != nil {
		t.Errorf("read from outside: %v", got)
	}
	file := t.TempDir()
	if err := os.WriteFile(filepath.Join(file, "usr"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := (view{file}).missing(); got != nil {
		t.Errorf("of an image without directories: %v", got)
	}
}
