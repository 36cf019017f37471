// Package enginetest is the engines' contract in executable form: a suite
// that every engine passes, and an engine in memory for tests of what stands
// above.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// Subject is an engine to test.
type Subject struct {
	Engine engine.Engine
	// Image names an image that has a shell, Absent one that does not exist.
	Image, Absent string
	// Reopen closes the engine and opens it again, as a restart of the server
	// does. Nil for an engine that keeps nothing.
	Reopen func() engine.Engine
}

// Run runs the suite. Each test gets a subject of its own.
func Run(t *testing.T, open func(t *testing.T) *Subject) {
	tests := []struct {
		name string
		f    func(t *testing.T, s *Subject)
	}{
		{"Life", testLife},
		{"Refusals", testRefusals},
		{"Unknown", testUnknown},
		{"Idempotence", testIdempotence},
		{"ListKeepsWhatWasAsked", testList},
		{"ConnectAgain", testConnectAgain},
		{"ConnectEnds", testConnectEnds},
		{"FilesSurviveStop", testFilesSurviveStop},
		{"Durable", testDurable},
		{"Rebase", testRebase},
		{"RemoveEndsJobs", testRemoveEndsJobs},
		{"Receipt", testReceipt},
		{"Claim", testClaim},
		{"SideBySide", testSideBySide},
		{"Reopen", testReopen},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.f(t, open(t)) })
	}
}

func (s *Subject) state(t *testing.T, id string) engine.State {
	t.Helper()
	all, err := s.Engine.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range all {
		if st.ID == id {
			return st.State
		}
	}
	return "absent"
}

func (s *Subject) wantState(t *testing.T, id string, want engine.State) {
	t.Helper()
	if got := s.state(t, id); got != want {
		t.Fatalf("state of %s: %s, want %s", id, got, want)
	}
}

func testLife(t *testing.T, s *Subject) {
	ctx := t.Context()
	s.wantState(t, "life", "absent")
	if err := s.Engine.Create(ctx, s.spec("life")); err != nil {
		t.Fatal(err)
	}
	s.wantState(t, "life", engine.Created)
	if err := s.Engine.Start(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	s.wantState(t, "life", engine.Running)
	c := s.Connect(t, "life")
	if h, err := c.Health(ctx); err != nil || h.Version != agent.Version {
		t.Errorf("health: %+v, %v", h, err)
	}
	if got := Output(t, c, "echo one two"); got != "one two\n" {
		t.Errorf("echo printed %q", got)
	}
	if err := s.Engine.Stop(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	s.wantState(t, "life", engine.Stopped)
	if err := s.Engine.Remove(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	s.wantState(t, "life", "absent")
}

func testRefusals(t *testing.T, s *Subject) {
	ctx := t.Context()
	for _, id := range []string{"", "-a", "A", "a/b", "..", "a b", strings.Repeat("a", 41)} {
		if err := s.Engine.Create(ctx, s.spec(id)); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
	none := s.spec("limitless")
	none.Limits.PIDs = 0
	if err := s.Engine.Create(ctx, none); err == nil || !strings.Contains(err.Error(), "pids") {
		t.Errorf("no limit of processes: %v, want an error that names it", err)
	}
	absent := s.spec("absent")
	absent.Image = s.Absent
	if err := s.Engine.Create(ctx, absent); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("absent image: %v, want ErrNoImage", err)
	}
	all, err := s.Engine.List(ctx)
	if err != nil || len(all) != 0 {
		t.Errorf("refused sandboxes left %v, %v", all, err)
	}
	// What was refused leaves the name free.
	s.Start(t, s.spec("absent"))
	if err := s.Engine.Create(ctx, s.spec("absent")); !errors.Is(err, engine.ErrExists) {
		t.Errorf("taken id: %v, want ErrExists", err)
	}
}

func testUnknown(t *testing.T, s *Subject) {
	ctx := t.Context()
	_, connectErr := s.Engine.Connect(ctx, "nobody")
	_, inspectErr := s.Engine.Inspect(ctx, "nobody")
	for what, err := range map[string]error{
		"start": s.Engine.Start(ctx, "nobody"), "stop": s.Engine.Stop(ctx, "nobody"),
		"claim":   s.Engine.Claim(ctx, "nobody", nil, time.Time{}),
		"connect": connectErr, "inspect": inspectErr,
	} {
		if !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", what, err)
		}
	}
	if err := s.Engine.Remove(ctx, "nobody"); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func testIdempotence(t *testing.T, s *Subject) {
	ctx := t.Context()
	s.Start(t, s.spec("twice"))
	for _, step := range []struct {
		name string
		f    func(context.Context, string) error
	}{
		{"start", s.Engine.Start}, {"stop", s.Engine.Stop}, {"stop", s.Engine.Stop},
		{"start", s.Engine.Start}, {"remove", s.Engine.Remove}, {"remove", s.Engine.Remove},
	} {
		if err := step.f(ctx, "twice"); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

func testList(t *testing.T, s *Subject) {
	ctx := t.Context()
	var want []engine.Status
	for _, id := range []string{"b", "a", "c"} {
		spec := s.spec(id)
		s.Start(t, spec)
		want = append(want, engine.Status{ID: id, State: engine.Running, Labels: spec.Labels, Image: spec.Image, Expires: spec.Expires})
	}
	slices.SortFunc(want, func(a, b engine.Status) int { return strings.Compare(a.ID, b.ID) })
	got, err := s.Engine.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if age := time.Since(got[i].Created); age < 0 || age > time.Minute {
			t.Errorf("%s was created %v ago", got[i].ID, age)
		}
		got[i].Created = time.Time{}
		if got[i].Digest == "" {
			t.Errorf("%s has no digest", got[i].ID)
		}
		got[i].Digest = ""
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
}

func testConnectAgain(t *testing.T, s *Subject) {
	s.Start(t, s.spec("again"))
	for range 3 {
		c := s.Connect(t, "again")
		if _, err := c.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	// A job outlives the stream on which it was started.
	c := s.Connect(t, "again")
	err := c.StartJob(t.Context(), agent.JobSpec{ID: "long", Argv: []string{"sleep", "1000"}, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	st, err := s.Connect(t, "again").Job(t.Context(), "long")
	if err != nil || st.State != agent.JobRunning {
		t.Errorf("after connecting again: %+v, %v", st, err)
	}
}

func testConnectEnds(t *testing.T, s *Subject) {
	ctx := t.Context()
	if err := s.Engine.Create(ctx, s.spec("ends")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Engine.Remove(context.Background(), "ends") })
	if _, err := s.Engine.Connect(ctx, "ends"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("created: %v, want ErrNotRunning", err)
	}
	if err := s.Engine.Start(ctx, "ends"); err != nil {
		t.Fatal(err)
	}
	c := s.Connect(t, "ends")
	// While a stream is open there is no second one.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if conn, err := s.Engine.Connect(short, "ends"); err == nil {
		conn.Close()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second stream: %v, want the context's error", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := s.Engine.Connect(ctx, "ends")
		waiting <- err
	}()
	if err := s.Engine.Stop(ctx, "ends"); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("stopped while waiting: %v, want ErrNotRunning", err)
	}
	if _, err := c.Health(ctx); err == nil {
		t.Error("the agent of a stopped sandbox answers")
	}
	if _, err := s.Engine.Inspect(ctx, "ends"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("inspecting a stopped one: %v, want ErrNotRunning", err)
	}
}

func testFilesSurviveStop(t *testing.T, s *Subject) {
	s.Start(t, s.spec("files"))
	c := s.Connect(t, "files")
	if err := c.WriteFile(t.Context(), agent.Workdir+"/deep/note", 0o644, strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, f := range []func(context.Context, string) error{s.Engine.Stop, s.Engine.Start} {
		if err := f(t.Context(), "files"); err != nil {
			t.Fatal(err)
		}
	}
	if got := Output(t, s.Connect(t, "files"), "cat deep/note"); got != "kept" {
		t.Errorf("after a stop the file holds %q", got)
	}
}

func testRemoveEndsJobs(t *testing.T, s *Subject) {
	s.Start(t, s.spec("busy"))
	c := s.Connect(t, "busy")
	if err := c.StartJob(t.Context(), agent.JobSpec{ID: "j", Argv: []string{"sleep", "1000"}, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := c.WaitJob(ctx, "j")
		waited <- err
	}()
	// Two removals at once: one does it, both succeed.
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := s.Engine.Remove(context.Background(), "busy"); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
	wg.Wait()
	s.wantState(t, "busy", "absent")
	if err := <-waited; errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a job of a removed sandbox: %v, want an error at once", err)
	}
}

func testReceipt(t *testing.T, s *Subject) {
	s.Start(t, s.spec("limits"))
	r, err := s.Engine.Inspect(t.Context(), "limits")
	if err != nil {
		t.Fatal(err)
	}
	asked := Limits()
	unenforced := s.Engine.Properties().Unenforced
	for name, c := range map[string]struct {
		got   engine.Limit
		asked float64
	}{
		"memory": {r.Memory, float64(asked.Memory)}, "cpus": {r.CPUs, asked.CPUs},
		"pids": {r.PIDs, float64(asked.PIDs)}, "tmp": {r.Tmp, float64(asked.Tmp)},
		"disk": {r.Disk, float64(asked.Disk)}, "inodes": {r.Inodes, float64(asked.Inodes)},
	} {
		switch _, excused := unenforced[name]; {
		case c.got.Enforced && (c.got.Value < c.asked*0.8 || c.got.Value > c.asked*1.01):
			t.Errorf("%s: %v is enforced, %v was asked", name, c.got.Value, c.asked)
		case !c.got.Enforced && !excused:
			t.Errorf("%s is not enforced, and Properties does not say so", name)
		case !c.got.Enforced && c.got.Note == "":
			t.Errorf("%s is not enforced, without a reason", name)
		}
	}
	if r.Network == "" {
		t.Error("the receipt does not say what the network is")
	}
}

func testClaim(t *testing.T, s *Subject) {
	ctx := t.Context()
	spec := s.spec("spare")
	spec.Spare = true
	s.Start(t, spec)
	c := s.Connect(t, "spare")
	labels, expires := map[string]string{"kind": "run", "subject": "me"}, time.Now().Add(time.Minute).Truncate(time.Second)
	if err := s.Engine.Claim(ctx, "spare", labels, expires); err != nil {
		t.Fatal(err)
	}
	want := func(state engine.State) {
		t.Helper()
		all, err := s.Engine.List(ctx)
		if err != nil || len(all) != 1 {
			t.Fatalf("list: %v, %v", all, err)
		}
		all[0].Created, all[0].Digest = time.Time{}, ""
		if d := cmp.Diff(engine.Status{ID: "spare", State: state, Labels: labels, Image: s.Image, Expires: expires}, all[0]); d != "" {
			t.Errorf("after the claim (-want +got):\n%s", d)
		}
	}
	want(engine.Running)
	if got := Output(t, c, "echo claimed"); got != "claimed\n" {
		t.Errorf("echo printed %q", got)
	}
	if s.Reopen != nil {
		c.Close()
		s.Engine = s.Reopen()
		want(engine.Running)
	}
	if err := s.Engine.Stop(ctx, "spare"); err != nil {
		t.Fatal(err)
	}
	if err := s.Engine.Claim(ctx, "spare", labels, expires); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("claiming a stopped one: %v, want ErrNotRunning", err)
	}
}

func testSideBySide(t *testing.T, s *Subject) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			id := fmt.Sprintf("side-%d", i)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := errors.Join(s.Engine.Create(ctx, s.spec(id)), s.Engine.Start(ctx, id)); err != nil {
				t.Error(err)
				return
			}
			conn, err := s.Engine.Connect(ctx, id)
			if err != nil {
				t.Error(err)
				return
			}
			c := agent.NewClient(conn)
			defer c.Close()
			if err := c.WriteFile(ctx, agent.Workdir+"/who", 0o644, strings.NewReader(id)); err != nil {
				t.Error(err)
			}
			list, err := c.List(ctx, agent.Workdir, 10)
			if err != nil || len(list.Files) != 1 {
				t.Errorf("%s sees %v, %v; want its own file alone", id, list.Files, err)
			}
			if err := s.Engine.Remove(ctx, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, err := s.Engine.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left over: %v, %v", all, err)
	}
}

// testReopen asks what a restart of the server asks: running sandboxes go on
// with their jobs, stopped ones are known.
func testReopen(t *testing.T, s *Subject) {
	if s.Reopen == nil {
		return
	}
	ctx := t.Context()
	s.Start(t, s.spec("runs"))
	s.Start(t, s.spec("stopped"))
	if err := s.Engine.Create(ctx, s.spec("created")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Engine.Remove(context.Background(), "created") })
	if err := s.Engine.Stop(ctx, "stopped"); err != nil {
		t.Fatal(err)
	}
	c := s.Connect(t, "runs")
	if err := c.StartJob(ctx, agent.JobSpec{ID: "j", Argv: []string{"sleep", "1000"}, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	c.Close() // as the end of a server does
	before, err := s.Engine.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Engine = s.Reopen()
	after, err := s.Engine.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("list after reopening (-before +after):\n%s", d)
	}
	st, err := s.Connect(t, "runs").Job(ctx, "j")
	if err != nil || st.State != agent.JobRunning {
		t.Errorf("the job after reopening: %+v, %v", st, err)
	}
	if _, err := s.Engine.Inspect(ctx, "runs"); err != nil {
		t.Errorf("inspecting after reopening: %v", err)
	}
	if err := s.Engine.Start(ctx, "created"); err != nil {
		t.Errorf("starting what was created before: %v", err)
	}
	if err := s.Engine.Start(ctx, "stopped"); err != nil {
		t.Errorf("starting what was stopped before: %v", err)
	}
}
