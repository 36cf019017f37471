package workspace

import (
	"context"
	"errors"
	"sync"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
)

// A Lease is a running workspace that is lent to somebody: it is not stopped
// for being idle until it is released.
type Lease struct {
	b       *box
	link    *link
	receipt engine.Receipt
	release func()
}

// ID is the workspace's identifier, which no other ever has.
func (l *Lease) ID() string { return l.b.id }

// Name is what the workspace's owner calls it.
func (l *Lease) Name() string { return l.b.name }

// Agent is a client of the workspace's agent. It fails for good when its
// connection breaks; another lease has another one then.
func (l *Lease) Agent() *agent.Client { return l.link.Client }

// Broken is closed when the connection has broken.
func (l *Lease) Broken() <-chan struct{} { return l.link.dead }

// Receipt is what bounds the workspace, as read back from the kernel when it
// was started.
func (l *Lease) Receipt() engine.Receipt { return l.receipt }

// NetworkUse is what engine.NetworkReporter says of the workspace; nothing where
// the engine knows nothing.
func (l *Lease) NetworkUse(ctx context.Context, since uint64) (engine.NetworkUse, error) {
	reporter, ok := l.b.m.o.Engine.(engine.NetworkReporter)
	if !ok || l.b.m.o.Network.None() {
		return engine.NetworkUse{}, nil
	}
	use, err := reporter.NetworkUse(ctx, l.b.id, since)
	if err == nil && use.Cursor < since { // its process is another, and counts anew
		use, err = reporter.NetworkUse(ctx, l.b.id, 0)
	}
	if err == nil {
		l.link.network.Store(&use.Cursor)
	}
	return use, err
}

// NetworkCursor is from where on to ask NetworkUse for what is refused from now
// on. What nobody has asked for yet may be among it.
func (l *Lease) NetworkCursor(ctx context.Context) (uint64, error) {
	if at := l.link.network.Load(); at != nil {
		return *at, nil
	}
	use, err := l.NetworkUse(ctx, 0)
	return use.Cursor, err
}

// Release gives the workspace back. Only the first call does anything.
func (l *Lease) Release() { l.release() }

// Lease lends a subject's workspace, by its name, the default one if that is
// "". It is started if it is stopped, and the default one is made if it does
// not exist. The error is a *sandbox.RequestError if there is no such
// workspace, or if the server has no room to run it now.
func (m *Manager) Lease(ctx context.Context, s access.Subject, name string) (*Lease, error) {
	b, err := m.named(s, name)
	if errors.Is(err, errNone) && (name == "" || name == Default) {
		b, err = m.makeDefault(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	return b.lease(ctx)
}

// makeDefault makes a subject's default workspace; of callers at the same time
// one does.
func (m *Manager) makeDefault(ctx context.Context, s access.Subject) (*box, error) {
	b, err := m.create(context.WithoutCancel(ctx), s, Default, m.o.Image())
	if err == nil {
		return b, nil
	}
	if other, found := m.named(s, Default); found == nil {
		return other, nil
	}
	return nil, err
}

// LeaseID is Lease by the workspace's identifier, whosever it is. It fails with
// engine.ErrNotFound if there is none.
func (m *Manager) LeaseID(ctx context.Context, id string) (*Lease, error) {
	b, err := m.byID(id)
	if err != nil {
		return nil, err
	}
	return b.lease(ctx)
}

// Attach is LeaseID for a workspace that runs. It fails with
// engine.ErrNotRunning if it does not, and starts nothing.
func (m *Manager) Attach(ctx context.Context, id string) (*Lease, error) {
	b, err := m.byID(id)
	if err != nil {
		return nil, err
	}
	return b.attach(ctx)
}

// Running is whether the workspace of that identifier exists and runs.
func (m *Manager) Running(id string) bool {
	b, err := m.byID(id)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == Running
}

func (m *Manager) byID(id string) (*box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if b := m.boxes[id]; b != nil {
		return b, nil
	}
	return nil, engine.ErrNotFound
}

func (b *box) lease(ctx context.Context) (*Lease, error) {
	for started := false; ; {
		l, changed, err := b.tryLease(!started)
		if l != nil || err != nil {
			return l, err
		}
		started = true
		if err := b.await(ctx, changed); err != nil {
			return nil, err
		}
	}
}

// tryLease returns a lease if the workspace runs, or else what is closed when
// it is worth trying again. A stopped workspace is started, the first time; if
// it is stopped again afterwards, it could not be.
func (b *box) tryLease(first bool) (*Lease, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.now() {
	case Running:
		return b.lend(), nil, nil
	case Stopped:
		if !first && b.failed != nil {
			return nil, nil, b.failed
		}
		if b.m.base.Err() != nil {
			return nil, nil, ErrClosed
		}
		b.to(Starting)
		b.m.background(func() { b.bring(b.startAgain) })
	case Deleting, Gone:
		return nil, nil, refuse("the sandbox %q is being deleted", b.name)
	}
	return nil, b.changed, nil
}

// lend counts a lease. The caller holds b.mu.
func (b *box) lend() *Lease {
	b.leases++
	b.used = b.m.o.Now()
	return &Lease{b: b, link: b.link, receipt: b.receipt, release: sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.leases--
		b.used = b.m.o.Now()
	})}
}

// attach lends the workspace if it runs, or is about to.
func (b *box) attach(ctx context.Context) (*Lease, error) {
	for {
		b.mu.Lock()
		state, changed := b.now(), b.changed
		if state == Running {
			defer b.mu.Unlock()
			return b.lend(), nil
		}
		b.mu.Unlock()
		if state != Starting {
			return nil, engine.ErrNotRunning
		}
		if err := b.await(ctx, changed); err != nil {
			return nil, err
		}
	}
}
