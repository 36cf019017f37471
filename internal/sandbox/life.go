package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"belljar/internal/access"
)

// State is where one of the Manager's sandboxes is in its life.
type State string

// The states. A sandbox goes through them in this order, and may go to Ending
// from each of the first three. There is no way back: what has been Used is
// never Ready again.
const (
	Making State = "making" // asked for, not there yet
	Ready  State = "ready"  // fresh, nothing has run in it
	Used   State = "used"   // something runs or has run in it
	Ending State = "ending" // to be removed, whatever happens
	Gone   State = "gone"   // removed
)

var next = map[State][]State{
	Making: {Ready, Ending},
	Ready:  {Used, Ending},
	Used:   {Ending},
	Ending: {Gone},
}

// A TransitionError says that a sandbox cannot go from one state to another.
type TransitionError struct {
	ID       string
	From, To State
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("sandbox %s is %s and cannot become %s", e.ID, e.From, e.To)
}

// A box is a sandbox that this Manager has made or is making.
type box struct {
	id string

	mu      sync.Mutex // guards what follows; nothing else is taken while it is held
	state   State
	due     time.Time // when its job is likely over at the latest; zero without one
	expires time.Time // when a sweep removes it
	cancel  func()    // ends what is done for it now; safe to call twice
	release func()    // gives its place to another; safe to call twice
}

// to moves the sandbox to a state, once: of two callers that ask for the same
// transition, one gets a *TransitionError.
func (b *box) to(s State) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(next[b.state], s) {
		return &TransitionError{ID: b.id, From: b.state, To: s}
	}
	b.state = s
	return nil
}

func (b *box) is(s State) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == s
}

// end ends what is done for the sandbox now.
func (b *box) end() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	cancel()
}

// leave gives the sandbox's place on.
func (b *box) leave() {
	b.mu.Lock()
	release := b.release
	b.mu.Unlock()
	release()
}

// hold makes the sandbox the holder of a place until it is removed, which may
// have happened already.
func (b *box) hold(release func()) {
	b.mu.Lock()
	b.release = release
	over := b.state == Ending || b.state == Gone
	b.mu.Unlock()
	if over {
		release()
	}
}

// waits notes that the sandbox is for a job yet to come, and until when.
func (b *box) waits(expires time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due, b.expires = time.Time{}, expires
}

// times returns when its job is likely over, and when a sweep removes it.
func (b *box) times() (due, expires time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.due, b.expires
}

// Labels of what the Manager makes.
const (
	labelOwner   = "owner"   // ownerName
	labelServer  = "server"  // Options.ServerID
	labelBoot    = "boot"    // a process of that server
	labelKind    = "kind"    // one of those below
	labelSubject = "subject" // whose run it is

	ownerName = "belljar"
	kindRun   = "run"
	kindProbe = "probe"
	kindSpare = "spare" // waits in the pool for a run
)

// What a sandbox's life may take besides its job. The agent is hostile, so
// every step has its own end.
const (
	setupTime   = 60 * time.Second // create, start, connect, write the inputs
	warmTime    = 3 * time.Minute  // the same for a spare one, with what others leave of the CPU
	answerTime  = 10 * time.Second // the agent's delay after a job's timeout
	collectTime = 60 * time.Second // fetch outputs
	expiryGrace = 60 * time.Second // until a sweep takes what should be gone
)

// claimTime bounds each of the two steps that make a spare sandbox that of a
// run: to claim it and write the inputs, and to let the script begin.
var claimTime = 20 * time.Second

// register makes a box known before anything is created for it, so that no
// sweep takes the sandbox for an orphan. The context ends with the box.
func (m *Manager) register(ctx context.Context, kind string, work time.Duration, release func()) (context.Context, *box) {
	b := &box{id: kind + "-" + randomID(), state: Making, release: sync.OnceFunc(release), cancel: func() {}}
	ctx = m.bind(ctx, b, work)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[b.id] = b
	return ctx, b
}

// bind gives a box a piece of work. The context ends with the box.
func (m *Manager) bind(ctx context.Context, b *box, work time.Duration) context.Context {
	now := m.o.Now()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.base, cancel)
	b.end() // its previous work
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = now.Add(work)
	b.expires = now.Add(setupTime + work + answerTime + collectTime + expiryGrace)
	b.cancel = func() { stop(); cancel() }
	return ctx
}

func (m *Manager) labels(kind string, s access.Subject) map[string]string {
	return map[string]string{
		labelOwner:   ownerName,
		labelServer:  m.o.ServerID,
		labelBoot:    m.boot,
		labelKind:    kind,
		labelSubject: s.ID,
	}
}

// destroy ends a sandbox and removes it in the background. Only the first
// call for a sandbox does anything. The caller is counted work.
func (m *Manager) destroy(b *box) {
	b.end()
	if b.to(Ending) != nil {
		return
	}
	m.work.Go(func() { m.removeWithRetries(b) })
}

// A removal that fails is tried again after a pause; then the sweep takes
// over.
var removePauses = []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second}

// removeTime bounds one removal.
const removeTime = 30 * time.Second

func (m *Manager) removeWithRetries(b *box) {
	// The place is given on after the first attempt: one removal that hangs
	// must not block runs for good.
	defer b.leave()
	for i := 0; ; i++ {
		err := m.remove(b)
		b.leave()
		if err == nil {
			return
		}
		m.o.Log.Warn("removing a sandbox failed", "sandbox", b.id, "attempt", i+1, "err", err)
		if i == len(removePauses) {
			return
		}
		select {
		case <-time.After(removePauses[i]):
		case <-m.closing:
		}
	}
}

func (m *Manager) remove(b *box) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := m.o.Engine.Remove(ctx, b.id); err != nil {
		return err
	}
	if err := b.to(Gone); err != nil {
		return nil // a sweep was faster
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, b.id)
	return nil
}

// box returns the sandbox of that identifier if this process made it.
func (m *Manager) box(id string) (*box, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.boxes[id]
	return b, ok
}

// left names the sandboxes that are not gone.
func (m *Manager) left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.boxes))
}
