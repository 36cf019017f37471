package job_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/access"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/job"
	"belljar/internal/job/jobtest"
	"belljar/internal/sandbox"
)

// begin begins a command or a script, and waits until it has printed something.
func (f *fixture) begin(kind job.Kind, text string) string {
	f.t.Helper()
	var id string
	if kind == job.Script {
		id = f.run(text)
	} else {
		id = f.execute(job.CommandRequest{Command: text, Interactive: true}, notAtAll).ID
	}
	for end := time.Now().Add(30 * time.Second); ; {
		out, err := f.Output(f.context(), ada, id, "", time.Second)
		f.check(err)
		if out.Stdout != "" {
			return id
		}
		if time.Now().After(end) {
			f.t.Fatalf("job %s prints nothing", id)
		}
	}
}

// run begins a run of a script.
func (f *fixture) run(text string) string {
	f.t.Helper()
	reply, err := f.Run(f.context(), script(text), notAtAll)
	f.check(err)
	return reply.ID
}

func (f *fixture) state(id string) job.State {
	f.t.Helper()
	s, err := f.Inspect(f.context(), ada, id)
	f.check(err)
	return s
}

// ended waits for the end of a job and returns its state then.
func (f *fixture) ended(id string) job.State {
	f.t.Helper()
	// Whether it failed is part of its state.
	if r, err := f.Await(f.context(), ada, id, toTheEnd); err == nil && r.Status != job.Exited {
		f.t.Fatalf("job %s does not end: %+v", id, r)
	}
	return f.state(id)
}

func TestInspect(t *testing.T) {
	f := openOn(t, enginetest.NewMemory(t), &jobtest.Memory{}, func(o *options) { o.desk.Keep = time.Hour })
	id := f.begin(job.Command, "echo ready; read line; echo $line; exit 3")
	s := f.state(id)
	if s.ID != id || s.Status != job.Running || s.Progress == nil || s.Progress.Line != "ready" || s.Progress.Limit != time.Hour ||
		s.Reply != nil || !s.Ended.IsZero() || s.Kept.Sub(s.Begun) != 2*time.Hour {
		t.Errorf("while it runs: %+v", s)
	}
	_, err := f.Input(f.context(), ada, id, "more\n", true)
	f.check(err)
	s = f.ended(id)
	if s.Status != job.Exited || s.Progress != nil || s.Reply == nil || s.Reply.Command.ExitCode != 3 || s.Reply.Command.Stdout != "ready\nmore\n" ||
		s.Ended.Before(s.Begun) || s.Kept.Sub(s.Ended) != time.Hour || s.Refused != "" || s.Cancelled || s.Fault {
		t.Errorf("at its end: %+v", s)
	}
}

// Of another's job nobody learns anything, nor can they end it.
func TestInspectByStrangers(t *testing.T) {
	f := open(t)
	id := f.begin(job.Command, "echo ready; read line")
	for _, who := range []struct {
		subject access.Subject
		id      string
	}{{bob, id}, {ada, "job-nobody"}} {
		_, err := f.Inspect(f.context(), who.subject, who.id)
		refused(t, err, "there is no job")
		refused(t, f.Cancel(f.context(), who.subject, who.id), "there is no job")
	}
	if s := f.state(id); s.Status != job.Running {
		t.Errorf("another's request ended the job: %+v", s)
	}
}

func TestCancel(t *testing.T) {
	for _, kind := range []job.Kind{job.Command, job.Script} {
		t.Run(string(kind), func(t *testing.T) {
			f := open(t)
			id := f.begin(kind, "echo begun; sleep 1000")
			for range 2 { // the second has nothing to do, or not much
				f.check(f.Cancel(f.context(), ada, id))
			}
			s := f.ended(id)
			if !s.Cancelled || s.Status != job.Exited || s.Reply == nil {
				t.Fatalf("state: %+v", s)
			}
			// Who waits for the job gets its result as ever.
			if r, err := f.Await(f.context(), ada, id, toTheEnd); err != nil || r.Status != job.Exited {
				t.Errorf("waiting for it: %+v, %v", r, err)
			}
			if again := f.reopen().state(id); !again.Cancelled {
				t.Errorf("after a restart: %+v", again)
			}
		})
	}
}

// oneRun leaves room for one run at a time.
func oneRun(o *options) { o.runs.Concurrency = 1 }

// A script that waits for its place never begins.
func TestCancelBeforeTheBeginning(t *testing.T) {
	f := openOn(t, enginetest.NewMemory(t), &jobtest.Memory{}, oneRun)
	first := f.begin(job.Script, "echo begun; sleep 1000")
	id := f.run("echo never")
	f.check(f.Cancel(f.context(), ada, id))
	if s := f.ended(id); !s.Cancelled || s.Reply != nil || s.Refused == "" || s.Fault {
		t.Errorf("state: %+v", s)
	}
	if s := f.state(first); s.Status != job.Running {
		t.Errorf("the other: %+v", s)
	}
	f.check(f.Cancel(f.context(), ada, first)) // closing would wait for it
}

// What ends otherwise is not cancelled: by itself, or by Kill.
func TestNotCancelled(t *testing.T) {
	f := open(t)
	over := f.execute(job.CommandRequest{Command: "exit 4"}, toTheEnd).ID
	f.check(f.Cancel(f.context(), ada, over))
	killed := f.begin(job.Command, "echo begun; sleep 1000")
	_, err := f.Kill(f.context(), ada, killed, "")
	f.check(err)
	for id, code := range map[string]int{over: 4, killed: 137} {
		if s := f.ended(id); s.Cancelled || s.Reply == nil || s.Reply.Command.ExitCode != code {
			t.Errorf("want exit code %d: %+v", code, s)
		}
	}
}

// A restart of the server loses no job: a command goes on, and of a script,
// which cannot, it is said why.
func TestInspectAfterRestart(t *testing.T) {
	f := open(t)
	over := f.execute(job.CommandRequest{Command: "echo out; exit 5"}, toTheEnd).ID
	before := f.ended(over)
	runs := f.begin(job.Command, "echo ready; read line; echo $line")
	f.close()
	lost := job.Record{ID: "job-script", Subject: ada.ID, Kind: job.Script, Begun: time.Now()}
	f.check(f.store.AddJob(t.Context(), lost))

	f = f.reopen()
	if s := f.state(runs); s.Status != job.Running || s.Progress == nil {
		t.Errorf("what goes on: %+v", s)
	}
	_, err := f.Input(f.context(), ada, runs, "to its end\n", true)
	f.check(err)
	if s := f.ended(runs); s.Reply == nil || s.Reply.Command.Stdout != "ready\nto its end\n" || s.Reply.Command.ExitCode != 0 {
		t.Errorf("at its end: %+v", s)
	}
	if s := f.state(lost.ID); s.Status != job.Exited || s.Reply != nil || s.Refused == "" || s.Fault || s.Cancelled {
		t.Errorf("the script: %+v", s)
	}
	if d := cmp.Diff(before, f.state(over)); d != "" {
		t.Errorf("what was over before (-before +after):\n%s", d)
	}
}

func TestInspectForgotten(t *testing.T) {
	f := open(t)
	id := f.execute(job.CommandRequest{Command: "true"}, toTheEnd).ID
	kept := f.ended(id).Kept
	at := func(now time.Time) func(*options) {
		return func(o *options) { o.desk.Now = func() time.Time { return now } }
	}
	f = f.reopen(at(kept.Add(-time.Second)))
	f.state(id)
	f = f.reopen(at(kept.Add(time.Second)))
	for end := time.Now().Add(30 * time.Second); ; { // the sweep runs beside
		var r *sandbox.RequestError
		if _, err := f.Inspect(f.context(), ada, id); errors.As(err, &r) {
			return
		} else if time.Now().After(end) {
			t.Fatalf("still known: %v", err)
		}
	}
}

// faulty is an engine that makes no sandboxes while it is broken.
type faulty struct {
	*enginetest.Memory
	broken atomic.Bool
}

var errBroken = errors.New("the disk that sandboxes are on is gone")

func (e *faulty) Create(ctx context.Context, s engine.Spec) error {
	if e.broken.Load() {
		return errBroken
	}
	return e.Memory.Create(ctx, s)
}

// A fault of the server is told from what a caller could mend, and its details
// are for the log.
func TestFault(t *testing.T) {
	e := &faulty{Memory: enginetest.NewMemory(t)}
	f := openOn(t, e.Memory, &jobtest.Memory{}, oneRun, func(o *options) { o.runs.Engine = e })
	first := f.begin(job.Script, "echo begun; sleep 1000")
	id := f.run("echo never") // it waits for its place
	e.broken.Store(true)
	f.check(f.Cancel(f.context(), ada, first))
	s := f.ended(id)
	if !s.Fault || s.Reply != nil || !strings.Contains(s.Refused, id) || strings.Contains(s.Refused, errBroken.Error()) {
		t.Errorf("state: %+v", s)
	}
	if again := f.reopen().state(id); again.Refused != s.Refused || !again.Fault {
		t.Errorf("after a restart: %+v", again)
	}
}
