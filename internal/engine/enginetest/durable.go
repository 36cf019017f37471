package enginetest

import (
	"errors"
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

// testRebase gives a sandbox its image anew: /sandbox stays, and what it has
// changed elsewhere is as the image has it.
func testRebase(t *testing.T, s *Subject) {
	rebaser, ok := s.Engine.(engine.Rebaser)
	if !ok {
		return
	}
	ctx := t.Context()
	spec := s.spec("rebased")
	spec.Durable, spec.Limits.Tmp = true, 0
	s.Start(t, spec)
	c := s.Connect(t, spec.ID)
	kept, gone := agent.Workdir+"/kept", "/root/gone"
	for _, file := range []string{kept, gone} {
		if err := c.WriteFile(ctx, file, 0o644, strings.NewReader("text")); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if err := rebaser.Rebase(ctx, spec.ID, s.Image); !errors.Is(err, engine.ErrRunning) {
		t.Errorf("while it runs: %v, want ErrRunning", err)
	}
	if err := s.Engine.Stop(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := rebaser.Rebase(ctx, spec.ID, s.Absent); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("an absent image: %v, want ErrNoImage", err)
	}
	if err := rebaser.Rebase(ctx, spec.ID, s.Image); err != nil {
		t.Fatal(err)
	}
	if s.Reopen != nil { // what is to happen is on disk
		s.Engine = s.Reopen()
	}
	for round := range 2 {
		if err := s.Engine.Start(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		c = s.Connect(t, spec.ID)
		if got := ReadFile(t, c, kept); got != "text" {
			t.Errorf("%s holds %q", kept, got)
		}
		if _, _, err := c.ReadFile(ctx, gone); !errors.Is(err, agent.ErrNoFile) {
			t.Errorf("%s: %v, want ErrNoFile", gone, err)
		}
		if round > 0 { // it has happened once
			if got := ReadFile(t, c, "/root/new"); got != "new" {
				t.Errorf("what was written afterwards is %q", got)
			}
		}
		if err := c.WriteFile(ctx, "/root/new", 0o644, strings.NewReader("new")); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := s.Engine.Stop(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
	}
}
