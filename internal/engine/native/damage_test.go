package native

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
)

// TestRemoveWithoutWriting removes sandboxes whose records cannot be written,
// as on a full disk. Their layers are what fills it, so they must go.
func TestRemoveWithoutWriting(t *testing.T) {
	s := newSubject(t, options(t.TempDir(), ""))
	e := s.Engine.(*Engine)
	for _, id := range []string{"runs", "stands"} {
		if err := e.Create(t.Context(), engine.Spec{ID: id, Image: "busybox", Limits: enginetest.Limits()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Start(t.Context(), "runs"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"runs", "stands"} {
		// A directory in the place of the new record's file.
		if err := os.Mkdir(filepath.Join(e.sandboxDir(id), recordFile+".part"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := e.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestDamagedAgent opens an engine whose copy of the agent a power cut has
// emptied.
func TestDamagedAgent(t *testing.T) {
	needRoot(t)
	o := options(t.TempDir(), "")
	e, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Close(), os.Truncate(e.agent, 0)); err != nil {
		t.Fatal(err)
	}
	if e, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if data, err := os.ReadFile(e.agent); err != nil || !bytes.Equal(data, o.Agent) {
		t.Errorf("the agent has %d bytes, want %d; %v", len(data), len(o.Agent), err)
	}
}

// TestLeftoverGroup opens an engine where a group of an earlier process of it
// has a process in a group below.
func TestLeftoverGroup(t *testing.T) {
	s := newSubject(t, options(t.TempDir(), ""))
	e := s.Engine.(*Engine)
	parents := e.cg.dirs(e.group(""))
	if len(parents) == 0 {
		t.Skip("no cgroups")
	}
	group := filepath.Join(parents[0], "left")
	if err := os.MkdirAll(filepath.Join(group, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	stays := exec.Command("sleep", "60")
	if err := stays.Start(); err != nil {
		t.Fatal(err)
	}
	pid := []byte(strconv.Itoa(stays.Process.Pid))
	if err := os.WriteFile(filepath.Join(group, "below/cgroup.procs"), pid, 0o644); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stays.Wait() }()
	s.Engine = s.Reopen()
	select {
	case <-ended:
	case <-t.Context().Done():
		t.Error("the process in the group lives on")
	}
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group is still there: %v", err)
	}
}
