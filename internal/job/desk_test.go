package job_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/job"
	"belljar/internal/job/jobtest"
	"belljar/internal/lang"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"
)

func TestMain(m *testing.M) {
	agent.RunHelper()
	os.Exit(m.Run())
}

var (
	ada = access.Subject{ID: "ada"}
	bob = access.Subject{ID: "bob"}
)

// fixture is a desk with all that it stands on.
type fixture struct {
	*job.Desk
	t          *testing.T
	engine     *enginetest.Memory
	store      *jobtest.Memory
	runs       *sandbox.Manager
	workspaces *workspace.Manager
}

func open(t *testing.T) *fixture {
	return openOn(t, enginetest.NewMemory(t), &jobtest.Memory{})
}

// options are those of what a desk stands on, and its own.
type options struct {
	runs sandbox.Options
	desk job.Options
}

func openOn(t *testing.T, e *enginetest.Memory, store *jobtest.Memory, change ...func(*options)) *fixture {
	t.Helper()
	f := &fixture{t: t, engine: e, store: store}
	table, err := lang.Load()
	f.check(err)
	files, err := artifact.Open(t.Context(), indextest.NewMemory(), artifact.Options{Dir: t.TempDir(), BaseURL: "http://host"})
	f.check(err)
	t.Cleanup(func() { files.Close() })
	limits := engine.Limits{Memory: 1 << 30, CPUs: 1, PIDs: 100, Tmp: 1 << 20, Disk: 1 << 30, Inodes: 1000}
	o := options{
		runs: sandbox.Options{Engine: e, Store: files, Table: table, ServerID: "s", Image: "mini", Limits: limits},
		desk: job.Options{Store: store, MaxOutput: 2000, LogBytes: 1 << 20, MaxTimeout: 2 * time.Hour},
	}
	for _, c := range change {
		c(&o)
	}
	f.runs, err = sandbox.New(o.runs)
	f.check(err)
	f.check(f.runs.Start(t.Context()))
	f.workspaces, err = workspace.Open(t.Context(), workspace.Options{
		Engine: e, ServerID: "s", Image: func() string { return "mini" }, Limits: limits,
	})
	f.check(err)
	o.desk.Runs, o.desk.Workspaces = f.runs, f.workspaces
	f.Desk, err = job.Open(t.Context(), o.desk)
	f.check(err)
	t.Cleanup(f.close)
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// close ends the desk as the program does.
func (f *fixture) close() {
	f.runs.Close(context.Background())
	f.Desk.Close()
	f.workspaces.Close()
}

// reopen is a restart of the server.
func (f *fixture) reopen(change ...func(*options)) *fixture {
	f.t.Helper()
	f.close()
	return openOn(f.t, f.engine.Reopen(), f.store, change...)
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

var (
	toTheEnd = job.Wait{For: time.Minute}
	notAtAll = job.Wait{}
)

// execute begins a command and waits as w says.
func (f *fixture) execute(r job.CommandRequest, w job.Wait) job.Reply {
	f.t.Helper()
	r.Subject = ada
	reply, err := f.Execute(f.context(), r, w)
	f.check(err)
	return reply
}

// root is where the workspace's root directory is on the host.
func (f *fixture) root() string {
	f.t.Helper()
	list := f.workspaces.List(ada)
	if len(list) != 1 {
		f.t.Fatalf("workspaces: %v", list)
	}
	return f.engine.Root(list[0].ID)
}

func refused(t *testing.T, err error, words string) {
	t.Helper()
	var r *sandbox.RequestError
	if !errors.As(err, &r) || !strings.Contains(r.Message, words) {
		t.Errorf("error %v, want a refusal with %q", err, words)
	}
}

func TestExecute(t *testing.T) {
	f := open(t)
	in := "from stdin"
	for name, tc := range map[string]struct {
		request job.CommandRequest
		code    int
		stdout  string
	}{
		"output and code": {job.CommandRequest{Command: "echo one; echo two >&2; exit 3"}, 3, "one\n"},
		"no input":        {job.CommandRequest{Command: "cat; readlink /proc/self/fd/0"}, 0, "/dev/null\n"},
		"input":           {job.CommandRequest{Command: "cat", Stdin: &in}, 0, in},
		"environment":     {job.CommandRequest{Command: "echo $A $SHELL $PIP_BREAK_SYSTEM_PACKAGES", Env: map[string]string{"A": "b=c d"}}, 0, "b=c d /bin/bash 1\n"},
		"long command":    {job.CommandRequest{Command: ": " + strings.Repeat("x", 200<<10) + "\necho end"}, 0, "end\n"},
		"no such dir":     {job.CommandRequest{Command: "pwd", Dir: "not/there"}, 126, ""},
		"a signal":        {job.CommandRequest{Command: "kill -TERM $$"}, 143, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := f.execute(tc.request, toTheEnd)
			if r.Status != job.Exited || r.Command.ExitCode != tc.code || r.Command.Stdout != tc.stdout {
				t.Errorf("got %+v", r.Command)
			}
			if tc.code > 100 && r.Command.Error == "" {
				t.Errorf("no word about why: %+v", r.Command)
			}
		})
	}
}

func TestExecuteRefused(t *testing.T) {
	f := open(t)
	for words, r := range map[string]job.CommandRequest{
		"the command is empty":           {Command: " \n"},
		"the command holds a NUL":        {Command: "a\x00b"},
		"must be positive":               {Command: "a", Timeout: -time.Second},
		"the maximum is 7200 s":          {Command: "a", Timeout: 3 * time.Hour},
		"cannot be a variable's name":    {Command: "a", Env: map[string]string{"A=B": ""}},
		"variables in env":               {Command: "a", Env: many(300)},
		`there is no sandbox "elsewhere`: {Command: "a", Sandbox: "elsewhere"},
		"write it to a file":             {Command: strings.Repeat("a", 2<<20)},
	} {
		r.Subject = ada
		_, err := f.Execute(f.context(), r, toTheEnd)
		refused(t, err, words)
	}
	if list, err := f.List(f.context(), ada); err != nil || len(list) != 0 {
		t.Errorf("what was refused is listed: %v, %v", list, err)
	}
}

func many(n int) map[string]string {
	env := map[string]string{}
	for i := range n {
		env[fmt.Sprintf("V%d", i)] = ""
	}
	return env
}

// Of long output the middle is cut, and all of it is where the result says.
func TestLongOutput(t *testing.T) {
	f := open(t)
	r := f.execute(job.CommandRequest{Command: "seq 10000"}, toTheEnd).Command
	if len(r.Stdout) > 2200 || !strings.HasPrefix(r.Stdout, "1\n2\n") || !strings.HasSuffix(r.Stdout, "9999\n10000\n") || !strings.Contains(r.Stdout, "bytes dropped ...]") {
		t.Errorf("stdout: %q", r.Stdout)
	}
	if len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], "all 48894 bytes of stdout are in the sandbox, in /belljar/log/") {
		t.Fatalf("notes: %q", r.Notes)
	}
	name := r.Notes[0][strings.Index(r.Notes[0], "/belljar"):]
	if data, err := os.ReadFile(filepath.Join(f.root(), name)); err != nil || len(data) != 48894 {
		t.Errorf("the log has %d bytes, %v", len(data), err)
	}
}

func TestTimeout(t *testing.T) {
	f := open(t)
	r := f.execute(job.CommandRequest{Command: "setsid sleep 1000 & echo $! >pid; echo begun; sleep 1000", Timeout: time.Second}, toTheEnd).Command
	if !r.TimedOut || r.ExitCode != 124 || r.Stdout != "begun\n" || !strings.Contains(r.Error, "timed out after 1 s") {
		t.Errorf("got %+v", r)
	}
	if got := f.execute(job.CommandRequest{Command: "kill -0 $(cat pid) 2>/dev/null && echo lives"}, toTheEnd).Command.Stdout; got != "" {
		t.Error("what the command had started lives on")
	}
}

// A job goes on when the wait is over; other calls look after it.
func TestJob(t *testing.T) {
	f := open(t)
	ctx := f.context()
	reply := f.execute(job.CommandRequest{Command: "echo ready; while read line; do echo got $line; done; exit 5", Interactive: true}, notAtAll)
	if reply.Status != job.Running || reply.ID == "" || !reply.Interactive {
		t.Fatalf("began with %+v", reply)
	}
	id, cursor := reply.ID, ""
	next := func(want string) {
		t.Helper()
		out, err := f.Output(ctx, ada, id, cursor, 20*time.Second)
		if err != nil || out.Stdout != want || out.Missing != 0 || out.More {
			t.Fatalf("output %+v, %v, want %q", out, err, want)
		}
		cursor = out.Cursor
	}
	next("ready\n")
	for _, word := range []string{"one", "zwölf"} {
		if n, err := f.Input(ctx, ada, id, word+"\n", false); err != nil || n != int64(len(word)+1) {
			t.Fatalf("%d bytes taken, %v", n, err)
		}
		next("got " + word + "\n")
	}
	list, err := f.List(ctx, ada)
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Status != job.Running || list[0].Sandbox != "default" {
		t.Errorf("list: %+v, %v", list, err)
	}
	again, err := f.Await(ctx, ada, id, notAtAll)
	if err != nil || again.Status != job.Running || again.Stdout != "ready\ngot one\ngot zwölf\n" {
		t.Errorf("so far: %+v, %v", again, err)
	}
	if _, err := f.Input(ctx, ada, id, "", true); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as it ends, and later from its record
		end, err := f.Await(ctx, ada, id, toTheEnd)
		if err != nil || end.Status != job.Exited || end.Command.ExitCode != 5 || !strings.HasSuffix(end.Command.Stdout, "got zwölf\n") {
			t.Fatalf("end: %+v, %v", end, err)
		}
	}
	_, err = f.Input(ctx, ada, id, "x", false)
	refused(t, err, "the job is over")
	if out, err := f.Output(ctx, ada, id, "", 0); err != nil || out.Status != job.Exited || !strings.HasPrefix(out.Stdout, "ready\n") {
		t.Errorf("output of an ended one: %+v, %v", out, err)
	}
	_, err = f.Output(ctx, ada, id, "nonsense!", 0)
	refused(t, err, "is no cursor")
}

// Another subject's job is answered exactly as one that does not exist.
func TestStrangers(t *testing.T) {
	f := open(t)
	ctx := f.context()
	id := f.execute(job.CommandRequest{Command: "sleep 1000"}, notAtAll).ID
	for _, id := range []string{id, "job-nobody"} {
		_, awaitErr := f.Await(ctx, bob, id, notAtAll)
		_, outputErr := f.Output(ctx, bob, id, "", 0)
		_, inputErr := f.Input(ctx, bob, id, "x", false)
		_, killErr := f.Kill(ctx, bob, id, "")
		for _, err := range []error{awaitErr, outputErr, inputErr, killErr} {
			refused(t, err, fmt.Sprintf("there is no job %q (any more)", id))
		}
	}
	if list, err := f.List(ctx, bob); err != nil || len(list) != 0 {
		t.Errorf("he sees %v, %v", list, err)
	}
}

func TestKill(t *testing.T) {
	f := open(t)
	ctx := f.context()
	trap := f.execute(job.CommandRequest{Command: "trap 'echo told; exit 9' USR1; echo ready; while :; do sleep 0.05; done"}, notAtAll).ID
	if _, err := f.Output(ctx, ada, trap, "", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	_, err := f.Kill(ctx, ada, trap, "sigfoo")
	refused(t, err, "want a name such as TERM")
	if _, err := f.Kill(ctx, ada, trap, "usr1"); err != nil {
		t.Fatal(err)
	}
	if r, err := f.Await(ctx, ada, trap, toTheEnd); err != nil || r.Command.ExitCode != 9 || r.Command.Stdout != "ready\ntold\n" {
		t.Errorf("after USR1: %+v, %v", r.Command, err)
	}
	deaf := f.execute(job.CommandRequest{Command: "trap '' TERM; setsid sleep 1000 & sleep 1000"}, notAtAll).ID
	r, err := f.Kill(ctx, ada, deaf, "")
	if err != nil || r.Status != job.Exited || r.Command.ExitCode != 137 {
		t.Errorf("after KILL: %+v, %v", r, err)
	}
}

// No disconnect ends a command.
// hasty is a store that tells of a job before it is begun.
type hasty struct {
	job.Store
	added func(id string)
}

func (h *hasty) AddJob(ctx context.Context, r job.Record) error {
	err := h.Store.AddJob(ctx, r)
	h.added(r.ID)
	return err
}

// A list names a job from before it is begun, so it can be asked for by then.
func TestAskedWhileBegun(t *testing.T) {
	store := &hasty{Store: &jobtest.Memory{}}
	f := openOn(t, enginetest.NewMemory(t), &jobtest.Memory{}, func(o *options) { o.desk.Store = store })
	asked := 0
	store.added = func(id string) {
		asked++
		if _, err := f.Output(f.context(), ada, id, "", 0); err == nil {
			t.Error("the output of what has not begun was read")
		}
		if _, err := f.Kill(f.context(), ada, id, "INT"); err == nil {
			t.Error("what has not begun was signalled")
		}
		if s, err := f.Inspect(f.context(), ada, id); err != nil || s.Status != job.Running {
			t.Errorf("%+v, %v", s, err)
		}
	}
	reply := f.execute(job.CommandRequest{Command: "echo done"}, toTheEnd)
	if asked != 1 || reply.Command == nil || reply.Command.Stdout != "done\n" {
		t.Errorf("asked %d times, then %+v", asked, reply)
	}
}

func TestDisconnect(t *testing.T) {
	f := open(t)
	ctx, cancel := context.WithCancel(f.context())
	told := func(job.Progress) { cancel() }
	_, err := f.Execute(ctx, job.CommandRequest{Subject: ada, Command: "until [ -e go ]; do sleep 0.05; done; echo done"},
		job.Wait{For: time.Minute, Every: 10 * time.Millisecond, Tell: told})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the call's error: %v", err)
	}
	list, err := f.List(f.context(), ada)
	if err != nil || len(list) != 1 || list[0].Status != job.Running {
		t.Fatalf("list: %+v, %v", list, err)
	}
	f.execute(job.CommandRequest{Command: "touch go"}, toTheEnd)
	if r, err := f.Await(f.context(), ada, list[0].ID, toTheEnd); err != nil || r.Command.Stdout != "done\n" {
		t.Errorf("end: %+v, %v", r.Command, err)
	}
}

func TestProgress(t *testing.T) {
	f := open(t)
	told := make(chan job.Progress, 100)
	f.execute(job.CommandRequest{Command: "echo first; printf '10%%\\r20%%\\r'; until [ -e go ]; do sleep 0.05; done", Timeout: time.Minute}, job.Wait{
		For: time.Minute, Every: 20 * time.Millisecond, Tell: func(p job.Progress) {
			told <- p
			if p.Line == "20%" { // of the line that is written over, the latest
				f.execute(job.CommandRequest{Command: "touch go"}, toTheEnd)
			}
		},
	})
	if p := <-told; p.Limit != time.Minute || p.Elapsed <= 0 {
		t.Errorf("told %+v", p)
	}
}

// A restart of the server loses neither a job that runs nor one that ends
// meanwhile.
func TestRestart(t *testing.T) {
	f := open(t)
	long := f.execute(job.CommandRequest{Command: "echo begun; until [ -e go ]; do sleep 0.05; done; seq 3; exit 4"}, notAtAll).ID
	short := f.execute(job.CommandRequest{Command: "until [ -e go ]; do sleep 0.05; done; echo short"}, notAtAll).ID
	f.close()
	// The agent lives on; what it is told to do now happens without a server.
	f.check(os.WriteFile(filepath.Join(f.root(), "sandbox", "go"), nil, 0o644))
	f = f.reopen()
	if r, err := f.Await(f.context(), ada, long, toTheEnd); err != nil || r.Status != job.Exited || r.Command.ExitCode != 4 || r.Command.Stdout != "begun\n1\n2\n3\n" {
		t.Errorf("the long one: %+v, %v", r.Command, err)
	}
	if r, err := f.Await(f.context(), ada, short, toTheEnd); err != nil || r.Command.Stdout != "short\n" {
		t.Errorf("the short one: %+v, %v", r.Command, err)
	}
}

// A command whose sandbox is stopped is over, and says why.
func TestLost(t *testing.T) {
	f := open(t)
	id := f.execute(job.CommandRequest{Command: "echo begun; sleep 1000"}, notAtAll).ID
	if _, err := f.workspaces.Stop(f.context(), ada, "", true); err != nil {
		t.Fatal(err)
	}
	r, err := f.Await(f.context(), ada, id, toTheEnd)
	if err != nil || r.Status != job.Exited || r.Command.ExitCode == 0 || !strings.Contains(r.Command.Error, "was stopped") {
		t.Errorf("end: %+v, %v", r.Command, err)
	}
}

// Whoever waits for a command when the server is about to end learns that it
// goes on.
func TestDrain(t *testing.T) {
	f := open(t)
	begun := make(chan struct{}, 100)
	go func() {
		<-begun
		f.Drain()
	}()
	reply, err := f.Execute(f.context(), job.CommandRequest{Subject: ada, Command: "sleep 1000"},
		job.Wait{For: time.Hour, Every: time.Millisecond, Tell: func(job.Progress) { begun <- struct{}{} }})
	if err != nil || reply.Status != job.Running {
		t.Errorf("%+v, %v", reply, err)
	}
}

func script(text string) sandbox.Request {
	return sandbox.Request{Subject: ada, Runtime: "bash", Script: text}
}

func TestScript(t *testing.T) {
	f := open(t)
	ctx := f.context()
	if r, err := f.Run(ctx, script("echo hi"), toTheEnd); err != nil || r.Status != job.Exited || r.Script.Stdout != "hi\n" {
		t.Errorf("a short one: %+v, %v", r, err)
	}
	if list, err := f.List(ctx, ada); err != nil || len(list) != 0 {
		t.Errorf("a run that nobody needs to find is listed: %v, %v", list, err)
	}
	r, err := f.Run(ctx, script("echo begun; sleep 0.5; echo x >output/file"), job.Wait{For: 100 * time.Millisecond})
	if err != nil || r.Status != job.Running {
		t.Fatalf("a long one: %+v, %v", r, err)
	}
	_, err = f.Input(ctx, ada, r.ID, "x", false)
	refused(t, err, "nothing can be added")
	for range 2 {
		end, err := f.Await(ctx, ada, r.ID, toTheEnd)
		if err != nil || end.Status != job.Exited || end.Script.Stdout != "begun\n" || len(end.Script.OutputFiles) != 1 {
			t.Fatalf("end: %+v, %v", end.Script, err)
		}
	}
	_, err = f.Run(ctx, sandbox.Request{Subject: ada, Runtime: "cobol", Script: "x"}, toTheEnd)
	refused(t, err, "unknown runtime")
}

// A run that nobody waits for any more, and nobody knows, is ended; one that was
// answered with its identifier goes on.
func TestScriptDisconnect(t *testing.T) {
	f := open(t)
	ctx, cancel := context.WithCancel(f.context())
	_, err := f.Run(ctx, script("sleep 1000"), job.Wait{For: time.Minute, Every: time.Millisecond, Tell: func(job.Progress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the call's error: %v", err)
	}
	r, err := f.Run(f.context(), script("echo begun; sleep 1000"), job.Wait{For: time.Millisecond})
	if err != nil || r.Status != job.Running {
		t.Fatalf("%+v, %v", r, err)
	}
	for out := (job.Output{}); out.Stdout != "begun\n"; {
		if out, err = f.Output(f.context(), ada, r.ID, "", time.Second); err != nil {
			t.Fatal(err)
		}
	}
	end, err := f.Kill(f.context(), ada, r.ID, "")
	if err != nil || end.Status != job.Exited || end.Script.ReturnCode != 137 {
		t.Errorf("killed: %+v, %v", end.Script, err)
	}
}
