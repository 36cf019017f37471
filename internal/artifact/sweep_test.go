package artifact_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

func TestExpiry(t *testing.T) {
	dir := t.TempDir()
	clk, ix := newClock(), indextest.NewMemory()
	s := openStore(t, ix, artifact.Options{Dir: dir, TTL: time.Minute, MaxBytes: 10, Now: clk.now})
	stage(t, s, "old", "12345")
	clk.advance(30 * time.Second)
	b := stage(t, s, "new", "12345")

	clk.advance(30*time.Second - time.Millisecond)
	if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("a millisecond early: Sweep = %d, %v", n, err)
	}
	clk.advance(time.Millisecond)
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("the second Sweep = %d, %v", n, err)
	}
	wantTree(t, dir, b.Token, b.Token+"/new")
	stage(t, s, "again", "12345") // the quota is free again
}

func TestRunSweepsEveryMinute(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := artifact.Open(t.Context(), indextest.NewMemory(), artifact.Options{Dir: dir, TTL: 90 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		a := stage(t, s, "f", "x")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		wantTree(t, dir, a.Token, a.Token+"/f")
		time.Sleep(time.Minute)
		synctest.Wait()
		wantTree(t, dir)
		cancel()
		<-done
	})
}

// TestRestart leaves what a killed process may leave at each step.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	clk, ix := newClock(), indextest.NewMemory()
	s := openStore(t, ix, artifact.Options{Dir: dir, MaxBytes: 100, Now: clk.now})
	expired := stage(t, s, "expired", "x")
	clk.advance(time.Hour)
	kept := stage(t, s, "kept", "kept")
	noFile, noDir, short := stage(t, s, "nofile", "x"), stage(t, s, "nodir", "x"), stage(t, s, "short", "longer")
	s.Close()

	lost := strings.Repeat("A", 43) // a token that no row knows
	for _, err := range []error{
		os.Remove(filepath.Join(dir, noFile.Token, noFile.File)),
		os.RemoveAll(filepath.Join(dir, noDir.Token)),
		os.Truncate(filepath.Join(dir, short.Token, short.File), 3),
		os.MkdirAll(filepath.Join(dir, lost), 0o755),
		os.WriteFile(filepath.Join(dir, lost, "f"), []byte("x"), 0o644),
		os.MkdirAll(filepath.Join(dir, ".staging", lost), 0o755),
		os.WriteFile(filepath.Join(dir, ".staging", lost, "f"), []byte("x"), 0o644),
		os.WriteFile(filepath.Join(dir, ".staging", "odd"), nil, 0o644),
		// Not ours, so not our business.
		os.WriteFile(filepath.Join(dir, "robots.txt"), nil, 0o644),
		os.Mkdir(filepath.Join(dir, "data"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again := openStore(t, ix, artifact.Options{Dir: dir, MaxBytes: 100, Now: clk.now})
	want := []string{kept.Token, kept.Token + "/kept", "data", "robots.txt"}
	got := tree(t, dir)
	if diff := cmp.Diff(want, got, cmp.Transformer("set", func(s []string) map[string]bool {
		m := map[string]bool{}
		for _, v := range s {
			m[v] = true
		}
		return m
	})); diff != "" {
		t.Errorf("after the restart (-want +got):\n%s", diff)
	}
	if rows, _ := ix.Artifacts(t.Context()); len(rows) != 1 || rows[0] != kept {
		t.Errorf("rows after the restart: %v", rows)
	}
	for _, gone := range []artifact.Artifact{expired, noFile, noDir, short} {
		wantStatus(t, again, gone, 404)
	}
	if body := wantStatus(t, again, kept, 200).Body.String(); body != "kept" {
		t.Errorf("body %q", body)
	}
	stage(t, again, "rest", strings.Repeat("x", 96)) // and the quota knows what is left
}

// TestSweepSparesWork sweeps as fast as it can while files are staged,
// downloaded and deleted.
func TestSweepSparesWork(t *testing.T) {
	ix := indextest.NewMemory()
	dir := t.TempDir()
	s := openStore(t, ix, artifact.Options{Dir: dir, MaxBytes: 4 * 100})
	stop := make(chan struct{})
	var sweeps, work sync.WaitGroup
	for range 2 {
		sweeps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, err := s.Sweep(context.Background()); err != nil || n != 0 {
					t.Errorf("Sweep = %d, %v", n, err)
				}
			}
		})
	}
	for range 4 {
		work.Go(func() {
			for range 50 {
				a, err := s.Stage(t.Context(), artifact.File{Path: "f", MaxBytes: 100}, iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 100))))
				if err != nil {
					t.Error(err)
					return
				}
				sum := sha256.Sum256(wantStatus(t, s, a, 200).Body.Bytes())
				if hex.EncodeToString(sum[:]) != a.SHA256 {
					t.Error("the download has other bytes")
				}
				if err := s.Delete(t.Context(), a.Token); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	sweeps.Wait()
	wantTree(t, dir)
	stage(t, s, "all", strings.Repeat("x", 400)) // no byte was released twice or never
	if _, err := s.Stage(t.Context(), artifact.File{Path: "f", MaxBytes: 1}, strings.NewReader("x")); !errors.Is(err, artifact.ErrFull) {
		t.Errorf("above the quota: %v", err)
	}
}
