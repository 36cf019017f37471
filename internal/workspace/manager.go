// Package workspace keeps persistent sandboxes, each a Linux machine of its
// owner's: it makes them, starts them when they are needed, lends them to those
// who work in them, and stops them when nobody does.
//
// What exists is what the engine lists under this server's labels; there is no
// second record of it that could say otherwise.
package workspace

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"belljar/internal/access"
	"belljar/internal/engine"
	"belljar/internal/sandbox"
)

// Options configure a Manager. Zero fields have the default given.
type Options struct {
	Engine   engine.Engine // required
	ServerID string        // required; labels what this server makes
	// Image names what a workspace starts from that is made without saying so.
	// Required.
	Image func() string
	// Limits bound each workspace. Required.
	Limits engine.Limits
	// Network is what each workspace may reach, also one that was made when it
	// was something else.
	Network engine.Network
	// IdleStop is how long a workspace in which nothing happens goes on
	// running; 30 min. Below zero it is for ever.
	IdleStop time.Duration
	// FileTTL is how long an entry of /sandbox stays in which nothing changes.
	// Zero is for ever.
	FileTTL time.Duration
	// Max is how many workspaces a subject has; 20.
	Max int
	// Digest returns the digest of the image that a name means now, or an
	// error if there is none. Nil if names never change their meaning.
	Digest func(image string) (string, error)

	Log *slog.Logger     // discarded if nil
	Now func() time.Time // time.Now
}

// Default is the name of the workspace that is there without being asked for.
const Default = "default"

// Labels of what the Manager makes. The first two are those of package sandbox,
// whose sweep leaves alone what is of another kind.
const (
	labelOwner   = "owner"
	labelServer  = "server"
	labelKind    = "kind"
	labelSubject = "subject"
	labelName    = "name"

	ownerName = "belljar"
	kind      = "workspace"
)

// A Manager keeps workspaces. Its methods are safe for concurrent use.
type Manager struct {
	o Options

	// base ends when the Manager is closed, and with it what is done for
	// nobody in particular.
	base context.Context
	halt context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	boxes  map[string]*box
}

// ErrClosed is for calls after Close.
var ErrClosed = errors.New("the workspace manager is closed")

// Open finds the workspaces of this server and begins to look after them. It
// fails if the engine cannot list them.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o.IdleStop = cmp.Or(o.IdleStop, 30*time.Minute)
	o.Max = cmp.Or(o.Max, 20)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Digest == nil {
		o.Digest = func(image string) (string, error) { return "", nil }
	}
	if o.Engine == nil || o.ServerID == "" || o.Image == nil {
		return nil, errors.New("opening the workspaces: an engine, a server id and an image are needed")
	}
	if err := o.Limits.Check(); err != nil {
		return nil, fmt.Errorf("opening the workspaces: %w", err)
	}
	all, err := o.Engine.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the workspaces: %w", err)
	}
	m := &Manager{o: o, boxes: map[string]*box{}}
	m.base, m.halt = context.WithCancel(context.Background())
	for _, s := range all {
		if s.Labels[labelKind] == kind && s.Labels[labelServer] == o.ServerID {
			m.setNetwork(ctx, s)
			m.boxes[s.ID] = m.found(s)
		}
	}
	if o.IdleStop > 0 {
		m.background(func() { m.every(min(max(o.IdleStop/10, time.Second), time.Minute), m.StopIdle) })
	}
	if o.FileTTL > 0 {
		m.background(func() { m.every(sweepEvery/10, m.expireFiles) })
	}
	return m, nil
}

// setNetwork has a workspace that was made earlier reach what all do now.
func (m *Manager) setNetwork(ctx context.Context, s engine.Status) {
	setter, ok := m.o.Engine.(engine.NetworkSetter)
	if !ok {
		return
	}
	if err := setter.SetNetwork(ctx, s.ID, m.o.Network); err != nil {
		m.o.Log.Warn("a workspace's network could not be set", "workspace", s.ID, "err", err)
	}
}

// background runs f beside others; Close ends m.base and waits for it. It does
// nothing after Close.
func (m *Manager) background(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.work.Go(f)
	}
}

// every calls f again and again, d after it was called, until Close.
func (m *Manager) every(d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-m.base.Done():
			return
		case <-tick.C:
		}
		f()
	}
}

// found is a workspace that an earlier process has left. One that runs is
// taken over.
func (m *Manager) found(s engine.Status) *box {
	b := m.newBox(s.ID, access.Subject{ID: s.Labels[labelSubject]}, s.Labels[labelName], s.Image)
	b.digest, b.created = s.Digest, s.Created
	if s.State == engine.Running {
		b.state = Starting
		m.background(func() { b.bring(b.connectAgain) })
	}
	return b
}

func (m *Manager) newBox(id string, s access.Subject, name, image string) *box {
	now := m.o.Now()
	return &box{
		m: m, id: id, subject: s, name: name, image: image, created: now,
		state: Stopped, used: now, changed: make(chan struct{}),
	}
}

// Close lets go of the workspaces, which go on as they are.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.halt()
	m.work.Wait()
	for _, b := range m.all() {
		b.letGo()
	}
}

func (m *Manager) all() []*box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.boxes))
}

// Create makes a workspace from an image, the server's usual one if image is
// "". It does not start it.
func (m *Manager) Create(ctx context.Context, s access.Subject, name, image string) (Info, error) {
	if err := checkName(name); err != nil {
		return Info{}, err
	}
	if image == "" {
		image = m.o.Image()
	}
	b, err := m.create(ctx, s, name, image)
	if err != nil {
		return Info{}, err
	}
	return b.info(), nil
}

func (m *Manager) create(ctx context.Context, s access.Subject, name, image string) (*box, error) {
	b := m.newBox("ws-"+strings.ToLower(rand.Text()[:16]), s, name, image)
	b.state = Held // until it is there
	m.mu.Lock()
	err := m.admit(b)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	err = m.o.Engine.Create(ctx, engine.Spec{
		ID: b.id, Image: image, Limits: m.o.Limits, Durable: true, Network: m.o.Network,
		Labels: map[string]string{
			labelOwner: ownerName, labelServer: m.o.ServerID, labelKind: kind,
			labelSubject: s.ID, labelName: name,
		},
	})
	if err != nil {
		m.forget(b)
		b.mu.Lock()
		b.to(Gone)
		b.mu.Unlock()
		return nil, m.explain(fmt.Errorf("creating workspace %s: %w", b.id, err), image)
	}
	digest, _ := m.o.Digest(image)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.digest = digest
	m.o.Log.Info("made a workspace", "workspace", b.id, "name", name, "subject", s.ID, "image", image)
	return b, b.to(Stopped)
}

// admit notes a workspace that is to be made. The caller holds m.mu.
func (m *Manager) admit(b *box) error {
	if m.closed {
		return ErrClosed
	}
	mine := 0
	for _, other := range m.boxes {
		if other.subject.ID != b.subject.ID {
			continue
		}
		if other.name == b.name {
			return refuse("a sandbox %q exists already; choose another name, or delete that one", b.name)
		}
		mine++
	}
	if mine >= m.o.Max {
		return refuse("there are %d sandboxes, and no more are allowed; delete one first", mine)
	}
	m.boxes[b.id] = b
	return nil
}

func (m *Manager) forget(b *box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, b.id)
}

// List describes a subject's workspaces, in the order of their names.
func (m *Manager) List(s access.Subject) []Info {
	list := []Info{}
	for _, b := range m.all() {
		if b.subject.ID == s.ID {
			list = append(list, b.info())
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Delete removes a workspace with all that is in it. It is refused while jobs
// run in it, unless they are to be ended.
func (m *Manager) Delete(ctx context.Context, s access.Subject, name string, endJobs bool) error {
	b, err := m.named(s, name)
	if err != nil {
		return err
	}
	// One that is being deleted by another, or could not be, is deleted again.
	if !b.is(Deleting) {
		if err := b.stop(ctx, endJobs); err != nil {
			return err
		}
	}
	b.mu.Lock()
	err = b.to(Deleting)
	b.mu.Unlock()
	if err != nil {
		return busy(b, err)
	}
	if err := m.o.Engine.Remove(ctx, b.id); err != nil {
		return fmt.Errorf("deleting workspace %s: %w", b.id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.to(Gone) == nil {
		m.forget(b)
		m.o.Log.Info("deleted a workspace", "workspace", b.id, "name", b.name, "subject", s.ID)
	}
	return nil
}

// Rebuild puts a workspace onto an image: the newest of the name that it has,
// if image is "". What is in /sandbox stays; what was installed or changed
// elsewhere is gone. It is refused while jobs run in it, unless they are to be
// ended.
func (m *Manager) Rebuild(ctx context.Context, s access.Subject, name, image string, endJobs bool) (Info, error) {
	rebaser, ok := m.o.Engine.(engine.Rebaser)
	if !ok {
		return Info{}, refuse("this server's engine cannot rebuild sandboxes; create another one")
	}
	b, err := m.named(s, name)
	if err != nil {
		return Info{}, err
	}
	if err := b.stop(ctx, endJobs); err != nil {
		return Info{}, err
	}
	b.mu.Lock()
	image = cmp.Or(image, b.image)
	err = b.to(Held)
	b.mu.Unlock()
	if err != nil {
		return Info{}, busy(b, err)
	}
	err = rebaser.Rebase(context.WithoutCancel(ctx), b.id, image)
	digest, _ := m.o.Digest(image)
	b.mu.Lock()
	if err == nil {
		b.image, b.digest = image, digest
	}
	b.to(Stopped)
	b.mu.Unlock()
	if err != nil {
		return Info{}, m.explain(fmt.Errorf("rebuilding workspace %s: %w", b.id, err), image)
	}
	m.o.Log.Info("rebuilt a workspace", "workspace", b.id, "name", b.name, "subject", s.ID, "image", image)
	return b.info(), nil
}

// Stop ends what runs in a workspace. Its files stay. It is refused while jobs
// run in it, unless they are to be ended.
func (m *Manager) Stop(ctx context.Context, s access.Subject, name string, endJobs bool) (Info, error) {
	b, err := m.named(s, name)
	if err != nil {
		return Info{}, err
	}
	if err := b.stop(ctx, endJobs); err != nil {
		return Info{}, err
	}
	return b.info(), nil
}

// named finds a workspace by the name that its subject gave it.
func (m *Manager) named(s access.Subject, name string) (*box, error) {
	name = cmp.Or(name, Default)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	var names []string
	for _, b := range m.boxes {
		if b.subject.ID != s.ID {
			continue
		}
		if b.name == name {
			return b, nil
		}
		names = append(names, b.name)
	}
	if len(names) == 0 {
		return nil, refuseWith(errNone, "there is no sandbox %q; the first command makes the one that is called %q", sandbox.Clip(name), Default)
	}
	slices.Sort(names)
	return nil, refuseWith(errNone, "there is no sandbox %q; there are: %s", sandbox.Clip(name), strings.Join(names, ", "))
}

// errNone tells the error for a name that nobody has from others.
var errNone = errors.New("no such workspace")

// checkName refuses what cannot be a workspace's name.
func checkName(name string) error {
	ok := len(name) >= 1 && len(name) <= 40 && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if !ok {
		return refuse("name %q: want 1 to 40 of a-z, 0-9, - and _, such as thesis or web-app", sandbox.Clip(name))
	}
	return nil
}

// refusal is a *sandbox.RequestError that callers here can tell from others.
type refusal struct {
	*sandbox.RequestError
	kind error
}

func (r *refusal) Is(target error) bool { return target == r.kind }
func (r *refusal) Unwrap() error        { return r.RequestError }

func refuseWith(kind error, format string, args ...any) error {
	return &refusal{&sandbox.RequestError{Message: fmt.Sprintf(format, args...)}, kind}
}

func refuse(format string, args ...any) error {
	return &sandbox.RequestError{Message: fmt.Sprintf(format, args...)}
}

// busy makes a refusal of a transition that the workspace's state forbids.
func busy(b *box, err error) error {
	var t *TransitionError
	if errors.As(err, &t) {
		return refuse("the sandbox %q is %s; try again in a moment", b.name, t.From)
	}
	return err
}

// explain turns an engine's error into one for the caller where they, or the
// operator they can talk to, can do something about it.
func (m *Manager) explain(err error, image string) error {
	return sandbox.Explain(m.o.Log, err, image)
}
