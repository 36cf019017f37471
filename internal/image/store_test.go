package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, tt := range []struct{ in, want string }{
		{"mini", "mini"},
		{"mini:latest", "mini"},
		{"library/mini", "mini"},
		{"docker.io/library/debian:trixie-slim", "debian:trixie-slim"},
		{"index.docker.io/library/debian:trixie-slim", "debian:trixie-slim"},
		{"rocker/r-ver:4", "rocker/r-ver:4"},
		{"ghcr.io/x/y:tag", "ghcr.io/x/y:tag"},
		{"localhost:5000/x", "localhost:5000/x"},
		{"debian@" + digest, "debian@" + digest},
		{"Mini", ""}, {"", ""}, {"a b", ""}, {"../x", ""}, {"mini:", ""}, {"mini:a/b", ""}, {"x\n", ""},
		{digest, ""}, {"debian@sha256:12", ""}, {strings.Repeat("a", 1000), ""},
	} {
		r, err := parseName(tt.in)
		if tt.want == "" {
			if err == nil {
				t.Errorf("%q: accepted as %s", tt.in, familiar(r))
			} else if tt.in != "" && len(tt.in) < 100 && !strings.Contains(err.Error(), fmt.Sprintf("%q", tt.in)) {
				t.Errorf("%q: error does not name it: %v", tt.in, err)
			}
			continue
		}
		if err != nil || familiar(r) != tt.want {
			t.Errorf("%q: got %v, %v, want %s", tt.in, r, err, tt.want)
		}
	}
}

func TestLookup(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	img := addImage(t, s, "mini", file("x", "x"))
	if _, err := s.tag(img.Digest, []string{"debian:trixie-slim"}); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"mini", "mini:latest", "docker.io/library/debian:trixie-slim", img.Digest, img.Digest[:20], img.Digest[7:15]} {
		got, err := s.Get(ref)
		if err != nil || got.Digest != img.Digest {
			t.Errorf("%s: %v, %v", ref, got.Digest, err)
		}
	}
	for _, ref := range []string{"other", "mini:1", "sha256:" + strings.Repeat("0", 64), "0000000", img.Digest[7:10]} {
		if _, err := s.Get(ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	got, err := s.Get("mini")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"debian:trixie-slim", "mini"}, got.Names); diff != "" {
		t.Error(diff)
	}
	if readFile(t, filepath.Join(got.Rootfs, "x")) != "x" || got.Bytes != 1 || got.Source != "test" {
		t.Errorf("got %+v", got)
	}
	got.Names[0] = "changed"
	if again, _ := s.Get("mini"); again.Names[0] != "debian:trixie-slim" {
		t.Error("a caller's change reached the store")
	}
}

func TestRemove(t *testing.T) {
	needRoot(t)
	ctx := t.Context()
	s := openStore(t, t.TempDir(), Options{})
	img := addImage(t, s, "a", file("x", "x"))
	if _, err := s.tag(img.Digest, []string{"b"}); err != nil {
		t.Fatal(err)
	}
	held, release, err := s.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "a"); err != nil {
		t.Errorf("untagging one of two names: %v", err)
	}
	for _, ref := range []string{"b", img.Digest} {
		if err := s.Remove(ctx, ref); !errors.Is(err, ErrInUse) {
			t.Errorf("removing %s, which is acquired: %v", ref, err)
		}
	}
	if _, err := s.Get("b"); err != nil {
		t.Errorf("a refused removal changed something: %v", err)
	}
	release()
	release()
	if err := s.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(held.Rootfs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
	if err := s.Remove(ctx, "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
	isEmpty(t, s.path("tmp"))
}

// A name that moves on must not take files from under who uses them.
func TestReplacedWhileAcquired(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	addImage(t, s, "mini", file("x", "old"))
	old, _, err := s.Acquire("mini")
	if err != nil {
		t.Fatal(err)
	}
	addImage(t, s, "mini", file("x", "new"))
	if got, err := s.Get(old.Digest); err != nil || len(got.Names) != 0 || readFile(t, filepath.Join(got.Rootfs, "x")) != "old" {
		t.Errorf("got %+v, %v", got, err)
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || all[0].Names[0] != "mini" {
		t.Errorf("listed %v, %v", all, err)
	}

	// A restart: who holds it can acquire it again before anything changes.
	s = openStore(t, dir, Options{})
	_, release, err := s.Acquire(old.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "mini"); err != nil {
		t.Fatal(err)
	}
	if readFile(t, filepath.Join(old.Rootfs, "x")) != "old" {
		t.Error("files of an acquired image have changed")
	}
	release()
	if _, err := os.Lstat(old.Rootfs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
	if all, _ := s.List(); len(all) != 0 {
		t.Errorf("left: %v", all)
	}
}

func TestOpenCleansUp(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "state", "images")
	s := openStore(t, dir, Options{})
	img := addImage(t, s, "mini", file("x", "x"))
	lost := addImage(t, s, "lost", file("x", "y"))
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"tmp/unpack-1/deep", "tmp/index-123", "rootfs/" + strings.Repeat("0", 64) + "/deep", "layers/half/deep"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.path(d), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(lost.Rootfs); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Digest != img.Digest {
		t.Errorf("listed %v, %v", all, err)
	}
	isEmpty(t, s.path("tmp"))
	isEmpty(t, s.path("layers"))
	if roots, _ := os.ReadDir(s.path("rootfs")); len(roots) != 1 {
		t.Errorf("root filesystems: %v", roots)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("store is open to others: %v, %v", fi, err)
	}
}

func TestDamagedIndexIsNotOverwritten(t *testing.T) {
	for _, content := range []string{`{"images": `, `{"images": {"../../x": {"digest": "../../x"}}}`, `{"images": {"sha256:x": null}}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); err == nil {
			t.Errorf("opened with index %s", content)
		}
		if readFile(t, filepath.Join(dir, "index.json")) != content {
			t.Error("the index was changed")
		}
	}
}

func TestFailedChangeChangesNothing(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	img := addImage(t, s, "mini", file("x", "x"))
	if err := os.RemoveAll(s.path("tmp")); err != nil { // no index can be written
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "mini"); err == nil {
		t.Fatal("removed without an index")
	}
	if got, err := s.Get("mini"); err != nil || readFile(t, filepath.Join(got.Rootfs, "x")) != "x" || got.Digest != img.Digest {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestConcurrentUse(t *testing.T) {
	needRoot(t)
	s := openStore(t, t.TempDir(), Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("image%d", i%3)
			for range 5 {
				addImage(t, s, name, file("x", name))
				img, release, err := s.Acquire(name)
				if errors.Is(err, ErrNotFound) {
					continue // another removed it
				}
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := os.ReadFile(filepath.Join(img.Rootfs, "x")); err != nil || string(got) != name {
					t.Errorf("acquired %s: %q, %v", name, got, err)
				}
				release()
				if err := s.Remove(context.Background(), name); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInUse) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	isEmpty(t, s.path("tmp"))
}
