package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"

	"github.com/google/go-cmp/cmp"
)

// made puts a sandbox there that another process may have made.
func made(t *testing.T, e engine.Engine, id string, expires time.Time, labels map[string]string) {
	t.Helper()
	err := e.Create(t.Context(), engine.Spec{ID: id, Labels: labels, Expires: expires, Image: "mini", Limits: testLimits})
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func label(kind, server string) map[string]string {
	return map[string]string{labelOwner: ownerName, labelServer: server, labelKind: kind, labelBoot: "earlier"}
}

// Fault 7: what a killed process left is gone after the next start, and what
// is not ours, or not to go, stays.
func TestStartRemovesLeftovers(t *testing.T) {
	mem := enginetest.NewMemory(t)
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	made(t, mem, "run-left", later, label(kindRun, "server-1"))
	made(t, mem, "probe-left", later, label(kindProbe, "server-1"))
	made(t, mem, "half-made", later, nil)
	made(t, mem, "workspace", time.Time{}, label("workspace", "server-1"))
	made(t, mem, "workspace-later", later, label("workspace", "server-1"))
	made(t, mem, "workspace-expired", past, label("workspace", "server-1"))
	made(t, mem, "other-server", past, label(kindRun, "server-2"))

	b := newBenchOn(t, mem)
	mem.FailRemoves(1) // half-made, the first
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"half-made", "other-server", "workspace", "workspace-later"}
	if diff := cmp.Diff(want, sandboxes(t, mem)); diff != "" {
		t.Errorf("after the start (-want +got):\n%s", diff)
	}
	// What could not be removed is tried again.
	if err := b.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1:], sandboxes(t, mem)); diff != "" {
		t.Errorf("after a sweep (-want +got):\n%s", diff)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process that dies in the middle of a run.
func TestCrash(t *testing.T) {
	mem := enginetest.NewMemory(t)
	first := newBenchOn(t, mem)
	mark := filepath.Join(t.TempDir(), "running")
	done := make(chan error)
	go func() {
		_, err := first.Run(t.Context(), bash("touch "+mark+"; sleep 1000"))
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })

	list, err := mem.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	want := label(kindRun, "server-1")
	want[labelBoot], want[labelSubject] = first.boot, "owner"
	if !maps.Equal(list[0].Labels, want) || !strings.HasPrefix(list[0].ID, "run-") {
		t.Errorf("sandbox %+v, want labels %v", list[0], want)
	}
	// Fault 6: the expiry is the engine's to keep.
	if left := time.Until(list[0].Expires); left < time.Minute || left > 10*time.Minute {
		t.Errorf("expires in %v", left)
	}

	second := newBenchOn(t, mem.Reopen())
	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids := sandboxes(t, mem); len(ids) > 0 {
		t.Errorf("left behind: %q", ids)
	}
	<-done // its sandbox was taken away
	for _, b := range []*bench{first, second} {
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Fault 6: a run that is stuck beyond its time is ended by the sweep, by the
// clock of its expiry; one that is not is left alone.
func TestSweepEndsTheStuck(t *testing.T) {
	var ahead atomic.Int64
	b := newBench(t, func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	mark := filepath.Join(t.TempDir(), "running")
	done := make(chan error)
	go func() {
		_, err := b.Run(t.Context(), bash("touch "+mark+"; sleep 1000"))
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	if err := b.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(sandboxes(t, b.mem)); n != 1 {
		t.Errorf("%d sandboxes after an early sweep", n)
	}
	ahead.Store(int64(time.Hour))
	if err := b.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the run was carried out")
	}
	if ids := sandboxes(t, b.mem); len(ids) > 0 {
		t.Errorf("left behind: %q", ids)
	}
}

// The sweep comes by itself.
func TestSweepLoop(t *testing.T) {
	b := newBench(t, func(o *Options) { o.SweepEvery = 10 * time.Millisecond })
	made(t, b.mem, "workspace-x", time.Now().Add(100*time.Millisecond), label("workspace", "server-1"))
	eventually(t, "the expired sandbox is gone", func() bool { return len(sandboxes(t, b.mem)) == 0 })
}

func TestRemovalIsRetried(t *testing.T) {
	b := newBench(t)
	b.mem.FailRemoves(2)
	if res := b.must(t, bash("echo done")); res.Stdout != "done\n" {
		t.Errorf("result: %+v", res)
	}
	eventually(t, "the sandbox is gone", func() bool { return len(sandboxes(t, b.mem)) == 0 })
}

// A removal that keeps failing is said at the end, blocks no other run, and
// is taken up by the next process.
func TestRemovalFails(t *testing.T) {
	mem := enginetest.NewMemory(t)
	var broken atomic.Bool
	broken.Store(true)
	b := newBenchOn(t, mem, func(o *Options) {
		o.Concurrency = 1
		o.Engine = &faultyEngine{Engine: mem, remove: func(ctx context.Context, id string) error {
			if broken.Load() {
				return errors.New("device or resource busy")
			}
			return mem.Remove(ctx, id)
		}}
	})
	for range 2 {
		b.must(t, bash("true"))
	}
	left := sandboxes(t, mem)
	err := b.Close(t.Context())
	if err == nil || len(left) != 2 || !strings.Contains(err.Error(), strings.Join(left, ", ")) {
		t.Errorf("%q are left, Close says %v", left, err)
	}
	broken.Store(false)
	if err := b.Sweep(t.Context()); err != nil || len(sandboxes(t, mem)) != 0 || len(b.left()) != 0 {
		t.Errorf("after a sweep: %v, %q", err, sandboxes(t, mem))
	}
}

// A creation that fails may have got halfway.
func TestFailedSetupLeavesNothing(t *testing.T) {
	mem := enginetest.NewMemory(t)
	secret := errors.New("mount /var/lib/secret: input/output error")
	b := newBenchOn(t, mem, func(o *Options) {
		o.Engine = &faultyEngine{Engine: mem, create: func(ctx context.Context, s engine.Spec) error {
			return errors.Join(mem.Create(ctx, s), secret)
		}}
	})
	_, err := b.Run(t.Context(), bash("true"))
	var refused *RequestError
	if !errors.Is(err, secret) || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	if err := b.Close(t.Context()); err != nil || len(sandboxes(t, mem)) != 0 {
		t.Errorf("%v; left %q", err, sandboxes(t, mem))
	}
}

func TestClose(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	mark, end := filepath.Join(dir, "running"), filepath.Join(dir, "end")
	done := make(chan error)
	go func() {
		res, err := b.Run(t.Context(), bash(fmt.Sprintf("touch %s; until [ -e %s ]; do sleep 0.01; done; echo ended", mark, end)))
		if err == nil && res.Stdout != "ended\n" {
			err = fmt.Errorf("result %+v", res)
		}
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	closed := make(chan error)
	go func() { closed <- b.Close(t.Context()) }()
	eventually(t, "no new runs are taken", func() bool {
		_, err := b.Run(t.Context(), bash("true"))
		return errors.Is(err, ErrClosed)
	})
	select {
	case err := <-closed:
		t.Errorf("Close did not wait for the run: %v", err)
	default:
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the run under way: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestCloseEndsRuns(t *testing.T) {
	b := newBench(t)
	mark := filepath.Join(t.TempDir(), "running")
	done := make(chan error)
	go func() {
		_, err := b.Run(t.Context(), bash("touch "+mark+"; sleep 1000"))
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the run was carried out")
	}
}
