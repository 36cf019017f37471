package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

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
	m.pool.open()
	go m.pool.loop()
	return nil
}

// open lets sandboxes into the pool, unless the Manager closes meanwhile.
func (p *pool) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.m.closing:
	default:
		p.on = true
	}
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
		p.measure()
		if mk := p.next(); mk != nil {
			p.fill(mk)
			continue
		}
		lull.Reset(p.pause())
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
	if p.freeMemory(now) < shortMemory {
		if l := p.victim(nil); l != nil {
			for range l.ready {
				p.yield(nil)
			}
		}
	}
}

// pause is how long the loop may wait when there is nothing to do now.
func (p *pool) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.m.o.Now(); p.burst(now) || p.free < 2*shortMemory {
		return burstEnds
	}
	return poolTick
}

// freeMemory is Options.FreeMemory, asked once in a while: every run wakes the
// loop, and the kernel takes its time to count.
func (p *pool) freeMemory(now time.Time) float64 {
	if p.freeAt.IsZero() || now.Sub(p.freeAt) >= burstEnds {
		p.free, p.freeAt = p.m.o.FreeMemory(), now
	}
	return p.free
}

// making is the sandbox that is being made.
type making struct {
	lane   *lane
	digest string
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it is in the pool, or removed
}

// next picks the lane to make a sandbox for, and notes that one is being made;
// nil if nothing is to be done now.
func (p *pool) next() *making {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.m.o.Now()
	if !p.on || p.burst(now) || now.Before(p.crowded) || p.freeMemory(now) < 2*shortMemory {
		return nil
	}
	for _, l := range p.wanting(now) {
		digest, err := p.m.o.Digest(l.image)
		if err != nil || p.barred[digest] > 0 || l.failed == digest && now.Before(l.retry) || !p.fits(l, digest) {
			continue
		}
		ctx, cancel := context.WithCancel(p.m.base)
		p.making = &making{lane: l, digest: digest, ctx: ctx, cancel: cancel, done: make(chan struct{})}
		return p.making
	}
	return nil
}

// wanting are the lanes with too few sandboxes, those first that were asked
// last. One that has failed must not keep others waiting.
func (p *pool) wanting(now time.Time) []*lane {
	var lanes []*lane
	for _, l := range p.lanes {
		if len(l.ready) < l.target(now) {
			lanes = append(lanes, l)
		}
	}
	slices.SortStableFunc(lanes, func(a, b *lane) int {
		return cmp.Or(min(a.failures, 1)-min(b.failures, 1), b.use.last().Compare(a.use.last()))
	})
	return lanes
}

// fill makes a sandbox for a lane.
func (p *pool) fill(mk *making) {
	defer close(mk.done)
	defer mk.cancel()
	began := p.m.o.Now()
	s, err := p.m.makeSpare(mk)
	gone := p.settle(mk, s, err, began)
	if gone == nil {
		return
	}
	select {
	case <-gone: // then there is room for another
	case <-p.m.closing:
	}
}

// settle takes note of what came of making a sandbox. If another had to go for
// the next attempt, it returns what is closed when that is gone.
func (p *pool) settle(mk *making, s *spare, err error, began time.Time) (gone <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making = nil
	l, now := mk.lane, p.m.o.Now()
	var full *engine.HostFullError
	switch {
	case err == nil && p.on && p.barred[mk.digest] == 0:
		l.failures, l.failed, l.full = 0, "", false
		p.add(l, s)
		return nil
	case err == nil:
		p.m.discard(s)
		return s.freed
	case mk.ctx.Err() != nil:
		return nil // somebody did not want it
	case errors.As(err, &full) && !l.full:
		// What runs have used is being removed, most likely.
		l.full = true
		l.putOff(mk.digest, now, fullRetry)
		return nil
	case errors.As(err, &full):
		if s := p.yield(l); s != nil {
			return s.freed
		}
		l.putOff(mk.digest, now, firstRetry)
	case errors.Is(err, context.DeadlineExceeded) && (len(p.runs) > 0 || p.busy.After(began)):
		// Runs had the processors. That says nothing of the lane.
		l.putOff(mk.digest, now, firstRetry)
	default:
		l.fail(mk.digest, now)
	}
	level := slog.LevelWarn
	if errors.Is(err, errNotInstalled) {
		level = slog.LevelDebug
	}
	p.m.o.Log.Log(p.m.base, level, "no sandbox could be made in advance", "kind", l.kind, "for", l.names(), "again_in", l.retry.Sub(now), "err", err)
	return nil
}

// How long the next attempt is put off after a first failure, and after the
// host was found full.
const (
	firstRetry = 10 * time.Second
	fullRetry  = time.Second
)

// fail puts off the next attempt for longer each time, up to an hour, or until
// the image changes.
func (l *lane) fail(digest string, now time.Time) {
	if digest != l.failed {
		l.failures = 0
	}
	l.putOff(digest, now, min(firstRetry<<l.failures, time.Hour))
	l.failures = min(l.failures+1, 20)
}

func (l *lane) putOff(digest string, now time.Time, wait time.Duration) {
	l.failed, l.retry = digest, now.Add(wait)
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
