package enginetest

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// Limits are what the suite's sandboxes get: small, and all different.
func Limits() engine.Limits {
	return engine.Limits{Memory: 512 << 20, CPUs: 1.5, PIDs: 128, Tmp: 32 << 20, Disk: 64 << 20, Inodes: 4096}
}

func (s *Subject) spec(id string) engine.Spec {
	return engine.Spec{
		ID: id, Image: s.Image, Limits: Limits(),
		Labels:  map[string]string{"kind": "test", "id": id},
		Expires: time.Now().Add(time.Hour).Truncate(time.Second),
	}
}

// Start makes and starts a sandbox, to be removed when the test ends.
func (s *Subject) Start(t *testing.T, spec engine.Spec) {
	t.Helper()
	if err := s.Engine.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Engine.Remove(context.Background(), spec.ID); err != nil {
			t.Errorf("removing: %v", err)
		}
	})
	if err := s.Engine.Start(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
}

// Connect returns a client of a sandbox's agent.
func (s *Subject) Connect(t *testing.T, id string) *agent.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := s.Engine.Connect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.NewClient(conn)
	t.Cleanup(func() { c.Close() })
	return c
}

// ReadFile returns what a file of a sandbox holds.
func ReadFile(t *testing.T, c *agent.Client, path string) string {
	t.Helper()
	r, _, err := c.ReadFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var jobs struct {
	sync.Mutex
	n int
}

// Shell runs a shell command in a sandbox and returns its status.
func Shell(t *testing.T, c *agent.Client, command string) agent.JobStatus {
	t.Helper()
	jobs.Lock()
	jobs.n++
	id := fmt.Sprintf("shell-%d", jobs.n)
	jobs.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	spec := agent.JobSpec{ID: id, Argv: []string{"sh", "-c", command}, Timeout: 50 * time.Second, Keep: 64 << 10}
	if err := c.StartJob(ctx, spec); err != nil {
		t.Fatalf("starting %q: %v", command, err)
	}
	status, err := c.WaitJob(ctx, id)
	if err != nil {
		t.Fatalf("waiting for %q: %v", command, err)
	}
	return status
}

// Output runs a shell command that must succeed and returns what it printed.
func Output(t *testing.T, c *agent.Client, command string) string {
	t.Helper()
	s := Shell(t, c, command)
	if s.ExitCode != 0 {
		t.Fatalf("%q: exit code %d: %s%s", command, s.ExitCode, s.Stderr.Head, s.Error)
	}
	return string(s.Stdout.Head)
}
