package enginetest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// Memory is an engine whose sandboxes are directories of the host, with the
// agent running in this process and its jobs as ordinary processes. Nothing is
// isolated and no limit is enforced: it is for tests of what stands on an
// engine, with scripts that can be trusted.
//
// Paths of the agent's API are below the sandbox's directory, but a script
// sees the host: it finds its files by relative paths, as its working
// directory is the sandbox's, or by an argument that names one.
//
// TestMain of a package that uses it must call agent.RunHelper first.
type Memory struct {
	world *world

	mu     sync.Mutex
	closed bool
}

// world is what outlives an engine: a Memory that is opened again finds it.
type world struct {
	dir string

	mu          sync.Mutex
	sandboxes   map[string]*sandbox
	images      []string // nil for any
	hostFull    *engine.HostFullError
	failRemoves int
}

// sandbox is guarded by world.mu, besides the channels.
type sandbox struct {
	status engine.Status
	limits engine.Limits
	root   string
	agent  *agent.Server
	ended  chan struct{} // closed when the running agent ends
	stream chan struct{} // holds a token while a stream is open
}

var _ engine.Engine = (*Memory)(nil)

// NewMemory returns an engine without sandboxes. Those that the test leaves
// are removed at its end, whether the engine was closed or not.
func NewMemory(t testing.TB) *Memory {
	w := &world{dir: t.TempDir(), sandboxes: map[string]*sandbox{}}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, sb := range w.sandboxes {
			sb.stop()
		}
	})
	return &Memory{world: w}
}

// Reopen returns an engine with the same sandboxes, as a server that was
// started again finds them.
func (m *Memory) Reopen() *Memory { return &Memory{world: m.world} }

// SetImages makes Create fail with engine.ErrNoImage for all other images.
// Without it, every image exists.
func (m *Memory) SetImages(names ...string) {
	m.world.mu.Lock()
	defer m.world.mu.Unlock()
	m.world.images = append([]string{}, names...)
}

// SetHostFull makes Create fail with err until it is set to nil.
func (m *Memory) SetHostFull(err *engine.HostFullError) {
	m.world.mu.Lock()
	defer m.world.mu.Unlock()
	m.world.hostFull = err
}

// FailRemoves makes the next n calls of Remove that find a sandbox fail after
// having stopped it.
func (m *Memory) FailRemoves(n int) {
	m.world.mu.Lock()
	defer m.world.mu.Unlock()
	m.world.failRemoves = n
}

// Root is the directory that a sandbox takes for its root.
func (m *Memory) Root(id string) string { return filepath.Join(m.world.dir, id) }

const notEnforced = "not enforced: this engine is for tests"

// Properties says that nothing is enforced.
func (m *Memory) Properties() engine.Properties {
	un := map[string]string{}
	for _, limit := range []string{"memory", "cpus", "pids", "tmp", "disk", "inodes"} {
		un[limit] = notEnforced
	}
	return engine.Properties{Engine: "memory (for tests)", Unenforced: un}
}

// lock returns the world, to be unlocked, unless the engine is closed or ctx
// has ended.
func (m *Memory) lock(ctx context.Context) (*world, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, engine.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.world.mu.Lock()
	return m.world, nil
}

// find is lock with a sandbox that exists.
func (m *Memory) find(ctx context.Context, id string) (*world, *sandbox, error) {
	w, err := m.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	sb := w.sandboxes[id]
	if sb == nil {
		w.mu.Unlock()
		return nil, nil, fmt.Errorf("sandbox %q: %w", id, engine.ErrNotFound)
	}
	return w, sb, nil
}

// Create makes the sandbox's directory.
func (m *Memory) Create(ctx context.Context, spec engine.Spec) error {
	if err := engine.CheckID(spec.ID); err != nil {
		return err
	}
	if err := spec.Limits.Check(); err != nil {
		return err
	}
	w, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	switch {
	case w.sandboxes[spec.ID] != nil:
		return fmt.Errorf("sandbox %s: %w", spec.ID, engine.ErrExists)
	case w.images != nil && !slices.Contains(w.images, spec.Image):
		return fmt.Errorf("image %q: %w", spec.Image, engine.ErrNoImage)
	case w.hostFull != nil:
		return w.hostFull
	}
	root := filepath.Join(w.dir, spec.ID)
	for _, dir := range []string{"sandbox/input", "sandbox/output", "tmp", "root"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			os.RemoveAll(root)
			return fmt.Errorf("creating sandbox %s: %w", spec.ID, err)
		}
	}
	w.sandboxes[spec.ID] = &sandbox{
		status: engine.Status{
			ID: spec.ID, State: engine.Created, Labels: maps.Clone(spec.Labels),
			Image: spec.Image, Digest: "memory:" + spec.Image, Created: time.Now(), Expires: spec.Expires,
		},
		limits: spec.Limits,
		root:   root,
		stream: make(chan struct{}, 1),
	}
	return nil
}

// Start starts an agent in this process.
func (m *Memory) Start(ctx context.Context, id string) error {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	if sb.status.State != engine.Running {
		sb.status.State = engine.Running
		sb.agent = agent.NewServer(agent.Options{Root: sb.root, Env: []string{"PATH=" + os.Getenv("PATH")}})
		sb.ended = make(chan struct{})
	}
	return nil
}

// Claim changes labels and expiry.
func (m *Memory) Claim(ctx context.Context, id string, labels map[string]string, expires time.Time) error {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	if sb.status.State != engine.Running {
		return fmt.Errorf("sandbox %s: %w", id, engine.ErrNotRunning)
	}
	sb.status.Labels, sb.status.Expires = maps.Clone(labels), expires
	return nil
}

// Connect returns one end of a socket pair whose other end the agent serves.
func (m *Memory) Connect(ctx context.Context, id string) (net.Conn, error) {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	server, ended, running := sb.agent, sb.ended, sb.status.State == engine.Running
	w.mu.Unlock()
	notRunning := fmt.Errorf("sandbox %s: %w", id, engine.ErrNotRunning)
	if !running {
		return nil, notRunning
	}
	select {
	case sb.stream <- struct{}{}:
	case <-ended:
		return nil, notRunning
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ours, theirs, err := socketpair()
	if err != nil {
		<-sb.stream
		return nil, fmt.Errorf("connecting to sandbox %s: %w", id, err)
	}
	go server.Serve(theirs)
	return &stream{Conn: ours, release: sync.OnceFunc(func() { <-sb.stream })}, nil
}

// stream lets the next one be had when it is closed.
type stream struct {
	net.Conn
	release func()
}

func (s *stream) Close() error {
	defer s.release()
	return s.Conn.Close()
}

func socketpair() (ours, theirs net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		defer f.Close() // FileConn duplicates
		if conns[i], err = net.FileConn(f); err != nil && i == 1 {
			conns[0].Close()
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return conns[0], conns[1], nil
}

// stop ends the agent with all jobs.
func (sb *sandbox) stop() {
	if sb.status.State == engine.Running {
		sb.agent.Close()
		close(sb.ended)
		sb.agent = nil
		sb.status.State = engine.Stopped
	}
}

// Stop ends the agent and what its jobs started.
func (m *Memory) Stop(ctx context.Context, id string) error {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	sb.stop()
	return nil
}

// Remove ends the sandbox and deletes its directory.
func (m *Memory) Remove(ctx context.Context, id string) error {
	w, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	sb := w.sandboxes[id]
	if sb == nil {
		return nil
	}
	sb.stop()
	if w.failRemoves > 0 {
		w.failRemoves--
		return fmt.Errorf("removing sandbox %s: made to fail", id)
	}
	if err := os.RemoveAll(sb.root); err != nil {
		return fmt.Errorf("removing sandbox %s: %w", id, err)
	}
	delete(w.sandboxes, id)
	return nil
}

// List reports the sandboxes.
func (m *Memory) List(ctx context.Context) ([]engine.Status, error) {
	w, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer w.mu.Unlock()
	var list []engine.Status
	for _, id := range slices.Sorted(maps.Keys(w.sandboxes)) {
		st := w.sandboxes[id].status
		st.Labels = maps.Clone(st.Labels)
		list = append(list, st)
	}
	return list, nil
}

// Inspect returns the limits as they were asked for, none of them enforced.
func (m *Memory) Inspect(ctx context.Context, id string) (engine.Receipt, error) {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return engine.Receipt{}, err
	}
	defer w.mu.Unlock()
	if sb.status.State != engine.Running {
		return engine.Receipt{}, fmt.Errorf("sandbox %s: %w", id, engine.ErrNotRunning)
	}
	limit := func(v float64) engine.Limit { return engine.Limit{Value: v, Note: notEnforced} }
	l := sb.limits
	return engine.Receipt{
		Memory: limit(float64(l.Memory)), CPUs: limit(l.CPUs), PIDs: limit(float64(l.PIDs)),
		Tmp: limit(float64(l.Tmp)), Disk: limit(float64(l.Disk)), Inodes: limit(float64(l.Inodes)),
		Network: "the host's",
	}, nil
}

// Close lets go of the engine; its sandboxes run on until the test ends.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Rebase deletes all but /sandbox.
func (m *Memory) Rebase(ctx context.Context, id, image string) error {
	w, sb, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	defer w.mu.Unlock()
	switch {
	case sb.status.State == engine.Running:
		return fmt.Errorf("sandbox %s: %w", id, engine.ErrRunning)
	case w.images != nil && !slices.Contains(w.images, image):
		return fmt.Errorf("image %q: %w", image, engine.ErrNoImage)
	}
	entries, err := os.ReadDir(sb.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "sandbox" {
			if err := os.RemoveAll(filepath.Join(sb.root, e.Name())); err != nil {
				return err
			}
		}
	}
	sb.status.Image, sb.status.Digest = image, "memory:"+image
	return nil
}
