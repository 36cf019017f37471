package job

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"
)

// CommandRequest asks for a command in a workspace.
type CommandRequest struct {
	Subject access.Subject `json:"subject"`
	// Command is for bash.
	Command string `json:"command"`
	// Sandbox names the workspace; the default one if "".
	Sandbox string `json:"sandbox,omitempty"`
	// Dir is where the command starts: absolute or below /sandbox.
	Dir string            `json:"dir,omitempty"`
	Env map[string]string `json:"env,omitempty"`
	// Stdin is what the command reads; it reads nothing without it.
	Stdin *string `json:"stdin,omitempty"`
	// Interactive leaves standard input open behind Stdin, for Input.
	Interactive bool `json:"interactive,omitempty"`
	// Terminal gives the command a terminal of that size. It is interactive
	// then, and its time limit is the longest if it asks for none.
	Terminal *agent.Size `json:"terminal,omitempty"`
	// Timeout is the command's, in nanoseconds in JSON; 0 is the default.
	Timeout time.Duration `json:"timeout,omitempty"`
}

const (
	maxCommand = 1 << 20 // bytes; the kernel takes 128 KiB as one argument
	// argBytes is up to which length a command is an argument of bash. A longer
	// one is a file.
	argBytes   = 100 << 10
	maxEnv     = 256
	maxEnvByte = 64 << 10
	maxStdin   = 4 << 20
)

// What a command's end may take besides the command.
const (
	answerTime = 15 * time.Second // the agent's delay after a job's timeout
	beginTime  = 30 * time.Second // to start it
	// shortJob is how long the agent's answer to the start waits for the end, so
	// that a short command takes one request.
	shortJob = 20 * time.Millisecond
)

// commandEnv is what a command finds set, besides what the image says. A
// workspace is its owner's machine, so pip may write to the system's packages;
// and nobody is there to answer a package manager's questions.
var commandEnv = []string{
	"HOME=/root", "SHELL=/bin/bash", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_ROOT_USER_ACTION=ignore",
	"DEBIAN_FRONTEND=noninteractive", "PAGER=cat", "GIT_PAGER=cat",
}

func (d *Desk) checkCommand(r *CommandRequest) error {
	switch {
	case strings.TrimSpace(r.Command) == "":
		return refuse("the command is empty")
	case len(r.Command) > maxCommand:
		return refuse("the command has %d bytes: at most %d are taken; write it to a file and run that", len(r.Command), maxCommand)
	case strings.ContainsRune(r.Command, 0):
		return refuse("the command holds a NUL byte")
	case r.Timeout < 0:
		return refuse("timeout %g s: must be positive; the maximum is %g s", r.Timeout.Seconds(), d.o.MaxTimeout.Seconds())
	case r.Timeout > d.o.MaxTimeout:
		return refuse("timeout %g s: the maximum is %g s", r.Timeout.Seconds(), d.o.MaxTimeout.Seconds())
	case strings.ContainsRune(r.Dir, 0):
		return refuse("cwd holds a NUL byte")
	case len(r.Env) > maxEnv:
		return refuse("%d variables in env: at most %d are taken", len(r.Env), maxEnv)
	case r.Stdin != nil && len(*r.Stdin) > maxStdin:
		return refuse("stdin has %d bytes: at most %d are taken; write them to a file and read that", len(*r.Stdin), maxStdin)
	}
	total := 0
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return refuse("env: %q cannot be a variable's name, or its value holds a NUL byte", sandbox.Clip(name))
		}
		total += len(name) + len(value)
	}
	if total > maxEnvByte {
		return refuse("env has %d bytes: at most %d are taken", total, maxEnvByte)
	}
	switch {
	case r.Timeout > 0:
	case r.Terminal != nil:
		r.Timeout = d.o.MaxTimeout
	default:
		r.Timeout = d.o.DefaultTimeout
	}
	r.Interactive = r.Interactive || r.Terminal != nil
	if !path.IsAbs(r.Dir) {
		r.Dir = path.Join(agent.Workdir, r.Dir)
	}
	return nil
}

// Execute begins a command and waits for it as w says. The command goes on
// when the wait is over, and when ctx ends. It fails with a
// *sandbox.RequestError if the command cannot be begun as it is.
func (d *Desk) Execute(ctx context.Context, r CommandRequest, w Wait) (Reply, error) {
	if err := d.checkCommand(&r); err != nil {
		return Reply{}, err
	}
	lease, err := d.o.Workspaces.Lease(ctx, r.Subject, r.Sandbox)
	if err != nil {
		return Reply{}, err
	}
	c := d.command(Record{
		ID: newID(), Subject: r.Subject.ID, Kind: Command, Sandbox: lease.ID(), Name: lease.Name(),
		Title: sandbox.Clip(sandbox.Printable(strings.TrimSpace(r.Command))), Interactive: r.Interactive,
		Begun: d.o.Now(), Timeout: r.Timeout,
	})
	if err := d.begin(c.j); err != nil {
		lease.Release()
		return Reply{}, err
	}
	if err := d.launch(ctx, c.j, lease, r); err != nil {
		lease.Release()
		d.finish(c.j, outcome{Refused: "it could not be begun"}, err)
		return Reply{}, err
	}
	c.j.notes = lease.Notes()
	d.follow(c, lease)
	return d.wait(ctx, c.j, w)
}

// launch notes a command and starts it.
func (d *Desk) launch(ctx context.Context, j *live, lease *workspace.Lease, r CommandRequest) error {
	// Once begun it is begun: a caller who goes away in between would leave a
	// job that nobody knows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginTime)
	defer cancel()
	if err := d.record(ctx, j); err != nil {
		return err
	}
	spec, files := d.spec(j, r)
	if len(files) > 0 {
		if err := lease.Agent().WriteFiles(ctx, files...); err != nil {
			return fmt.Errorf("writing what a command needs: %w", err)
		}
	}
	if at, err := lease.NetworkCursor(ctx); err == nil {
		j.denied = &at
	}
	grace := shortJob
	if r.Interactive {
		grace = 0 // it waits for its input
	}
	status, err := lease.Agent().RunJob(ctx, spec, grace)
	if err != nil {
		return refuseRemote(err)
	}
	if status.State == agent.JobExited {
		j.exited = &status
	}
	if r.Interactive && r.Stdin != nil {
		if _, err := lease.Agent().WriteInput(ctx, j.ID, []byte(*r.Stdin), false); err != nil {
			return refuseRemote(err)
		}
	}
	return nil
}

// refuseRemote shows the caller why the agent refused. It speaks for the
// sandbox, which is theirs.
func refuseRemote(err error) error {
	var remote *agent.RemoteError
	if errors.As(err, &remote) {
		return refuse("the sandbox refused: %s", remote.Text)
	}
	return err
}

// spec is the agent's job, with the files that it reads.
func (d *Desk) spec(j *live, r CommandRequest) (agent.JobSpec, []agent.NewFile) {
	s := agent.JobSpec{
		ID: j.ID, Argv: []string{"bash", "-c", r.Command}, Env: slices.Clone(commandEnv), Dir: r.Dir,
		Input: r.Interactive && r.Terminal == nil, Terminal: r.Terminal, Timeout: r.Timeout, Keep: (d.o.MaxOutput + 1) / 2, LogBytes: d.o.LogBytes,
	}
	for name, value := range r.Env {
		s.Env = append(s.Env, name+"="+value)
	}
	var files []agent.NewFile
	dir := path.Join(agent.LogDir, j.ID)
	if len(r.Command) > argBytes {
		file := path.Join(dir, "command")
		files = append(files, agent.NewFile{Path: file, Mode: 0o600, Data: []byte(r.Command)})
		s.Argv = []string{"bash", file}
	}
	if r.Stdin != nil && !r.Interactive {
		s.Stdin = path.Join(dir, "stdin")
		files = append(files, agent.NewFile{Path: s.Stdin, Mode: 0o600, Data: []byte(*r.Stdin)})
	}
	return s, files
}

// follow sees a command to its end, in the background. Without a lease it takes
// one.
func (d *Desk) follow(c *command, lease *workspace.Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed { // it is followed when the desk opens again
		if lease != nil {
			lease.Release()
		}
		return
	}
	d.work.Go(func() {
		if end, known := c.await(lease); known {
			d.finish(c.j, end, nil)
		}
	})
}

// command is a command's work.
type command struct {
	d *Desk
	j *live
}

// command is the work of the command that a record is of, be it over or not.
func (d *Desk) command(r Record) *command {
	c := &command{d: d, j: d.newLive(r)}
	c.j.work = c
	return c
}

// await returns how a command ended, and whether that is known: it is not if
// the desk closes first.
func (c *command) await(lease *workspace.Lease) (outcome, bool) {
	defer func() {
		if lease != nil {
			lease.Release()
		}
	}()
	ctx, cancel := context.WithDeadline(c.d.base, c.j.Begun.Add(c.j.Timeout+answerTime))
	defer cancel()
	for {
		if lease == nil {
			var err error
			if lease, err = c.d.o.Workspaces.Attach(ctx, c.j.Sandbox); err != nil {
				return c.lost(ctx, err)
			}
		}
		status, err := c.end(ctx, lease)
		if err == nil {
			res := c.d.result(c.j, status, lease.Receipt())
			res.NetworkDenied = c.denied(ctx, lease)
			return outcome{Command: res}, true
		}
		select {
		case <-lease.Broken(): // ask again by another connection
			lease.Release()
			lease = nil
		default:
			return c.lost(ctx, err)
		}
	}
}

// end waits for the command's end, which may have come as it was begun.
func (c *command) end(ctx context.Context, lease *workspace.Lease) (agent.JobStatus, error) {
	if c.j.exited != nil {
		return *c.j.exited, nil
	}
	return lease.Agent().WaitJob(ctx, c.j.ID)
}

// denied lists what the workspace's network has refused since the command
// began. After a restart of the server it is not known what was before.
func (c *command) denied(ctx context.Context, lease *workspace.Lease) []string {
	if c.j.denied == nil {
		return nil
	}
	use, err := lease.NetworkUse(ctx, *c.j.denied)
	if err != nil {
		return nil
	}
	return sandbox.DeniedList(use.Denied)
}

// lost is the outcome of a command of which nothing more can be learnt.
func (c *command) lost(ctx context.Context, err error) (outcome, bool) {
	if c.d.base.Err() != nil || errors.Is(err, workspace.ErrClosed) {
		return outcome{}, false
	}
	c.d.o.Log.Warn("a command was lost", "job", c.j.ID, "workspace", c.j.Sandbox, "err", err)
	r := &Result{ExitCode: 128 + int(syscall.SIGKILL), DurationMS: c.d.o.Now().Sub(c.j.Begun).Milliseconds()}
	r.Limits.TimeoutSeconds = c.j.Timeout.Seconds()
	log := path.Join(agent.LogDir, c.j.ID)
	switch {
	case ctx.Err() != nil:
		r.ExitCode, r.TimedOut = 124, true
		r.Error = "the sandbox did not answer at the command's time limit"
	case errors.Is(err, engine.ErrNotFound):
		r.Error = "the sandbox was deleted while the command ran"
		return outcome{Command: r}, true
	default:
		r.Error = "the sandbox was stopped, or its host restarted, while the command ran"
	}
	r.Error += fmt.Sprintf("; what it had printed is in the sandbox, in %s", log)
	return outcome{Command: r}, true
}

// agent lends the workspace if it runs.
func (c *command) agent(ctx context.Context) (*workspace.Lease, error) {
	lease, err := c.d.o.Workspaces.Attach(ctx, c.j.Sandbox)
	if errors.Is(err, engine.ErrNotRunning) || errors.Is(err, engine.ErrNotFound) {
		return nil, refuse("the sandbox of the job does not run (any more)")
	}
	return lease, err
}

func (c *command) output(ctx context.Context, since agent.Cursor, max int, wait bool) (agent.Output, error) {
	lease, err := c.agent(ctx)
	if err != nil {
		return agent.Output{}, err
	}
	defer lease.Release()
	return lease.Agent().Output(ctx, c.j.ID, since, max, wait)
}

func (c *command) input(ctx context.Context, text string, last bool) (int64, error) {
	lease, err := c.agent(ctx)
	if err != nil {
		return 0, err
	}
	defer lease.Release()
	n, err := lease.Agent().WriteInput(ctx, c.j.ID, []byte(text), last)
	if errors.Is(err, agent.ErrNoInput) {
		return 0, refuse("the command has closed its standard input, or has ended")
	}
	return n, err
}

func (c *command) signal(ctx context.Context, sig syscall.Signal) error {
	lease, err := c.agent(ctx)
	if err != nil {
		return err
	}
	defer lease.Release()
	return refuseRemote(lease.Agent().SignalJob(ctx, c.j.ID, sig))
}

// result makes a result of what the agent says of a command.
func (d *Desk) result(j *live, s agent.JobStatus, r engine.Receipt) *Result {
	r.OOMKills, r.MemoryUsed = 0, 0
	res := &Result{
		ExitCode: s.ExitCode, TimedOut: s.TimedOut, DurationMS: s.Duration.Milliseconds(),
		Notes:  j.notes,
		Limits: Limits{Receipt: r, TimeoutSeconds: j.Timeout.Seconds(), OutputBytes: int64(d.o.MaxOutput), LogBytes: d.o.LogBytes},
	}
	for _, stream := range []struct {
		name string
		from agent.Stream
		to   *string
	}{{"stdout", s.Stdout, &res.Stdout}, {"stderr", s.Stderr, &res.Stderr}} {
		var dropped int64
		*stream.to, dropped = sandbox.Show(stream.from, d.o.MaxOutput)
		if dropped > 0 {
			res.Notes = append(res.Notes, logNote(stream.name, stream.from))
		}
	}
	switch {
	case s.TimedOut:
		res.Error = fmt.Sprintf("timed out after %g s; what the command had started was ended", j.Timeout.Seconds())
	case s.Error != "":
		res.Error = s.Error
	case s.Signal > 0:
		res.Error = fmt.Sprintf("ended by signal %d (%v)", s.Signal, syscall.Signal(s.Signal))
	}
	return res
}

// logNote says where all of a stream is.
func logNote(name string, s agent.Stream) string {
	switch {
	case s.Log == "":
		return fmt.Sprintf("%s has %d bytes, which could not be kept as a file", name, s.Bytes)
	case s.LogBytes < s.Bytes:
		return fmt.Sprintf("the first %d of the %d bytes of %s are in the sandbox, in %s", s.LogBytes, s.Bytes, name, s.Log)
	}
	return fmt.Sprintf("all %d bytes of %s are in the sandbox, in %s", s.Bytes, name, s.Log)
}
