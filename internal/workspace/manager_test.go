package workspace

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/sandbox"
)

func TestMain(m *testing.M) {
	agent.RunHelper()
	os.Exit(m.Run())
}

var (
	ada = access.Subject{ID: "ada"}
	bob = access.Subject{ID: "bob"}
)

// clock is one that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type fixture struct {
	*Manager
	t      *testing.T
	engine *enginetest.Memory
	clock  *clock
}

const idleStop = time.Hour

func open(t *testing.T, e *enginetest.Memory) *fixture {
	t.Helper()
	f := &fixture{t: t, engine: e, clock: &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}
	var err error
	f.Manager, err = Open(t.Context(), Options{
		Engine: e, ServerID: "s", Image: func() string { return "mini" }, Max: 3, IdleStop: idleStop, Now: f.clock.Now,
		Limits: engine.Limits{Memory: 1 << 30, CPUs: 1, PIDs: 100, Disk: 1 << 30, Inodes: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// reopen is a restart of the server.
func (f *fixture) reopen() *fixture {
	f.t.Helper()
	f.Close()
	return open(f.t, f.engine.Reopen())
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) lease(s access.Subject, name string) *Lease {
	f.t.Helper()
	l, err := f.Lease(f.context(), s, name)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(l.Release)
	return l
}

// run runs a command to its end and returns what it prints.
func (f *fixture) run(l *Lease, id, command string) string {
	f.t.Helper()
	err := l.Agent().StartJob(f.context(), agent.JobSpec{ID: id, Argv: []string{"bash", "-c", command}, Timeout: time.Minute, Keep: 1 << 10})
	if err != nil {
		f.t.Fatal(err)
	}
	st, err := l.Agent().WaitJob(f.context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(st.Stdout.Head)
}

func (f *fixture) state(s access.Subject, name string) State {
	f.t.Helper()
	for _, w := range f.List(s) {
		if w.Name == name {
			return w.State
		}
	}
	return "none"
}

func (f *fixture) want(state State) {
	f.t.Helper()
	if got := f.state(ada, Default); got != state {
		f.t.Fatalf("the workspace is %s, want %s", got, state)
	}
}

// refused checks that an error is for the caller, and says some words.
func refused(t *testing.T, err error, words string) {
	t.Helper()
	var r *sandbox.RequestError
	if !errors.As(err, &r) || !strings.Contains(r.Message, words) {
		t.Errorf("error %v, want a refusal with %q", err, words)
	}
}

func TestFilesStay(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	l := f.lease(ada, "")
	id := l.ID()
	f.run(l, "write", "echo kept >note")
	l.Release()
	if _, err := f.Stop(f.context(), ada, Default, false); err != nil {
		t.Fatal(err)
	}
	f.want(Stopped)
	f = f.reopen()
	f.want(Stopped)
	l = f.lease(ada, Default)
	if got := f.run(l, "read", "cat note"); got != "kept\n" || l.ID() != id {
		t.Errorf("the note of %s holds %q in %s", id, got, l.ID())
	}
	f.want(Running)
}

// What runs goes on while the server does not, and is found again.
func TestRestartFindsJobs(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	l := f.lease(ada, "")
	spec := agent.JobSpec{ID: "long", Argv: []string{"bash", "-c", "read line; echo got $line"}, Input: true, Timeout: time.Minute, Keep: 100}
	if err := l.Agent().StartJob(f.context(), spec); err != nil {
		t.Fatal(err)
	}
	f = f.reopen()
	l, err := f.Attach(f.context(), l.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if _, err := l.Agent().WriteInput(f.context(), "long", []byte("it\n"), true); err != nil {
		t.Fatal(err)
	}
	st, err := l.Agent().WaitJob(f.context(), "long")
	if err != nil || string(st.Stdout.Head) != "got it\n" {
		t.Errorf("the job printed %q, %v", st.Stdout.Head, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	var wg sync.WaitGroup
	ids := make(chan string, 20)
	for i := range 20 {
		wg.Go(func() {
			name := ""
			if i%2 == 1 {
				name = Default
			}
			l, err := f.Lease(f.context(), ada, name)
			if err != nil {
				t.Error(err)
				return
			}
			ids <- l.ID()
			l.Release()
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Errorf("two workspaces, %s and %s", first, id)
		}
	}
	// Stopping and starting at the same time: each call gets what it asks for,
	// or is told why not.
	for i := range 20 {
		wg.Go(func() {
			if i%2 == 0 {
				if l, err := f.Lease(f.context(), ada, ""); err != nil {
					t.Error(err)
				} else {
					l.Release()
				}
			} else if _, err := f.Stop(f.context(), ada, "", true); err != nil {
				refused(t, err, "try again")
			}
		})
	}
	wg.Wait()
	f.run(f.lease(ada, ""), "after", "true")
}

func TestIdleStop(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	stillRuns := func(why string) {
		t.Helper()
		f.StopIdle()
		if got := f.state(ada, Default); got != Running {
			t.Fatalf("%s: the workspace is %s", why, got)
		}
	}
	l := f.lease(ada, "")
	f.clock.pass(2 * idleStop)
	stillRuns("somebody works in it")
	l.Release()
	f.clock.pass(idleStop / 2)
	stillRuns("somebody has just worked in it")

	l = f.lease(ada, "")
	f.run(l, "leaves", "setsid nohup bash -c 'until [ -e stop ]; do sleep 0.05; done' >/dev/null 2>&1 & echo")
	l.Release()
	f.clock.pass(2 * idleStop)
	stillRuns("a process was left behind")

	l = f.lease(ada, "")
	f.run(l, "stops", "touch stop")
	for busy := 1; busy > 0; {
		h, err := l.Agent().Health(f.context())
		if err != nil {
			t.Fatal(err)
		}
		busy = h.Busy
	}
	l.Release()
	f.clock.pass(2 * idleStop)
	f.StopIdle()
	f.want(Stopped)
	f.run(f.lease(ada, ""), "again", "true")
}

func TestStopRefused(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	l := f.lease(ada, "")
	if err := l.Agent().StartJob(f.context(), agent.JobSpec{ID: "long", Argv: []string{"sleep", "1000"}, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, err := f.Stop(f.context(), ada, "", false)
	refused(t, err, "jobs have processes running in the sandbox \"default\" (1 of them)")
	refused(t, f.Delete(f.context(), ada, "", false), "jobs have processes running in the sandbox \"default\" (1 of them)")
	f.want(Running)
	if _, err := f.Stop(f.context(), ada, "", true); err != nil {
		t.Fatal(err)
	}
	f.want(Stopped)
	if _, err := f.Attach(f.context(), l.ID()); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("attaching to a stopped one: %v, want ErrNotRunning", err)
	}
}

// A workspace whose processes have all ended is stopped, and starts again.
func TestEndsByItself(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	l := f.lease(ada, "")
	if err := f.engine.Stop(f.context(), l.ID()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Broken():
	case <-f.context().Done():
		t.Fatal("the lease does not tell")
	}
	l.Release()
	f.run(f.lease(ada, ""), "again", "true")
	f.want(Running)
}

func TestNames(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	ctx := f.context()
	for _, name := range []string{"", "A", "-x", "a b", "../x", strings.Repeat("a", 41)} {
		_, err := f.Create(ctx, ada, name, "")
		refused(t, err, "want 1 to 40 of")
	}
	for _, name := range []string{"thesis", "web_app-2"} {
		if w, err := f.Create(ctx, ada, name, ""); err != nil || w.State != Stopped || w.Image != "mini" {
			t.Errorf("made %+v, %v", w, err)
		}
	}
	_, err := f.Create(ctx, ada, "thesis", "")
	refused(t, err, `a sandbox "thesis" exists already`)
	_, err = f.Lease(ctx, ada, "thesys")
	refused(t, err, `there is no sandbox "thesys"; there are: thesis, web_app-2`)
	f.lease(ada, "") // the third
	_, err = f.Create(ctx, ada, "more", "")
	refused(t, err, "there are 3 sandboxes, and no more are allowed")

	// Another subject's are no concern of his.
	_, err = f.Lease(ctx, bob, "thesis")
	refused(t, err, `there is no sandbox "thesis"; the first command makes`)
	if list := f.List(bob); len(list) != 0 {
		t.Errorf("he sees %v", list)
	}
	refused(t, f.Delete(ctx, bob, "thesis", true), "there is no sandbox")

	if err := f.Delete(ctx, ada, "thesis", false); err != nil {
		t.Fatal(err)
	}
	if got := f.state(ada, "thesis"); got != "none" {
		t.Errorf("the deleted one is %s", got)
	}
	if _, err := f.Create(ctx, ada, "thesis", ""); err != nil {
		t.Errorf("the name is not free: %v", err)
	}
}

func TestDeleteAgain(t *testing.T) {
	f := open(t, enginetest.NewMemory(t))
	f.lease(ada, "").Release()
	f.engine.FailRemoves(1)
	if err := f.Delete(f.context(), ada, "", false); err == nil {
		t.Fatal("a removal that failed was none")
	}
	_, err := f.Lease(f.context(), ada, "")
	refused(t, err, "is being deleted")
	if err := f.Delete(f.context(), ada, "", false); err != nil {
		t.Fatal(err)
	}
	f.lease(ada, "") // a new one
}

func TestNoImage(t *testing.T) {
	e := enginetest.NewMemory(t)
	e.SetImages("other")
	f := open(t, e)
	_, err := f.Lease(f.context(), ada, "")
	refused(t, err, `the image "mini" is not there yet`)
	if list := f.List(ada); len(list) != 0 {
		t.Errorf("what could not be made is there: %v", list)
	}
	e.SetImages("mini")
	f.lease(ada, "")
}

// Old entries of /sandbox go, and whoever works there next is told.
func TestFilesExpire(t *testing.T) {
	e := enginetest.NewMemory(t)
	f := open(t, e)
	f.Manager.o.FileTTL = 50 * time.Millisecond // of real time: files have no other
	l := f.lease(ada, "")
	f.run(l, "make", "mkdir old; touch old/file; until [ $(find old -mmin +0.002 | wc -l) = 2 ]; do sleep 0.05; done; touch -d '+1 day' new")
	f.clock.pass(2 * sweepEvery)
	for _, b := range f.all() {
		b.expireFiles()
	}
	if got := f.run(l, "list", "ls"); strings.Contains(got, "old") || !strings.Contains(got, "new") {
		t.Errorf("what is left: %q", got)
	}
	notes := l.Notes()
	if len(notes) != 1 || !strings.Contains(notes[0], "deleted from /sandbox") || !strings.Contains(notes[0], "old") {
		t.Errorf("notes: %q", notes)
	}
	if again := l.Notes(); len(again) != 0 {
		t.Errorf("told again: %q", again)
	}
}

func TestRebuild(t *testing.T) {
	e := enginetest.NewMemory(t)
	e.SetImages("mini", "newer")
	f := open(t, e)
	l := f.lease(ada, "")
	f.run(l, "write", "echo kept >note")
	if err := l.Agent().WriteFile(f.context(), "/root/gone", 0o644, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	_, err := f.Rebuild(f.context(), ada, "", "", false)
	refused(t, err, "somebody works in the sandbox")
	l.Release()
	_, err = f.Rebuild(f.context(), ada, "", "missing", false)
	refused(t, err, `the image "missing" is not there yet`)
	w, err := f.Rebuild(f.context(), ada, "", "newer", false)
	if err != nil || w.Image != "newer" || w.State != Stopped {
		t.Fatalf("rebuilt %+v, %v", w, err)
	}
	l = f.lease(ada, "")
	if got := f.run(l, "read", "cat note"); got != "kept\n" {
		t.Errorf("the note holds %q", got)
	}
	if _, _, err := l.Agent().ReadFile(f.context(), "/root/gone"); !errors.Is(err, agent.ErrNoFile) {
		t.Errorf("what was beside /sandbox: %v", err)
	}
	_, err = f.Rebuild(f.context(), bob, "", "", false)
	refused(t, err, "there is no sandbox")
}
