package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
)

// StartPool begins to fill the pool. Call it after Start; without it, every
// run gets a sandbox that is made for it.
func (m *Manager) StartPool() error {
	if m.o.PoolMemory <= 0 {
		return nil
	}
	if err := m.begin(); err != nil {
		return err
	}
	m.pool.mu.Lock()
	m.pool.on = true
	m.pool.mu.Unlock()
	go m.pool.loop()
	return nil
}

// loop fills the pool until the Manager closes.
func (p *pool) loop() {
	defer p.m.work.Done()
	tick := time.NewTicker(poolTick)
	defer tick.Stop()
	lull := time.NewTimer(0)
	defer lull.Stop()
	for {
		p.tidy()
		if l, digest := p.next(); l != nil {
			p.fill(l, digest)
			continue
		}
		lull.Reset(burstEnds)
		select {
		case <-p.m.closing:
			return
		case <-p.wake:
		case <-tick.C:
		case <-lull.C:
		}
	}
}

// tidy gives up sandboxes that are too old, whose image has changed, or for
// which the host has no memory.
func (p *pool) tidy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.m.o.Now()
	for _, l := range p.lanes {
		if len(l.ready) == 0 {
			continue
		}
		digest, err := p.m.o.Digest(l.image)
		keep := l.ready[:0:0]
		for _, s := range l.ready {
			if err == nil && s.fit(digest, now) && len(keep) < l.target(now) {
				keep = append(keep, s)
			} else {
				p.m.discard(s)
			}
		}
		l.ready = keep
	}
	if p.m.o.FreeMemory() < shortMemory {
		p.yield(nil)
	}
}

// yield gives up the sandboxes of the lane that was not asked for longest, if
// that is longer than asker was not; nil asks before all.
func (p *pool) yield(asker *lane) bool {
	var victim *lane
	for _, l := range p.lanes {
		older := victim == nil || l.use.last().Before(victim.use.last())
		if l != asker && len(l.ready) > 0 && older {
			victim = l
		}
	}
	if victim == nil || asker != nil && !victim.use.last().Before(asker.use.last()) {
		return false
	}
	for _, s := range victim.ready {
		p.m.discard(s)
	}
	victim.ready = nil
	return true
}

// next picks the lane to make a sandbox for, with the digest of its image, and
// counts that one; nil if nothing is to be done now. The lane that was asked
// last comes first.
func (p *pool) next() (*lane, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.m.o.Now()
	if !p.on || p.running > 0 && now.Sub(p.busy) < burstEnds || p.m.o.FreeMemory() < 2*shortMemory {
		return nil, ""
	}
	var best *lane
	var bestDigest string
	for _, l := range p.lanes {
		if len(l.ready)+l.making >= l.target(now) {
			continue
		}
		digest, err := p.m.o.Digest(l.image)
		if err != nil || l.failed == digest && now.Before(l.retry) {
			continue
		}
		if best == nil || l.use.last().After(best.use.last()) {
			best, bestDigest = l, digest
		}
	}
	if best == nil {
		return nil, ""
	}
	for p.memory()+best.expect() > p.m.o.PoolMemory {
		if !p.yield(best) {
			return nil, ""
		}
	}
	best.making++
	return best, bestDigest
}

// fill makes a sandbox for a lane.
func (p *pool) fill(l *lane, digest string) {
	s, err := p.m.makeSpare(l, digest)
	p.mu.Lock()
	defer p.mu.Unlock()
	l.making--
	switch {
	case err != nil:
		l.fail(digest, p.m.o.Now())
		level := slog.LevelWarn
		if errors.Is(err, errNotInstalled) {
			level = slog.LevelDebug
		}
		p.m.o.Log.Log(p.m.base, level, "no sandbox could be made in advance", "kind", l.kind, "for", l.names(), "again_in", l.retry.Sub(p.m.o.Now()), "err", err)
	case p.on:
		l.failures, l.failed, l.size = 0, "", s.size
		l.ready = append(l.ready, s)
	default:
		p.m.discard(s)
	}
}

// fail puts off the next attempt: by 10 s, doubling up to an hour, or until
// the image changes.
func (l *lane) fail(digest string, now time.Time) {
	if digest != l.failed {
		l.failures = 0
	}
	wait := min(10*time.Second<<l.failures, time.Hour)
	l.failed, l.retry, l.failures = digest, now.Add(wait), min(l.failures+1, 20)
}

// makeSpare makes a sandbox for a lane, with the interpreter waiting at its
// gate unless the lane is bare.
func (m *Manager) makeSpare(l *lane, digest string) (_ *spare, err error) {
	ctx, b := m.register(m.base, kindSpare, setupTime, func() {})
	now := m.o.Now()
	b.waits(now.Add(2 * spareAge))
	s := &spare{seat: seat{b: b, lane: l}, digest: digest, made: now}
	defer func() {
		if err != nil {
			m.discard(s)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	s.c, err = m.launch(ctx, b, engine.Spec{
		ID: b.id, Labels: m.labels(kindSpare, access.Subject{}), Expires: now.Add(2 * spareAge),
		Image: l.image, Limits: m.o.Limits, Spare: true,
	})
	if err != nil {
		return nil, err
	}
	if err := m.writeFiles(ctx, s.c, l.runtimes...); err != nil {
		return nil, err
	}
	if err := s.c.FillFile(ctx, stdinFile, 0o600, strings.NewReader("")); err != nil {
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
	s.size = cmp.Or(receipt.MemoryUsed, leastSize)
	return s, nil
}

// errNotInstalled says that an image lacks a runtime, which is no fault.
var errNotInstalled = errors.New("it is not installed in the image")

// warmUp starts a runtime's command, up to the gate. What it prints until then
// no script has asked for, so it must be nothing.
func (m *Manager) warmUp(ctx context.Context, s *spare) error {
	r := s.lane.runtimes[0]
	if err := s.c.FillFile(ctx, scriptFile(r), 0o644, strings.NewReader("")); err != nil {
		return err
	}
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
	case err != nil:
		return err
	case st.State == agent.JobExited && st.ExitCode == codeNotFound:
		return errNotInstalled
	case st.State == agent.JobExited:
		return fmt.Errorf("it ended before its gate with exit code %d: %s%s", st.ExitCode, clip(st.Error), clip(string(st.Stderr.Head)))
	case st.Stdout.Bytes+st.Stderr.Bytes > 0:
		return fmt.Errorf("it printed before its gate: %q", clip(string(st.Stdout.Head)+string(st.Stderr.Head)))
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
	err := m.start(ctx, &s.seat, p)
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
	return m.prepare(ctx, &s.seat, p)
}

// freeMemory reads the share of memory that new programs can have, proc(5).
// 1 where that cannot be told.
func freeMemory() float64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 1
	}
	defer f.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			values[name], _ = strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		}
	}
	if values["MemTotal"] == 0 || values["MemAvailable"] == 0 {
		return 1
	}
	return values["MemAvailable"] / values["MemTotal"]
}
