package artifact_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

const mib = 1 << 20

// clock is a clock that a test moves.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	return c
}
func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func openStore(t *testing.T, ix artifact.Index, o artifact.Options) *artifact.Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "out")
	}
	s, err := artifact.Open(t.Context(), ix, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func stage(t *testing.T, s *artifact.Store, path, content string) artifact.Artifact {
	t.Helper()
	a, err := s.Stage(t.Context(), artifact.File{Path: path, Subject: "owner", Run: "run-1", MaxBytes: mib}, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// tree lists what is below dir, tokens and all.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." && rel != ".staging" {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func wantTree(t *testing.T, dir string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o644) }

func TestStage(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // modes must not depend on it
	dir := filepath.Join(t.TempDir(), "a", "out")
	ix, clk := indextest.NewMemory(), newClock()
	s := openStore(t, ix, artifact.Options{Dir: dir, BaseURL: "https://example.org/lab/", Now: clk.now})
	a := stage(t, s, "plots/Ω 1.csv", "x,y\n1,2\n")

	want := artifact.Artifact{
		Token: a.Token, File: "Ω 1.csv", Path: "plots/Ω 1.csv", Bytes: 8,
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("x,y\n1,2\n"))),
		MIME:   "text/csv", Subject: "owner", Run: "run-1",
		Created: clk.now().UTC(), Expires: clk.now().UTC().Add(time.Hour),
	}
	if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("Stage (-want +got):\n%s", diff)
	}
	if row, err := ix.Artifact(t.Context(), a.Token); err != nil || row != a {
		t.Errorf("the index has %v, %v", row, err)
	}
	if got, want := s.URL(a), "https://example.org/lab/sandbox-out/"+a.Token+"/%CE%A9%201.csv"; got != want {
		t.Errorf("URL = %s, want %s", got, want)
	}
	s.SetBaseURL("")
	if got, want := s.URL(a), "/sandbox-out/"+a.Token+"/%CE%A9%201.csv"; got != want {
		t.Errorf("URL without a base = %s, want %s", got, want)
	}
	got := map[string]fs.FileMode{
		"dir":     mode(t, dir),
		"staging": mode(t, filepath.Join(dir, ".staging")),
		"token":   mode(t, filepath.Join(dir, a.Token)),
		"file":    mode(t, filepath.Join(dir, a.Token, a.File)),
	}
	if diff := cmp.Diff(map[string]fs.FileMode{"dir": 0o711, "staging": 0o700, "token": 0o755, "file": 0o644}, got); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
	if b := stage(t, s, "plots/Ω 1.csv", "x,y\n1,2\n"); b.Token == a.Token {
		t.Error("two files have one token")
	}
}

func TestStageBounds(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, indextest.NewMemory(), artifact.Options{Dir: dir, MaxBytes: 100})
	for _, r := range []func(io.Reader) io.Reader{iotest.OneByteReader, func(r io.Reader) io.Reader { return r }} {
		for _, tt := range []struct {
			size, max int
			want      error
		}{
			{0, 0, nil}, {1, 0, artifact.ErrTooLarge},
			{10, 10, nil}, {11, 10, artifact.ErrTooLarge},
			{100, 1000, nil}, {101, 1000, artifact.ErrFull},
			{10, -1, artifact.ErrTooLarge},
		} {
			a, err := s.Stage(t.Context(), artifact.File{Path: "f", MaxBytes: int64(tt.max)}, r(strings.NewReader(strings.Repeat("x", tt.size))))
			if !errors.Is(err, tt.want) {
				t.Errorf("%d bytes with a bound of %d: %v, want %v", tt.size, tt.max, err, tt.want)
			}
			if err := s.Delete(t.Context(), a.Token); err != nil {
				t.Fatal(err)
			}
			wantTree(t, dir)
		}
	}
	stage(t, s, "all", strings.Repeat("x", 100)) // the failures gave back their bytes
}

func TestStageFailures(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, indextest.NewMemory(), artifact.Options{Dir: dir, MaxBytes: 100})
	file := artifact.File{Path: "f", MaxBytes: mib}
	broken := errors.New("broken")
	if _, err := s.Stage(t.Context(), file, io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("with a broken reader: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	endless := readerFunc(func(p []byte) (int, error) { cancel(); return 1, nil })
	if _, err := s.Stage(ctx, file, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ends: %v", err)
	}
	wantTree(t, dir)
	stage(t, s, "all", strings.Repeat("x", 100))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// brokenIndex fails where a test says so.
type brokenIndex struct {
	*indextest.Memory
	add, get, del error
	addFirst      bool // fail after the row is committed
}

func (ix *brokenIndex) Artifact(ctx context.Context, token string) (artifact.Artifact, error) {
	if ix.get != nil {
		return artifact.Artifact{}, ix.get
	}
	return ix.Memory.Artifact(ctx, token)
}

func (ix *brokenIndex) AddArtifact(ctx context.Context, a artifact.Artifact) error {
	if ix.add != nil && ix.addFirst {
		return errors.Join(ix.Memory.AddArtifact(ctx, a), ix.add)
	}
	if ix.add != nil {
		return ix.add
	}
	return ix.Memory.AddArtifact(ctx, a)
}

func (ix *brokenIndex) DeleteArtifact(ctx context.Context, token string) error {
	if ix.del != nil {
		return ix.del
	}
	return ix.Memory.DeleteArtifact(ctx, token)
}

func TestIndexFailures(t *testing.T) {
	dir := t.TempDir()
	ix := &brokenIndex{Memory: indextest.NewMemory()}
	s := openStore(t, ix, artifact.Options{Dir: dir, MaxBytes: 100})
	broken := errors.New("broken")
	full := strings.Repeat("x", 100)

	for _, ix.addFirst = range []bool{false, true} {
		ix.add = broken
		if _, err := s.Stage(t.Context(), artifact.File{Path: "f", MaxBytes: 100}, strings.NewReader(full)); !errors.Is(err, broken) {
			t.Errorf("Stage = %v", err)
		}
		wantTree(t, dir)
		if rows, _ := ix.Artifacts(t.Context()); len(rows) != 0 {
			t.Errorf("a failed Stage left %v", rows)
		}
	}
	ix.add = nil
	a := stage(t, s, "f", full)

	ix.del = broken
	if err := s.Delete(t.Context(), a.Token); !errors.Is(err, broken) {
		t.Errorf("Delete = %v", err)
	}
	if _, err := s.Sweep(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Sweep = %v", err)
	}
	ix.del = nil
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil { // what failed halfway is retried
		t.Errorf("Sweep = %d, %v", n, err)
	}
	stage(t, s, "f", full)
}

func TestErrorsHoldNoToken(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	ix := indextest.NewMemory()
	s := openStore(t, ix, artifact.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := os.Remove(filepath.Join(dir, ".staging")); err != nil {
		t.Fatal(err)
	}
	_, err := s.Stage(t.Context(), artifact.File{Path: "f"}, strings.NewReader(""))
	if err == nil || artifact.Redact(err.Error()) != err.Error() {
		t.Errorf("Stage without its directory = %v", err)
	}
	if got := log.String(); artifact.Redact(got) != got {
		t.Errorf("a token is in the log: %s", got)
	}
}

// TestQuotaUnderConcurrency fills a store from many sides at once: what fits
// is staged, and never more than the quota is on disk.
func TestQuotaUnderConcurrency(t *testing.T) {
	const quota, size = 1000, 300
	ix := indextest.NewMemory()
	s := openStore(t, ix, artifact.Options{MaxBytes: quota})
	var staged atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r := iotest.OneByteReader(strings.NewReader(strings.Repeat("x", size)))
			_, err := s.Stage(t.Context(), artifact.File{Path: "f", MaxBytes: size}, r)
			switch {
			case err == nil:
				staged.Add(1)
			case !errors.Is(err, artifact.ErrFull):
				t.Error(err)
			}
			if n, _ := ix.ArtifactBytes(t.Context()); n > quota {
				t.Errorf("%d bytes in a quota of %d", n, quota)
			}
		})
	}
	wg.Wait()
	n, _ := ix.ArtifactBytes(t.Context())
	if n != staged.Load()*size || n > quota {
		t.Errorf("%d bytes for %d files", n, staged.Load())
	}
	// All that is not staged is free again.
	for range (quota - n) / size {
		stage(t, s, "f", strings.Repeat("x", size))
	}
}

// TestConstantMemory stages far more than it may keep in memory.
func TestConstantMemory(t *testing.T) {
	const size = 512 * mib
	s := openStore(t, indextest.NewMemory(), artifact.Options{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	a, err := s.Stage(t.Context(), artifact.File{Path: "big", MaxBytes: size}, io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4*mib {
		t.Errorf("staging %d MiB allocated %d KiB", size/mib, grown/1024)
	}
	if a.Bytes != size || a.SHA256 != "9acca8e8c22201155389f65abbf6bc9723edc7384ead80503839f49dcc56d767" {
		t.Errorf("%d bytes, sha256 %s", a.Bytes, a.SHA256)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestOpenDirectory(t *testing.T) {
	foreign := t.TempDir()
	if err := errors.Join(os.Chmod(foreign, 0o755), os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := artifact.Open(t.Context(), indextest.NewMemory(), artifact.Options{Dir: foreign}); err == nil || !strings.Contains(err.Error(), foreign) {
		t.Errorf("a listable directory with other files: %v", err)
	}
	if got := mode(t, foreign); got != 0o755 {
		t.Errorf("its mode became %o", got)
	}
	if err := os.Chmod(foreign, 0o711); err != nil {
		t.Fatal(err)
	}
	openStore(t, indextest.NewMemory(), artifact.Options{Dir: foreign}) // as the error said

	empty := t.TempDir()
	if err := os.Chmod(empty, 0o777); err != nil {
		t.Fatal(err)
	}
	openStore(t, indextest.NewMemory(), artifact.Options{Dir: empty})
	if got := mode(t, empty); got != 0o711 {
		t.Errorf("an empty directory has mode %o", got)
	}
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	openStore(t, indextest.NewMemory(), artifact.Options{Dir: private})
	if got := mode(t, private); got != 0o700 {
		t.Errorf("a private directory became %o", got)
	}
}
