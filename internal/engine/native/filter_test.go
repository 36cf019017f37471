package native

import (
	"bytes"
	"encoding/base64"
	"testing"

	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
)

// The first sandbox's filter is compiled by the runtime, later ones get it as
// it was read from the first. All have the same.
func TestFilterIsKept(t *testing.T) {
	needRoot(t)
	needRuntime(t, "crun")
	s := newSubject(t, options(t.TempDir(), "crun"))
	e := s.Engine.(*Engine)
	var first []byte
	for _, id := range []string{"one", "two", "three"} {
		if known := e.filter.known(); (known == "") != (id == "one") {
			t.Errorf("before %s a filter of %d bytes is known", id, len(known))
		}
		s.Start(t, engine.Spec{ID: id, Image: s.Image, Limits: enginetest.Limits()})
		b, err := e.find(id, "looking at")
		if err != nil {
			t.Fatal(err)
		}
		c := s.Connect(t, id)
		program, err := readFilter(b.process.pid)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = program
		}
		if len(program) < 1000 || !bytes.Equal(program, first) {
			t.Errorf("the filter of %s has %d bytes, that of the first %d", id, len(program), len(first))
		}
		// Joined from inside: the agent's jobs are held to it.
		if st := enginetest.Shell(t, c, "grep -q '^Seccomp:.*2$' /proc/self/status && ! unshare -U true"); st.ExitCode != 0 {
			t.Errorf("%s: a job is not held to the filter: %s", id, st.Stderr.Head)
		}
	}
	if kept, err := base64.StdEncoding.DecodeString(e.filter.known()); err != nil || !bytes.Equal(kept, first) {
		t.Errorf("%d bytes are kept, %v", len(kept), err)
	}
	if filtered(1) == nil {
		t.Error("a process without a filter passes for one with it")
	}
}

// Of a sandbox that an earlier process started nothing is learnt: it may have
// an older filter.
func TestFilterIsNotLearntOfAdoptedSandboxes(t *testing.T) {
	needRoot(t)
	needRuntime(t, "crun")
	s := newSubject(t, options(t.TempDir(), "crun"))
	s.Start(t, engine.Spec{ID: "old", Image: s.Image, Limits: enginetest.Limits()})
	s.Engine = s.Reopen()
	s.Connect(t, "old")
	e := s.Engine.(*Engine)
	if known := e.filter.known(); known != "" {
		t.Errorf("a filter of %d bytes was learnt", len(known))
	}
	s.Start(t, engine.Spec{ID: "new", Image: s.Image, Limits: enginetest.Limits()})
	s.Connect(t, "new")
	if e.filter.known() == "" {
		t.Error("of a new one nothing was learnt")
	}
}
