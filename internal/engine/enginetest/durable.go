package enginetest

import (
	"fmt"
	"strings"
	"testing"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// testDurable stops and starts a sandbox that adds a line to a file each time,
// in each of the places that a workspace writes to.
func testDurable(t *testing.T, s *Subject) {
	ctx := t.Context()
	spec := s.spec("durable")
	spec.Durable, spec.Limits.Tmp = true, 0
	s.Start(t, spec)
	files := []string{agent.Workdir + "/log", "/root/log", "/tmp/log"}
	want := ""
	for round := range 4 {
		want += fmt.Sprintf("round %d\n", round)
		c := s.Connect(t, spec.ID)
		for _, file := range files {
			if err := c.WriteFile(ctx, file, 0o640, strings.NewReader(want)); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		if round == 2 && s.Reopen != nil {
			s.Engine = s.Reopen() // running or not, it is found as it was
			s.wantState(t, spec.ID, engine.Running)
		}
		if err := s.Engine.Stop(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		s.wantState(t, spec.ID, engine.Stopped)
		if round == 1 && s.Reopen != nil {
			s.Engine = s.Reopen()
			s.wantState(t, spec.ID, engine.Stopped)
		}
		if err := s.Engine.Start(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		c = s.Connect(t, spec.ID)
		for _, file := range files {
			if got := ReadFile(t, c, file); got != want {
				t.Fatalf("round %d: %s holds %q, want %q", round, file, got, want)
			}
		}
		c.Close()
	}
}
