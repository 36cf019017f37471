package sandbox

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar/internal/lang"
)

// A pool holds sandboxes that are ready before a script asks for one: with the
// interpreter of one runtime started, with or without the libraries that
// scripts usually load, or bare, for any runtime of their image.
//
// It is filled in the background, one sandbox at a time, while no burst of
// runs needs the machine. A run that finds nothing does not wait for it.
type pool struct {
	m    *Manager
	wake chan struct{} // holds a token when there may be something to do

	mu      sync.Mutex // guards what follows, and the lanes
	on      bool
	lanes   []*lane
	making  *making            // what is being made now, or nil
	runs    map[*underWay]bool // runs under way
	busy    time.Time          // when one began or ended last
	barred  map[string]int     // digests of images that none may stand on
	made    int                // how often room was made for a run
	crowded time.Time          // until then none is made: runs want the room
	sized   time.Time          // when the sizes were measured last
	free    float64            // share of the host's memory
	freeAt  time.Time          // when that was so

	room chan struct{} // holds a token; who has it may make room for a run
}

// underWay is a run under way.
type underWay struct{ since time.Time }

// lane is the pool's part for one kind of sandbox.
type lane struct {
	kind     laneKind
	image    string
	runtimes []lang.Runtime // one, unless it is bare
	min, max int

	ready    []*spare // the oldest first
	size     int64    // bytes of memory that the last one used
	sizeOf   string   // the digest of its image
	use      usage
	failures int       // in a row
	retry    time.Time // none is made before
	failed   string    // the digest of the image it failed with
	full     bool      // the last attempt has found the host full
}

// spare is a sandbox in the pool.
type spare struct {
	seat
	digest string // of its image
	made   time.Time
	size   int64         // bytes of memory
	freed  chan struct{} // closed when it is removed, unless a run has it
}

// laneKind is how far the sandboxes of a lane have got.
type laneKind string

const (
	laneBare  laneKind = "bare"  // the agent runs
	laneLight laneKind = "light" // the interpreter is started as well
	laneFull  laneKind = "full"  // and has loaded libraries
)

const (
	// spareAge is how long a spare sandbox waits before another takes its
	// place.
	spareAge = time.Hour
	// burstEnds is how long no run may begin or end before a burst is over.
	burstEnds = 250 * time.Millisecond
	// burstRun is how long a run is part of a burst: one that goes on for
	// longer must not keep the pool empty for all others.
	burstRun = time.Second
	// poolTick is the time between two looks at the pool without an occasion.
	poolTick = time.Second
	// leastSize is what a spare sandbox counts with until one was measured.
	leastSize = 32 << 20
	// crowdedTime is how long none is made after a run found no room.
	crowdedTime = 5 * time.Second
	// sizeEvery is the time between two measurements of all spare sandboxes.
	sizeEvery = time.Minute
	// shortMemory is the share of the host's memory that the pool leaves.
	shortMemory = 0.1
)

func newPool(m *Manager) *pool {
	p := &pool{
		m: m, wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
		runs: map[*underWay]bool{}, barred: map[string]int{},
	}
	bare := map[string]*lane{}
	for _, r := range m.o.Table.All() {
		if r.PoolMax == 0 {
			continue
		}
		image := m.image(r)
		if r.Warm {
			full := &lane{kind: laneFull, image: image, runtimes: []lang.Runtime{r}, min: r.PoolMin, max: r.PoolMax}
			p.lanes = append(p.lanes, full)
			if r.Preload != "" {
				light := *full
				light.kind = laneLight
				p.lanes = append(p.lanes, &light)
			}
			continue
		}
		if bare[image] == nil {
			bare[image] = &lane{kind: laneBare, image: image}
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

func (l *lane) names() string {
	var names []string
	for _, r := range l.runtimes {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// take returns a spare sandbox for a run, which is now the caller's alone, or
// nil: of the runtime's own lane, or a bare one of the same image.
func (p *pool) take(pl plan) *spare {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return nil
	}
	for _, l := range p.choices(pl) {
		if s := p.pop(l); s != nil {
			return s
		}
	}
	return nil
}

// choices are the lanes that a run can have a sandbox of, the best first: the
// one that is meant for such scripts, others of the runtime, a bare one.
func (p *pool) choices(pl plan) []*lane {
	var fit, other, bare []*lane
	for _, l := range p.lanes {
		switch {
		case l.serves(pl.runtime) && l.suits(pl):
			fit = append(fit, l)
		case l.serves(pl.runtime):
			other = append(other, l)
		case l.kind == laneBare && l.image == pl.image:
			bare = append(bare, l)
		}
	}
	return slices.Concat(fit, other, bare)
}

// suits is whether a lane of a run's runtime is the one meant for its script.
func (l *lane) suits(pl plan) bool {
	return l.kind == laneBare || (l.kind == laneFull) == pl.preload
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

// asked counts a run, and whether it began in a spare sandbox of its runtime.
func (p *pool) asked(pl plan, hit bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if l.serves(pl.runtime) && l.suits(pl) {
			l.use.note(pl.runtime.Name, hit, p.m.o.Now())
		}
	}
}

// runBegins tells the pool what the machine is busy with, until ends is called.
func (p *pool) runBegins() (ends func()) {
	r := &underWay{since: p.m.o.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[r], p.busy = true, r.since
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.runs, r)
		p.busy = p.m.o.Now()
		p.poke()
	}
}

// burst is whether runs come and go now that need the machine.
func (p *pool) burst(now time.Time) bool {
	if now.Sub(p.busy) >= burstEnds {
		return false
	}
	for r := range p.runs {
		if now.Sub(r.since) < burstRun {
			return true
		}
	}
	return false
}

// poke makes the loop look for something to do.
func (p *pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// close gives up all spare sandboxes, with the one that is being made, and
// lets no more in.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = false
	if p.making != nil {
		p.making.cancel()
	}
	for _, l := range p.lanes {
		for _, s := range l.ready {
			p.m.discard(s)
		}
		l.ready = nil
	}
}

// PoolState is a part of the pool that a runtime's scripts can begin in.
type PoolState struct {
	Runtime string
	// Kind is "full" for sandboxes with the interpreter started and its usual
	// libraries loaded, "light" without those, "bare" without an interpreter:
	// runtimes share those of their image.
	Kind string
	// Ready sandboxes wait; Target is how many should.
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
			s := PoolState{Runtime: r.Name, Kind: string(l.kind), Ready: len(l.ready), Hits: l.use.hits[r.Name], Misses: l.use.misses[r.Name]}
			if p.on {
				s.Target = l.target(m.o.Now())
			}
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b PoolState) int {
		return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Kind, b.Kind))
	})
	return states, p.memory()
}

// target is how many sandboxes should be ready.
func (l *lane) target(now time.Time) int { return min(l.max, max(l.min, l.use.peak(now))) }
