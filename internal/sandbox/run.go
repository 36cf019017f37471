package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"syscall"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// Places inside a sandbox.
const (
	inputDir  = agent.Workdir + "/input"
	outputDir = agent.Workdir + "/output"
	// stdinFile stands apart from the script's directory, and on disk, where
	// it costs no memory.
	stdinFile = agent.LogDir + "/stdin"
)

// jobID names the one job of a run.
const jobID = "run"

// Run runs a script in a fresh sandbox and returns what came of it. It fails
// with a *RequestError if the request cannot be carried out as it is. When
// ctx ends, so does the run; the sandbox is removed in any case.
func (m *Manager) Run(ctx context.Context, r Request) (*Result, error) {
	p, err := m.plan(r)
	if err != nil {
		return nil, err
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.work.Done()
	if err := m.slots.acquire(ctx); errors.Is(err, errBusy) {
		return nil, m.busy()
	} else if err != nil {
		return nil, fmt.Errorf("waiting for a place: %w", err)
	}
	ctx, b := m.register(ctx, kindRun, p.timeout, m.slots.release)
	defer m.destroy(b)
	return m.run(ctx, b, p)
}

func (m *Manager) run(ctx context.Context, b *box, p plan) (*Result, error) {
	setup, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	c, err := m.launch(setup, b, m.spec(b, kindRun, p))
	if err != nil {
		return nil, m.explain(err, p.image)
	}
	defer c.Close()
	receipt, err := m.o.Engine.Inspect(setup, b.id)
	if err != nil {
		return nil, fmt.Errorf("reading the limits of sandbox %s: %w", b.id, err)
	}
	if loose := receipt.Unenforced(); m.o.Strict && len(loose) > 0 {
		return nil, refuse("nothing was run: the server is set to be strict about limits (BELLJAR_STRICT_LIMITS), and its kernel does not enforce %s", strings.Join(loose, ", "))
	}
	if err := m.write(setup, c, p); err != nil {
		return nil, fmt.Errorf("writing the script into sandbox %s: %w", b.id, err)
	}

	res := &Result{OutputFiles: []File{}, Limits: m.limits(receipt, p.timeout)}
	begun := time.Now()
	status, err := m.execute(ctx, c, b, p)
	res.DurationMS = time.Since(begun).Milliseconds()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("running in sandbox %s: %w", b.id, context.Cause(ctx))
	case errors.Is(err, errLost):
		m.lost(ctx, b, p, res, err)
		return res, nil
	case err != nil:
		return nil, fmt.Errorf("running in sandbox %s: %w", b.id, err)
	}
	m.judge(ctx, b, p, status, res)
	m.collect(ctx, c, b, p, status, res)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("collecting from sandbox %s: %w", b.id, context.Cause(ctx))
	}
	return res, nil
}

func (m *Manager) spec(b *box, kind string, p plan) engine.Spec {
	return engine.Spec{
		ID:      b.id,
		Labels:  m.labels(kind, p.Subject),
		Expires: b.expires,
		Image:   p.image,
		Limits:  m.o.Limits,
	}
}

// launch makes a sandbox and returns its agent, ready for the first job.
func (m *Manager) launch(ctx context.Context, b *box, s engine.Spec) (*agent.Client, error) {
	if err := m.o.Engine.Create(ctx, s); err != nil {
		return nil, fmt.Errorf("creating sandbox %s: %w", b.id, err)
	}
	if err := m.o.Engine.Start(ctx, b.id); err != nil {
		return nil, fmt.Errorf("starting sandbox %s: %w", b.id, err)
	}
	conn, err := m.o.Engine.Connect(ctx, b.id)
	if err != nil {
		return nil, fmt.Errorf("reaching the agent of sandbox %s: %w", b.id, err)
	}
	c := agent.NewClient(conn)
	if err := b.to(Ready); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (m *Manager) write(ctx context.Context, c *agent.Client, p plan) error {
	script := path.Join(agent.Workdir, p.runtime.Script())
	if err := c.WriteFile(ctx, script, 0o644, strings.NewReader(p.Script)); err != nil {
		return err
	}
	for _, in := range p.Inputs {
		if err := c.WriteFile(ctx, path.Join(inputDir, in.Name), 0o644, bytes.NewReader(in.Data)); err != nil {
			return err
		}
	}
	if p.Stdin != "" {
		return c.WriteFile(ctx, stdinFile, 0o600, strings.NewReader(p.Stdin))
	}
	return nil
}

// errLost is for a sandbox whose agent stopped answering while the script
// ran. The script is the likely reason.
var errLost = errors.New("the agent does not answer")

// execute runs the script and waits for it: not for the agent's word alone,
// but up to a deadline of the server's own.
func (m *Manager) execute(ctx context.Context, c *agent.Client, b *box, p plan) (agent.JobStatus, error) {
	if err := b.to(Used); err != nil {
		return agent.JobStatus{}, err
	}
	job := agent.JobSpec{
		ID:       jobID,
		Argv:     p.runtime.Command(),
		Env:      p.runtime.Environ(),
		Dir:      agent.Workdir,
		Timeout:  p.timeout,
		Keep:     (m.o.MaxOutput + 1) / 2,
		LogBytes: m.o.LogBytes,
	}
	if p.Stdin != "" {
		job.Stdin = stdinFile
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout+answerTime)
	defer cancel()
	if err := c.StartJob(ctx, job); err != nil {
		return agent.JobStatus{}, fmt.Errorf("starting the script: %w", err)
	}
	status, err := c.WaitJob(ctx, jobID)
	if err != nil {
		return status, fmt.Errorf("%w: %w", errLost, err)
	}
	if status.State != agent.JobExited {
		return status, fmt.Errorf("%w: it says the script is %q", errLost, clip(string(status.State)))
	}
	return status, nil
}

// lost fills in the result of a run whose sandbox no longer answers, and
// stops the sandbox at once.
func (m *Manager) lost(ctx context.Context, b *box, p plan, res *Result, cause error) {
	m.o.Log.Warn("a sandbox was lost while its script ran", "sandbox", b.id, "err", cause)
	oom := m.oomKilled(ctx, b)
	stop, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if err := m.o.Engine.Stop(stop, b.id); err != nil {
		m.o.Log.Warn("stopping a lost sandbox failed", "sandbox", b.id, "err", err)
	}
	res.ReturnCode = 128 + int(syscall.SIGKILL)
	switch {
	case oom:
		res.Error = m.oomText(res) + "; its output and files are lost"
	case errors.Is(cause, context.DeadlineExceeded):
		res.TimedOut, res.ReturnCode = true, codeTimeout
		res.Error = fmt.Sprintf("the sandbox did not answer within %s s of its time limit of %s s and was stopped; output and files are lost", seconds(answerTime), seconds(p.timeout))
	default:
		res.Error = "the sandbox broke down while the script ran and was stopped; output and files are lost"
	}
}

const (
	codeTimeout  = 124 // as timeout(1) has it
	codeNotExec  = 126 // as a shell has it
	codeNotFound = 127
)

// judge fills in how the script ended, from what the agent says of it.
func (m *Manager) judge(ctx context.Context, b *box, p plan, s agent.JobStatus, res *Result) {
	res.ReturnCode, res.TimedOut = s.ExitCode, s.TimedOut
	res.Success = s.ExitCode == 0 && !s.TimedOut
	if res.Success {
		return
	}
	switch {
	case s.TimedOut:
		res.ReturnCode = codeTimeout
		res.Error = fmt.Sprintf("timed out after %s s; the output and the files written until then are kept", seconds(p.timeout))
		// A script that waits for a worker which was killed waits for ever.
		if m.oomKilled(ctx, b) {
			res.Error += "; before that, a process of it was " + m.oomText(res)
		}
	case s.Error != "" && (s.ExitCode == codeNotFound || s.ExitCode == codeNotExec):
		res.Error = fmt.Sprintf("%s could not be started in the image %q: %s", p.runtime.Argv[0], p.image, clip(s.Error))
	case m.oomKilled(ctx, b):
		res.Error = m.oomText(res)
	case s.Error != "":
		res.Error = "the sandbox says: " + clip(s.Error)
	}
}

func (m *Manager) oomKilled(ctx context.Context, b *box) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := m.o.Engine.Inspect(ctx, b.id)
	if err != nil && !errors.Is(err, engine.ErrNotRunning) {
		m.o.Log.Warn("reading the usage of a sandbox failed", "sandbox", b.id, "err", err)
	}
	return err == nil && r.OOMKills > 0
}

func (m *Manager) oomText(res *Result) string {
	text := fmt.Sprintf("killed for want of memory: the limit is %.0f MiB", res.Limits.Memory.Value/(1<<20))
	if note := res.Limits.Memory.Note; note != "" {
		text += " (" + note + ")"
	}
	return text
}

// busy says when to come back: when the first of the running ones must be
// over.
func (m *Manager) busy() error {
	wait := math.Inf(1)
	now := m.o.Now()
	m.mu.Lock()
	for _, b := range m.boxes {
		wait = min(wait, b.due.Sub(now).Seconds())
	}
	m.mu.Unlock()
	wait = min(max(1, math.Ceil(wait)), math.Ceil(m.o.MaxTimeout.Seconds()))
	return refuse("busy: all %d places for runs are taken; try again in %.0f s", m.o.Concurrency, wait)
}
