package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/lang"
)

// makeSpare makes a sandbox for a lane, with the interpreter waiting at its
// gate unless the lane is bare.
func (m *Manager) makeSpare(mk *making) (_ *spare, err error) {
	l, now, freed := mk.lane, m.o.Now(), make(chan struct{})
	ctx, b := m.register(mk.ctx, kindSpare, setupTime, func() { close(freed) })
	b.waits(now.Add(2 * spareAge))
	s := &spare{seat: seat{b: b, lane: l}, digest: mk.digest, made: now, freed: freed}
	defer func() {
		if err != nil {
			m.discard(s)
			<-freed
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, warmTime)
	defer cancel()
	s.c, err = m.launch(ctx, b, engine.Spec{
		ID: b.id, Labels: m.labels(kindSpare, access.Subject{}), Expires: now.Add(2 * spareAge),
		Image: mk.digest, Limits: m.o.Limits, Network: m.o.Network, Spare: true,
	})
	if err != nil {
		return nil, err
	}
	files := append(m.filesOf(mk.digest, l.runtimes...), stdinOf(""))
	if l.kind != laneBare {
		files = append(files, scriptOf(l.runtimes[0], ""))
	}
	if err := s.c.WriteFiles(ctx, files...); err != nil {
		return nil, err
	}
	if l.kind != laneBare {
		if err := m.warmUp(ctx, s); err != nil {
			return nil, err
		}
	}
	receipt, err := m.o.Engine.Inspect(ctx, b.id)
	if err != nil {
		return nil, fmt.Errorf("reading what sandbox %s uses: %w", b.id, err)
	}
	if receipt.OOMKills > 0 {
		return nil, errKilled
	}
	s.size = cmp.Or(receipt.MemoryUsed, leastSize)
	return s, nil
}

// errKilled says that a sandbox is not what it was meant to be.
var errKilled = errors.New("a process of it was killed for want of memory before the script")

// errNotInstalled says that an image lacks a runtime, which is no fault.
var errNotInstalled = errors.New("it is not installed in the image")

// warmUp starts a runtime's command, up to the gate. What it prints and writes
// until then no script has asked for, so it must be nothing.
func (m *Manager) warmUp(ctx context.Context, s *spare) error {
	r := s.lane.runtimes[0]
	job := m.job(r, 2*spareAge)
	job.Gate = true
	if s.lane.kind == laneFull && r.Preload != "" {
		job.Env = append(job.Env, agent.PreloadVariable+"=1")
	}
	if err := s.c.StartJob(ctx, job); err != nil {
		return err
	}
	st, err := s.c.WaitGate(ctx, jobID)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it did not come to its gate: %w", err)
	case err != nil:
		return err
	case st.State == agent.JobExited && st.ExitCode == codeNotFound:
		return errNotInstalled
	case st.State == agent.JobExited:
		return fmt.Errorf("it ended before its gate with exit code %d: %s%s", st.ExitCode, Clip(st.Error), Clip(string(st.Stderr.Head)))
	case st.Stdout.Bytes+st.Stderr.Bytes > 0:
		return fmt.Errorf("it printed before its gate: %q", Clip(string(st.Stdout.Head)+string(st.Stderr.Head)))
	}
	return m.untouched(ctx, s, r)
}

// untouched fails unless all is as it was before a runtime's command started:
// no output, and empty files for the script and its standard input. What may
// be kept of it is.
func (m *Manager) untouched(ctx context.Context, s *spare, r lang.Runtime) error {
	dirs := []string{outputDir, agent.Workdir, path.Dir(stdinFile)}
	trees := []agent.Tree{{Dir: outputDir, Max: ignored}, {Dir: agent.Workdir, Max: ignored, Flat: true}, {Dir: path.Dir(stdinFile), Max: ignored, Flat: true}}
	if r.Keep != "" {
		trees = append(trees, agent.Tree{Dir: keepDir(r), Max: maxKeptFiles, Flat: true})
	}
	all, err := s.c.ListTrees(ctx, trees...)
	if err != nil {
		return err
	}
	if r.Keep != "" {
		m.keep(ctx, s.c, r, s.digest, all[len(dirs)])
	}
	empty := map[string]bool{}
	for i, dir := range dirs {
		if all[i].Err != nil {
			return fmt.Errorf("it took %s away before its gate: %w", dir, all[i].Err)
		}
		for _, f := range all[i].Files {
			name := path.Join(dir, string(f.Path))
			empty[name] = f.Size == 0
			if dir == outputDir || dir == agent.Workdir && wants(r, string(f.Path)) {
				return fmt.Errorf("it left %s before its gate", Clip(Printable(name)))
			}
		}
	}
	for _, name := range []string{scriptFile(r), stdinFile} {
		if !empty[name] {
			return fmt.Errorf("it changed %s before its gate", name)
		}
	}
	return nil
}

// discard removes a spare sandbox in the background.
func (m *Manager) discard(s *spare) {
	if s.c != nil {
		s.c.Close()
	}
	m.destroy(s.b)
}

// errStale is for a spare sandbox that turned out to be of no use before its
// script began. Another may be tried.
var errStale = errors.New("it cannot be used")

// runSpare runs a script in a sandbox of the pool. From the beginning of the
// script on, the sandbox holds the place until it is removed.
func (m *Manager) runSpare(ctx context.Context, s *spare, p plan, release func()) (*Result, error) {
	ctx = m.bind(ctx, s.b, p.timeout)
	defer m.discard(s)
	if err := m.claim(ctx, s, p); err != nil {
		if refused := (*RequestError)(nil); errors.As(err, &refused) {
			release()
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	err := m.beginScript(ctx, s, p)
	if errors.Is(err, agent.ErrGate) {
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	s.b.hold(release)
	if err != nil {
		return nil, err
	}
	return m.run(ctx, &s.seat, p)
}

// claim makes a spare sandbox that of a run: what is kept of it says so, and
// its limits are those of a run, before anything of the run gets into it.
func (m *Manager) claim(ctx context.Context, s *spare, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	if err := s.b.to(Used); err != nil {
		return err
	}
	_, expires := s.b.times()
	if err := m.o.Engine.Claim(ctx, s.b.id, m.labels(kindRun, p.Subject), expires); err != nil {
		return err
	}
	if err := m.prepare(ctx, &s.seat, p); err != nil {
		return err
	}
	if s.receipt.OOMKills > 0 {
		return errKilled // the script would be blamed for it
	}
	return nil
}

// beginScript lets the script of a claimed sandbox begin.
func (m *Manager) beginScript(ctx context.Context, s *spare, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	return m.start(ctx, &s.seat, p)
}
