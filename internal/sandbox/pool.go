package sandbox

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"belljar/internal/lang"
)

// A pool holds sandboxes that are ready before a script asks for one: those of
// a warm lane with their interpreter started, those of a bare lane without, for
// any runtime of their image.
//
// It is filled in the background, one sandbox at a time, while no burst of
// runs needs the machine. A run that finds nothing does not wait for it.
type pool struct {
	m    *Manager
	wake chan struct{} // holds a token when there may be something to do

	mu      sync.Mutex // guards what follows, and the lanes
	on      bool
	lanes   []*lane
	running int       // runs under way
	busy    time.Time // when one began or ended last
}

// lane is the pool's part for one kind of sandbox.
type lane struct {
	name     string // for the log
	image    string
	warm     bool
	runtimes []lang.Runtime // one if warm
	min, max int

	ready    []*spare // the oldest first
	making   int
	size     int64 // bytes of memory that the last one used
	use      usage
	failures int       // in a row
	retry    time.Time // none is made before
	failed   string    // the digest of the image it failed with
}

// spare is a sandbox in the pool.
type spare struct {
	seat
	digest string // of its image
	made   time.Time
	size   int64 // bytes of memory
}

const (
	// spareAge is how long a spare sandbox waits before another takes its
	// place.
	spareAge = time.Hour
	// burstEnds is how long no run may begin or end before a burst is over.
	burstEnds = 250 * time.Millisecond
	// poolTick is the time between two looks at the pool without an occasion.
	poolTick = time.Second
	// leastSize is what a spare sandbox counts with until one was measured.
	leastSize = 32 << 20
	// shortMemory is the share of the host's memory that the pool leaves.
	shortMemory = 0.1
)

func newPool(m *Manager) *pool {
	p := &pool{m: m, wake: make(chan struct{}, 1)}
	bare := map[string]*lane{}
	for _, r := range m.o.Table.All() {
		if r.PoolMax == 0 {
			continue
		}
		image := m.image(r)
		if r.Warm {
			p.lanes = append(p.lanes, &lane{name: r.Name, image: image, warm: true, runtimes: []lang.Runtime{r}, min: r.PoolMin, max: r.PoolMax})
			continue
		}
		if bare[image] == nil {
			bare[image] = &lane{name: "any of " + image, image: image}
			p.lanes = append(p.lanes, bare[image])
		}
		l := bare[image]
		l.runtimes = append(l.runtimes, r)
		l.min, l.max = max(l.min, r.PoolMin), max(l.max, r.PoolMax)
	}
	return p
}

// serves is whether a sandbox of the lane can run scripts of r without more
// than r's command.
func (l *lane) serves(r lang.Runtime) bool {
	return slices.ContainsFunc(l.runtimes, func(o lang.Runtime) bool { return o.Name == r.Name })
}

// take returns a spare sandbox for a run, which is now the caller's alone, or
// nil: of the runtime's own lane, or a bare one of the same image.
func (p *pool) take(pl plan) *spare {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return nil
	}
	var own, bare *lane
	for _, l := range p.lanes {
		switch {
		case l.serves(pl.runtime):
			own = l
		case !l.warm && l.image == pl.image:
			bare = l
		}
	}
	for _, l := range []*lane{own, bare} {
		if l == nil {
			continue
		}
		if s := p.pop(l); s != nil {
			return s
		}
	}
	return nil
}

// pop takes the oldest sandbox of a lane that is fit for use out of the pool.
func (p *pool) pop(l *lane) *spare {
	digest, err := p.m.o.Digest(l.image)
	for len(l.ready) > 0 {
		s := l.ready[0]
		l.ready = l.ready[1:]
		p.poke()
		if err == nil && s.fit(digest, p.m.o.Now()) {
			return s
		}
		p.m.discard(s)
	}
	return nil
}

func (s *spare) fit(digest string, now time.Time) bool {
	return s.digest == digest && now.Sub(s.made) < spareAge && s.b.is(Ready)
}

// asked counts a run of a runtime, and whether it began in a sandbox of the
// runtime's own lane.
func (p *pool) asked(r lang.Runtime, hit bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if l.serves(r) {
			l.use.note(r.Name, hit, p.m.o.Now())
		}
	}
}

// runBegins and runEnds tell the pool what the machine is busy with.
func (p *pool) runBegins() { p.count(1) }
func (p *pool) runEnds()   { p.count(-1) }

func (p *pool) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running += n
	p.busy = p.m.o.Now()
	p.poke()
}

// poke makes the loop look for something to do.
func (p *pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// drain gives up all spare sandboxes, waits until they are removed, and is
// true if there were any.
func (p *pool) drain() bool {
	var removals sync.WaitGroup
	all := p.empty()
	for _, s := range all {
		s.c.Close()
		if s.b.to(Ending) == nil {
			removals.Go(func() { p.m.removeWithRetries(s.b) })
		}
	}
	removals.Wait()
	return len(all) > 0
}

// empty takes all sandboxes out of the pool.
func (p *pool) empty() []*spare {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*spare
	for _, l := range p.lanes {
		all = append(all, l.ready...)
		l.ready = nil
	}
	return all
}

// close gives up all spare sandboxes and lets no more in.
func (p *pool) close() {
	p.mu.Lock()
	p.on = false
	p.mu.Unlock()
	for _, s := range p.empty() {
		p.m.discard(s)
	}
}

// PoolState is the pool's part for a runtime.
type PoolState struct {
	Runtime string
	// Ready sandboxes wait; Target is how many should. Runtimes that cannot
	// be started in advance share those of their image.
	Ready, Target int
	// Hits and Misses count runs that did, and did not, find one.
	Hits, Misses int64
}

// Pool describes the pool: each runtime's part of it, and the memory that all
// sandboxes in it use together, in bytes.
func (m *Manager) Pool() (states []PoolState, memory int64) {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for _, r := range l.runtimes {
			s := PoolState{Runtime: r.Name, Ready: len(l.ready), Hits: l.use.hits[r.Name], Misses: l.use.misses[r.Name]}
			if p.on {
				s.Target = l.target(m.o.Now())
			}
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b PoolState) int { return cmp.Compare(a.Runtime, b.Runtime) })
	return states, p.memory()
}

// memory is what all spare sandboxes use together.
func (p *pool) memory() int64 {
	var sum int64
	for _, l := range p.lanes {
		for _, s := range l.ready {
			sum += s.size
		}
		sum += int64(l.making) * l.expect()
	}
	return sum
}

// expect is how much memory the next sandbox of a lane is likely to use.
func (l *lane) expect() int64 { return cmp.Or(l.size, leastSize) }

// target is how many sandboxes should be ready.
func (l *lane) target(now time.Time) int { return min(l.max, max(l.min, l.use.peak(now))) }

// usage is what was asked of a lane.
type usage struct {
	hits, misses map[string]int64 // by runtime
	recent       []time.Time      // the last maxRecent
	most         int              // at once, of late
	mostAt       time.Time
}

const (
	maxRecent = 64
	// atOnce is in what time runs count as made at once: those that a pool
	// cannot be refilled between.
	atOnce = 5 * time.Second
	// remembered is how long a pool stays as large as it once had to be.
	remembered = 10 * time.Minute
)

func (u *usage) note(runtime string, hit bool, now time.Time) {
	if u.hits == nil {
		u.hits, u.misses = map[string]int64{}, map[string]int64{}
	}
	if hit {
		u.hits[runtime]++
	} else {
		u.misses[runtime]++
	}
	u.recent = append(u.recent, now)
	u.recent = u.recent[max(0, len(u.recent)-maxRecent):]
	if n := u.within(atOnce, now); n >= u.peak(now) {
		u.most, u.mostAt = n, now
	}
}

// last is when the lane was asked last.
func (u *usage) last() time.Time {
	if len(u.recent) == 0 {
		return time.Time{}
	}
	return u.recent[len(u.recent)-1]
}

func (u *usage) within(d time.Duration, now time.Time) int {
	n := 0
	for _, t := range u.recent {
		if now.Sub(t) < d {
			n++
		}
	}
	return n
}

// peak is how many runs came at once, of late.
func (u *usage) peak(now time.Time) int {
	if now.Sub(u.mostAt) > remembered {
		return 0
	}
	return u.most
}
