package workspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
)

// A box is one workspace.
type box struct {
	m       *Manager
	id      string // for good
	subject access.Subject
	name    string
	created time.Time

	mu      sync.Mutex // guards what follows; the manager's may be taken while it is held
	image   string
	digest  string
	state   State
	changed chan struct{} // closed at the next change of state
	failed  error         // why the last start came to nothing
	leases  int           // of those who work in it now
	used    time.Time     // when somebody last did
	link    *link         // to its agent, while it runs
	receipt engine.Receipt
	swept   time.Time // when old files were last looked for
	notes   []string  // for whoever works in it next
}

// Info describes a workspace.
type Info struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   State     `json:"state" jsonschema:"such as running or stopped"`
	Image   string    `json:"image"`
	Created time.Time `json:"created"`
	Used    time.Time `json:"used" jsonschema:"when somebody last worked in it"`
	// NewImage is whether the image's name means a newer one by now.
	NewImage bool `json:"new_image,omitempty" jsonschema:"the image's name means a newer image by now"`
}

func (b *box) info() Info {
	digest, err := b.m.o.Digest(b.from())
	b.mu.Lock()
	defer b.mu.Unlock()
	return Info{
		ID: b.id, Name: b.name, State: b.state, Image: b.image, Created: b.created, Used: b.used,
		NewImage: err == nil && b.digest != "" && digest != b.digest,
	}
}

// What the steps of a workspace's life may take. The agent is hostile, so each
// has an end.
const (
	startTime  = 60 * time.Second
	stopTime   = 90 * time.Second
	healthTime = 10 * time.Second
)

// link is a connection to a workspace's agent.
type link struct {
	*agent.Client
	dead <-chan struct{} // closed when the connection has broken
	// network is how far the network's denials were asked for; nil if not yet.
	network atomic.Pointer[uint64]
}

// watchedConn notes when it is of no more use.
type watchedConn struct {
	net.Conn
	once sync.Once
	dead chan struct{}
}

func (c *watchedConn) end() { c.once.Do(func() { close(c.dead) }) }

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.end()
	}
	return n, err
}

// Write may be all that a connection ever sees that breaks at once.
func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.end()
	}
	return n, err
}

func (c *watchedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// bring reaches the agent, in one way or another, for whoever waits for it. The
// state is Starting; it is Running or Stopped afterwards.
func (b *box) bring(how func(context.Context) (*link, error)) {
	ctx, cancel := context.WithTimeout(b.m.base, startTime)
	defer cancel()
	begun := time.Now()
	l, receipt, err := b.reach(ctx, how)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(err, errEnded):
		b.m.o.Log.Info("a workspace has ended", "workspace", b.id, "name", b.name)
		b.to(Stopped)
		return
	case err != nil:
		b.m.o.Log.Warn("a workspace does not run", "workspace", b.id, "name", b.name, "err", err)
		b.failed = err
		b.to(Stopped)
		return
	}
	b.link, b.receipt, b.used, b.failed = l, receipt, b.m.o.Now(), nil
	b.to(Running)
	b.m.background(func() { b.watch(l) })
	if b.m.o.FileTTL > 0 {
		b.m.background(b.expireFiles)
	}
	b.m.o.Log.Debug("reached a workspace", "workspace", b.id, "name", b.name, "took", time.Since(begun))
}

func (b *box) reach(ctx context.Context, how func(context.Context) (*link, error)) (*link, engine.Receipt, error) {
	l, err := how(ctx)
	if err == nil {
		var receipt engine.Receipt
		if receipt, err = b.m.o.Engine.Inspect(ctx, b.id); err == nil {
			return l, receipt, nil
		}
		l.Close()
	}
	return nil, engine.Receipt{}, fmt.Errorf("reaching workspace %s: %w", b.id, err)
}

// errEnded says that a workspace that ran does not run any more.
var errEnded = errors.New("the workspace has ended")

// startAgain starts a workspace that is stopped.
func (b *box) startAgain(ctx context.Context) (*link, error) {
	err := b.m.o.Engine.Start(ctx, b.id)
	if err == nil {
		var l *link
		if l, err = b.connect(ctx); err == nil {
			return l, nil
		}
	}
	return nil, b.m.explain(err, b.from())
}

// connectAgain connects to a workspace that runs. It fails with errEnded if it
// does not any more.
func (b *box) connectAgain(ctx context.Context) (*link, error) {
	l, err := b.connect(ctx)
	if errors.Is(err, engine.ErrNotRunning) || errors.Is(err, engine.ErrNotFound) {
		err = errEnded
	}
	return l, err
}

func (b *box) connect(ctx context.Context) (*link, error) {
	conn, err := b.m.o.Engine.Connect(ctx, b.id)
	if err != nil {
		return nil, err
	}
	watched := &watchedConn{Conn: conn, dead: make(chan struct{})}
	return &link{Client: agent.NewClient(watched), dead: watched.dead}, nil
}

// watch waits for the connection to break, and makes a new one if the workspace
// still runs.
func (b *box) watch(l *link) {
	select {
	case <-l.dead:
	case <-b.m.base.Done():
		return
	}
	b.mu.Lock()
	ours := b.link == l && b.state == Running
	if ours {
		b.link = nil
		b.to(Starting)
	}
	b.mu.Unlock()
	l.Close()
	if ours {
		b.bring(b.connectAgain)
	}
}

// stop ends what runs in the workspace. If it is on its way somewhere, that
// comes first. With jobs in it, it is refused unless they are to be ended.
func (b *box) stop(ctx context.Context, endJobs bool) error {
	for {
		b.mu.Lock()
		state, changed := b.state, b.changed
		b.mu.Unlock()
		switch state {
		case Running:
			return b.stopRunning(ctx, endJobs)
		case Stopped:
			return nil
		case Deleting, Gone:
			return refuse("the sandbox %q is being deleted", b.name)
		}
		if err := b.await(ctx, changed); err != nil {
			return err
		}
	}
}

// await waits for a change of state.
func (b *box) await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.m.base.Done():
		return ErrClosed
	}
}

func (b *box) stopRunning(ctx context.Context, endJobs bool) error {
	used := b.lastUse()
	if !endJobs {
		n, err := b.busy(ctx)
		if err != nil {
			return fmt.Errorf("asking workspace %s for its jobs: %w", b.id, err)
		}
		if n > 0 {
			return refuse("jobs have processes running in the sandbox %q (%d of them); wait for them, or end them with it (end_jobs, --force)", b.name, n)
		}
	}
	b.mu.Lock()
	// Whoever has come since the question may have left processes behind.
	if !endJobs && (b.leases > 0 || b.used != used) {
		b.mu.Unlock()
		return refuse("somebody works in the sandbox %q now; wait, or end it all the same (end_jobs, --force)", b.name)
	}
	err := b.to(Stopping)
	l := b.link
	b.link = nil
	b.mu.Unlock()
	if err != nil {
		return busy(b, err)
	}
	l.Close()
	// Whoever asked may go away; half a stop is none.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err = b.m.o.Engine.Stop(ctx, b.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = nil
	b.to(Stopped)
	if err != nil {
		// The next start clears away what is left of it.
		return fmt.Errorf("stopping workspace %s: %w", b.id, err)
	}
	b.m.o.Log.Info("stopped a workspace", "workspace", b.id, "name", b.name)
	return nil
}

// lingerTime is for the processes of a job that has just exited to be gone.
const lingerTime = 300 * time.Millisecond

// busy asks the agent how many jobs have processes. That is no use of it.
func (b *box) busy(ctx context.Context) (int, error) {
	b.mu.Lock()
	l, state := b.link, b.state
	b.mu.Unlock()
	if state != Running {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	for end := time.Now().Add(lingerTime); ; {
		h, err := l.Health(ctx)
		if err != nil || h.Busy == 0 || h.Jobs > 0 || time.Now().After(end) {
			return h.Busy, err
		}
		select {
		case <-time.After(lingerTime / 20):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// from is the image that it stands on.
func (b *box) from() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.image
}

func (b *box) is(s State) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == s
}

func (b *box) lastUse() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// letGo closes what this process holds of the workspace, which goes on.
func (b *box) letGo() {
	b.mu.Lock()
	l := b.link
	b.link = nil
	b.mu.Unlock()
	if l != nil {
		l.Close()
	}
}
