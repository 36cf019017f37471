package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/lang"
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

// A seat is a sandbox with its agent, for one script.
type seat struct {
	b       *box
	c       *agent.Client
	lane    *lane // of the pool, nil if it was made for this run
	receipt engine.Receipt
	begun   time.Time // when the script began
}

// Run runs a script in a fresh sandbox and returns what came of it. It fails
// with a *RequestError if the request cannot be carried out as it is. When
// ctx ends, so does the run; the sandbox is removed in any case.
func (m *Manager) Run(ctx context.Context, r Request) (*Result, error) {
	run, err := m.Begin(r)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, run.Cancel)()
	<-run.Done()
	if err := context.Cause(ctx); err != nil && run.err != nil {
		return nil, fmt.Errorf("running a script: %w", err)
	}
	return run.Result()
}

// carryOut waits for a place and runs a script there.
func (m *Manager) carryOut(ctx context.Context, p plan) (*Result, error) {
	if err := m.slots.acquire(ctx); errors.Is(err, errBusy) {
		return nil, m.busy()
	} else if err != nil {
		return nil, fmt.Errorf("waiting for a place: %w", err)
	}
	defer m.pool.runBegins()()
	p.placed = time.Now()
	release := sync.OnceFunc(m.slots.release)
	for {
		s := m.pool.take(p)
		if s == nil {
			return m.runNew(ctx, p, release)
		}
		res, err := m.runSpare(ctx, s, p, release)
		if !errors.Is(err, errStale) {
			return res, err
		}
		m.o.Log.Info("a spare sandbox was of no use", "sandbox", s.b.id, "err", err)
		if ctx.Err() != nil {
			release()
			return nil, fmt.Errorf("claiming a sandbox: %w", context.Cause(ctx))
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return m.runNew(ctx, p, release) // others may hang alike
		}
	}
}

// runNew runs a script in a sandbox that is made for it, which holds the place
// until it is removed.
func (m *Manager) runNew(ctx context.Context, p plan, release func()) (*Result, error) {
	ctx, b := m.register(ctx, kindRun, p.timeout, release)
	defer m.destroy(b)
	setup, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	s, err := m.launchNow(setup, b, m.spec(b, kindRun, p))
	if err != nil {
		return nil, err
	}
	defer s.c.Close()
	if err := m.prepare(setup, s, p); err != nil {
		return nil, err
	}
	if err := b.to(Used); err != nil {
		return nil, err
	}
	if err := m.start(setup, s, p); err != nil {
		return nil, err
	}
	return m.run(ctx, s, p)
}

// prepare sees to all that must hold before a script begins: the limits are
// what was promised, and its files are there.
func (m *Manager) prepare(ctx context.Context, s *seat, p plan) (err error) {
	if s.receipt, err = m.o.Engine.Inspect(ctx, s.b.id); err != nil {
		return fmt.Errorf("reading the limits of sandbox %s: %w", s.b.id, err)
	}
	if loose := s.receipt.Unenforced(); m.o.Strict && len(loose) > 0 {
		return refuse("nothing was run: the server is set to be strict about limits (BELLJAR_STRICT_LIMITS), and its host does not provide %s", strings.Join(loose, ", "))
	}
	if err := m.write(ctx, s, p); err != nil {
		return fmt.Errorf("writing the script into sandbox %s: %w", s.b.id, err)
	}
	return nil
}

// start begins the script. An error with agent.ErrGate says that it has not
// begun.
func (m *Manager) start(ctx context.Context, s *seat, p plan) (err error) {
	s.begun = time.Now()
	if s.lane != nil && s.lane.kind != laneBare {
		err = s.c.OpenGate(ctx, jobID, p.timeout)
	} else {
		err = s.c.StartJob(ctx, m.job(p.runtime, p.timeout))
	}
	if err != nil {
		return fmt.Errorf("starting the script in sandbox %s: %w", s.b.id, err)
	}
	hit := s.lane != nil && s.lane.serves(p.runtime)
	m.pool.asked(p, hit)
	m.o.Observe(p.runtime.Name, hit, time.Since(p.placed))
	return nil
}

// run sees a script that has begun to its end.
func (m *Manager) run(ctx context.Context, s *seat, p plan) (*Result, error) {
	res := &Result{OutputFiles: []File{}, Limits: m.limits(s.receipt, p.timeout)}
	p.run.seated(s.c)
	defer p.run.seated(nil)
	status, err := m.await(ctx, s.c, p)
	res.DurationMS = time.Since(s.begun).Milliseconds()
	res.NetworkDenied = m.networkDenied(ctx, s.b)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("running in sandbox %s: %w", s.b.id, context.Cause(ctx))
	case err != nil:
		m.lost(ctx, s.b, p, res, err)
		return res, nil
	}
	m.judge(ctx, s.b, p, status, res)
	m.collect(ctx, s.c, s.b, p, status, res)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("collecting from sandbox %s: %w", s.b.id, context.Cause(ctx))
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
		Network: m.o.Network,
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

// write puts a script and what it reads in their places. A spare sandbox's
// interpreter may have the script and the standard input open already.
func (m *Manager) write(ctx context.Context, s *seat, p plan) error {
	var files []agent.NewFile
	for _, in := range p.Inputs {
		files = append(files, agent.NewFile{Path: path.Join(inputDir, in.Name), Mode: 0o644, Data: in.Data})
	}
	if s.lane == nil || !s.lane.serves(p.runtime) {
		digest, _ := m.o.Digest(p.image) // without it there is nothing kept
		files = append(files, m.filesOf(digest, p.runtime)...)
	}
	if s.lane == nil || p.Stdin != "" {
		files = append(files, stdinOf(p.Stdin))
	}
	return s.c.WriteFiles(ctx, append(files, scriptOf(p.runtime, p.Script))...)
}

// stdinOf is the file with a script's standard input, scriptOf the one with
// the script. Both may be open already.
func stdinOf(text string) agent.NewFile {
	return agent.NewFile{Path: stdinFile, Mode: 0o600, Data: []byte(text), InPlace: true}
}

func scriptOf(r lang.Runtime, text string) agent.NewFile {
	return agent.NewFile{Path: scriptFile(r), Mode: 0o644, Data: []byte(text), InPlace: true}
}

func scriptFile(r lang.Runtime) string { return path.Join(agent.Workdir, r.Script()) }

// job is the one that runs a script.
func (m *Manager) job(r lang.Runtime, timeout time.Duration) agent.JobSpec {
	return agent.JobSpec{
		ID:       jobID,
		Argv:     r.Command(),
		Env:      r.Environ(),
		Dir:      agent.Workdir,
		Stdin:    stdinFile,
		Sole:     true,
		Timeout:  timeout,
		Keep:     (m.o.MaxOutput + 1) / 2,
		LogBytes: m.o.LogBytes,
	}
}

// await waits for a script: not for the agent's word alone, but up to a
// deadline of the server's own. An error means that the agent stopped
// answering, or talks nonsense; the script is the likely reason.
func (m *Manager) await(ctx context.Context, c *agent.Client, p plan) (agent.JobStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout+answerTime)
	defer cancel()
	status, err := c.WaitJob(ctx, jobID)
	if err == nil && status.State != agent.JobExited {
		err = fmt.Errorf("it says the script is %q", Clip(string(status.State)))
	}
	return status, err
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
		res.Error = fmt.Sprintf("timed out after %s s (timeout may be up to %s s); the output and the files written until then are kept", seconds(p.timeout), seconds(m.o.MaxTimeout))
		// A script that waits for a worker which was killed waits for ever.
		if m.oomKilled(ctx, b) {
			res.Error += "; before that, a process of it was " + m.oomText(res)
		}
	case s.Error != "" && (s.ExitCode == codeNotFound || s.ExitCode == codeNotExec):
		res.Error = fmt.Sprintf("%s could not be started in the image %q: %s; list_runtimes tells what can", p.runtime.Argv[0], p.image, Clip(s.Error))
	case m.oomKilled(ctx, b):
		res.Error = m.oomText(res)
	case s.Error != "":
		res.Error = "the sandbox says: " + Clip(s.Error)
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
		if due, _ := b.times(); !due.IsZero() {
			wait = min(wait, due.Sub(now).Seconds())
		}
	}
	m.mu.Unlock()
	wait = min(max(1, math.Ceil(wait)), math.Ceil(m.o.MaxTimeout.Seconds()))
	return refuse("busy: all %d places for runs are taken; try again in %.0f s", m.o.Concurrency, wait)
}
