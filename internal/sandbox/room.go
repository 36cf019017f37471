package sandbox

import (
	"cmp"
	"context"
	"errors"

	"belljar/internal/engine"
)

// What the pool takes of the host, and how it gives it back: memory, by a
// bound of its own; room for sandboxes, since runs need it more; and images,
// which cannot be removed while a sandbox stands on them.

// memory is what all spare sandboxes use together, in bytes.
func (p *pool) memory() int64 {
	var sum int64
	for _, l := range p.lanes {
		for _, s := range l.ready {
			sum += s.size
		}
	}
	if p.making != nil {
		sum += p.expect(p.making.lane, p.making.digest)
	}
	return sum
}

// expect is how much memory the next sandbox of a lane is likely to use. Where
// nobody knows, the guess is small enough for one to be tried.
func (p *pool) expect(l *lane, digest string) int64 {
	if l.sizeOf == digest {
		return l.size
	}
	return min(leastSize, p.m.o.PoolMemory/8)
}

// fits makes sure that the memory for another sandbox of a lane is there,
// giving up others if that is enough.
func (p *pool) fits(l *lane, digest string) bool {
	need := p.memory() + p.expect(l, digest) - p.m.o.PoolMemory
	for _, v := range p.lanes {
		if v.yields(l) {
			for _, s := range v.ready {
				need -= s.size
			}
		}
	}
	if need > 0 {
		return false
	}
	for p.memory()+p.expect(l, digest) > p.m.o.PoolMemory {
		if p.yield(l) == nil {
			return false
		}
	}
	return true
}

// yields is whether a lane makes room for another, which was asked later. Nil
// comes before all.
func (l *lane) yields(to *lane) bool {
	return len(l.ready) > 0 && (to == nil || l != to && l.use.last().Before(to.use.last()))
}

// victim is the lane that was asked longest ago, of those that yield.
func (p *pool) victim(to *lane) *lane {
	var victim *lane
	for _, l := range p.lanes {
		if l.yields(to) && (victim == nil || l.use.last().Before(victim.use.last())) {
			victim = l
		}
	}
	return victim
}

// yield gives up a sandbox for a lane, and returns it; nil if none yields.
func (p *pool) yield(to *lane) *spare {
	l := p.victim(to)
	if l == nil {
		return nil
	}
	s := l.ready[0]
	l.ready = l.ready[1:]
	p.m.discard(s)
	return s
}

// add takes in a sandbox that was made. Only now it is known how large it is.
func (p *pool) add(l *lane, s *spare) {
	l.size, l.sizeOf = s.size, s.digest
	l.ready = append(l.ready, s)
	for p.memory() > p.m.o.PoolMemory {
		if p.yield(l) != nil {
			continue
		}
		p.m.o.Log.Info("a spare sandbox does not fit into the memory of the pool", "kind", l.kind, "for", l.names(), "bytes", s.size, "pool_memory", p.m.o.PoolMemory)
		l.ready = l.ready[:len(l.ready)-1]
		p.m.discard(s)
		return
	}
}

// measure finds out, once in a while, what the spare sandboxes use by now:
// what a command does while it waits is its own business.
func (p *pool) measure() {
	p.mu.Lock()
	now := p.m.o.Now()
	if now.Sub(p.sized) < sizeEvery {
		p.mu.Unlock()
		return
	}
	p.sized = now
	var all []*spare
	for _, l := range p.lanes {
		all = append(all, l.ready...)
	}
	p.mu.Unlock()
	sizes := map[*spare]int64{}
	for _, s := range all {
		if r, err := p.m.o.Engine.Inspect(p.m.base, s.b.id); err == nil {
			sizes[s] = cmp.Or(r.MemoryUsed, leastSize)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, size := range sizes {
		s.size = size
	}
	for p.memory() > p.m.o.PoolMemory && p.yield(nil) != nil {
	}
}

// launchNow is launch for a sandbox that somebody waits for. If the host is
// too full, the pool makes room.
func (m *Manager) launchNow(ctx context.Context, b *box, spec engine.Spec) (*seat, error) {
	for {
		seen := m.pool.roomMade()
		c, err := m.launch(ctx, b, spec)
		if err == nil {
			return &seat{b: b, c: c}, nil
		}
		var full *engine.HostFullError
		if !errors.As(err, &full) || !m.pool.makeRoom(ctx, seen) {
			return nil, Explain(m.o.Log, err, spec.Image)
		}
	}
}

// roomMade is how often room was made so far.
func (p *pool) roomMade() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// makeRoom gives up a spare sandbox, also one that is only being made, and
// waits until it is gone; false if there is none. It is for a caller who found
// no room when room had been made seen times: if more has been made since,
// that is enough to try again.
func (p *pool) makeRoom(ctx context.Context, seen int) bool {
	select {
	case p.room <- struct{}{}:
		defer func() { <-p.room }()
	case <-ctx.Done():
		return false
	}
	p.mu.Lock()
	p.crowded = p.m.o.Now().Add(crowdedTime)
	if p.made != seen {
		p.mu.Unlock()
		return true
	}
	gone := p.giveUp()
	p.mu.Unlock()
	if gone == nil {
		return false
	}
	select {
	case <-gone:
	case <-ctx.Done():
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	return true
}

// giveUp gives up the sandbox that is least likely to be missed, or the one
// that is being made, and returns what is closed when it is gone.
func (p *pool) giveUp() <-chan struct{} {
	if s := p.yield(nil); s != nil {
		return s.freed
	}
	if p.making != nil {
		p.making.cancel()
		return p.making.done
	}
	return nil
}

// WithoutSpares calls f while no spare sandbox stands on the image of a
// digest.
func (m *Manager) WithoutSpares(ctx context.Context, digest string, f func() error) error {
	p := m.pool
	for _, gone := range p.bar(digest) {
		select {
		case <-gone:
		case <-ctx.Done():
			p.unbar(digest)
			return ctx.Err()
		}
	}
	defer p.unbar(digest)
	return f()
}

// bar keeps an image out of the pool, and returns what is closed when it is.
func (p *pool) bar(digest string) (gone []<-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.barred[digest]++
	for _, l := range p.lanes {
		keep := l.ready[:0:0]
		for _, s := range l.ready {
			if s.digest != digest {
				keep = append(keep, s)
				continue
			}
			p.m.discard(s)
			gone = append(gone, s.freed)
		}
		l.ready = keep
	}
	if p.making != nil && p.making.digest == digest {
		p.making.cancel()
		gone = append(gone, p.making.done)
	}
	return gone
}

func (p *pool) unbar(digest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.barred[digest]--; p.barred[digest] == 0 {
		delete(p.barred, digest)
	}
	p.poke()
}
