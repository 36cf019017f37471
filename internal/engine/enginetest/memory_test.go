package enginetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

func TestMain(m *testing.M) {
	agent.RunHelper()
	os.Exit(m.Run())
}

var limits = engine.Limits{Memory: 1 << 30, CPUs: 1.5, PIDs: 10, Tmp: 1, Disk: 1, Inodes: 1}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// started returns an engine with a running sandbox "s" and a client of it.
func started(t *testing.T) (*Memory, *agent.Client) {
	t.Helper()
	m := NewMemory(t)
	if err := m.Create(testContext(t), engine.Spec{ID: "s", Limits: limits}); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(testContext(t), "s"); err != nil {
		t.Fatal(err)
	}
	conn, err := m.Connect(testContext(t), "s")
	if err != nil {
		t.Fatal(err)
	}
	c := agent.NewClient(conn)
	t.Cleanup(func() { c.Close() })
	return m, c
}

func TestMemoryRunsScripts(t *testing.T) {
	_, c := started(t)
	ctx := testContext(t)
	if err := c.WriteFile(ctx, "/sandbox/script.sh", 0o644, strings.NewReader("pwd; echo $0; echo made > output/file")); err != nil {
		t.Fatal(err)
	}
	spec := agent.JobSpec{ID: "j", Argv: []string{"sh", "/sandbox/script.sh"}, Timeout: time.Minute, Keep: 1000}
	if err := c.StartJob(ctx, spec); err != nil {
		t.Fatal(err)
	}
	st, err := c.WaitJob(ctx, "j")
	if err != nil || st.ExitCode != 0 {
		t.Fatalf("got %+v, %v", st, err)
	}
	dir, script, _ := strings.Cut(strings.TrimSpace(string(st.Stdout.Head)), "\n")
	if filepath.Join(dir, "script.sh") != script || filepath.Base(dir) != "sandbox" {
		t.Errorf("ran %s in %s", script, dir)
	}
	l, err := c.List(ctx, "/sandbox/output", 10)
	if err != nil || len(l.Files) != 1 || string(l.Files[0].Path) != "file" {
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestMemoryHasOneStreamAtATime(t *testing.T) {
	m, c := started(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := m.Connect(ctx, "s"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second stream: %v", err)
	}
	waited := make(chan error)
	go func() {
		conn, err := m.Connect(testContext(t), "s")
		if err == nil {
			conn.Close()
		}
		waited <- err
	}()
	c.Close()
	if err := <-waited; err != nil {
		t.Errorf("a stream after the first: %v", err)
	}
	conn, err := m.Connect(testContext(t), "s")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, err := m.Connect(testContext(t), "s")
		waited <- err
	}()
	if err := m.Stop(testContext(t), "s"); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("waiting while the sandbox stops: %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		// The server's first frame may still be there; its end must follow.
		for err == nil {
			_, err = conn.Read(make([]byte, 100))
		}
	}
}

func TestMemoryOutlivesItsEngine(t *testing.T) {
	m, c := started(t)
	c.Close()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.List(testContext(t)); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	again := m.Reopen()
	list, err := again.List(testContext(t))
	if err != nil || len(list) != 1 || list[0].State != engine.Running {
		t.Fatalf("got %+v, %v", list, err)
	}
	r, err := again.Inspect(testContext(t), "s")
	if err != nil || r.CPUs.Value != 1.5 || r.CPUs.Enforced || r.CPUs.Note == "" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestMemoryFailsAsTold(t *testing.T) {
	m, _ := started(t)
	ctx := testContext(t)
	m.FailRemoves(1)
	if err := m.Remove(ctx, "s"); err == nil {
		t.Error("Remove did not fail")
	}
	if list, err := m.List(ctx); err != nil || len(list) != 1 || list[0].State != engine.Stopped {
		t.Errorf("got %+v, %v", list, err)
	}
	for range 2 {
		if err := m.Remove(ctx, "s"); err != nil {
			t.Error(err)
		}
	}
	m.SetImages("mini")
	if err := m.Create(ctx, engine.Spec{ID: "a", Image: "other", Limits: limits}); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("got %v, want ErrNoImage", err)
	}
	m.SetHostFull(&engine.HostFullError{What: "disk"})
	var full *engine.HostFullError
	if err := m.Create(ctx, engine.Spec{ID: "a", Image: "mini", Limits: limits}); !errors.As(err, &full) {
		t.Errorf("got %v, want a HostFullError", err)
	}
	m.SetHostFull(nil)
	for _, want := range []error{nil, engine.ErrExists} {
		if err := m.Create(ctx, engine.Spec{ID: "a", Image: "mini", Limits: limits}); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if _, err := m.Connect(ctx, "a"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("got %v, want ErrNotRunning", err)
	}
	if err := m.Start(ctx, "b"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}
