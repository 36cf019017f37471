// Package sandbox runs scripts in fresh sandboxes: it makes a sandbox, has
// the agent in it run the script, stages the files the script wrote, and
// destroys the sandbox. A sandbox that has run a script is never used again.
package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/engine"
	"belljar/internal/lang"

	"golang.org/x/sync/singleflight"
)

// Store keeps output files for download. An *artifact.Store is one.
type Store interface {
	// Stage keeps a file. It fails with artifact.ErrTooLarge if there is more
	// to read than f.MaxBytes, and artifact.ErrFull if the store is full.
	Stage(ctx context.Context, f artifact.File, r io.Reader) (artifact.Artifact, error)
	// URL is where a staged file can be read until it expires.
	URL(a artifact.Artifact) string
}

// Options configure a Manager. Zero fields have the default given.
type Options struct {
	Engine   engine.Engine // required
	Store    Store         // required
	Table    lang.Table    // the runtimes
	ServerID string        // required; labels what this server makes

	// Image is what runs start from, unless their runtime names another.
	Image string
	// Limits bound each sandbox. Required.
	Limits engine.Limits
	// Network is what each sandbox may reach.
	Network engine.Network
	// Strict refuses runs where the kernel does not enforce a limit, or the
	// network is not there.
	Strict bool

	DefaultTimeout time.Duration // of a script; 60 s
	MaxTimeout     time.Duration // 300 s

	MaxOutput int   // bytes of text per stream in a result; 64 KiB
	LogBytes  int64 // of each stream's log file; 16 MiB

	MaxInputs     int   // input files per run; 500
	MaxInputBytes int64 // of script, stdin and input files together; 64 MiB

	MaxFiles     int   // output files per run; 500
	MaxFileBytes int64 // of one output file; 256 MiB
	MaxRunBytes  int64 // of all output files of a run; 1 GiB
	// InlineBytes is up to which size a text file is given as text; 4 KiB.
	InlineBytes int

	// Concurrency is how many runs have a sandbox at a time, its removal
	// included; 8. Runs above it queue for QueueTime (20 s) at most.
	Concurrency int
	QueueTime   time.Duration
	// SweepEvery is the time between two sweeps; 1 min.
	SweepEvery time.Duration

	// PoolMemory bounds the sandboxes that wait for scripts, in bytes of
	// memory that they use together. 0 is for no pool.
	PoolMemory int64
	// Digest returns the digest of the image that a name means now, or an
	// error if there is none. A spare sandbox of another image is not used.
	// Nil if names never change their meaning.
	Digest func(image string) (string, error)
	// FreeMemory is the share of the host's memory that is available, 0 to 1.
	// Below 0.1 the pool is drained. Default: what /proc/meminfo says.
	FreeMemory func() float64
	// Observe is told how long a run that had its place waited for its script
	// to begin, and whether a spare sandbox of its runtime was there.
	Observe func(runtime string, hit bool, wait time.Duration)

	Log *slog.Logger     // discarded if nil
	Now func() time.Time // the clock that expiry is measured by; time.Now
}

func (o *Options) setDefaults() {
	o.DefaultTimeout = cmp.Or(o.DefaultTimeout, 60*time.Second)
	o.MaxTimeout = cmp.Or(o.MaxTimeout, 300*time.Second)
	o.MaxOutput = cmp.Or(o.MaxOutput, 64<<10)
	o.LogBytes = cmp.Or(o.LogBytes, 16<<20)
	o.MaxInputs = cmp.Or(o.MaxInputs, 500)
	o.MaxInputBytes = cmp.Or(o.MaxInputBytes, 64<<20)
	o.MaxFiles = cmp.Or(o.MaxFiles, 500)
	o.MaxFileBytes = cmp.Or(o.MaxFileBytes, 256<<20)
	o.MaxRunBytes = cmp.Or(o.MaxRunBytes, 1<<30)
	o.InlineBytes = cmp.Or(o.InlineBytes, 4<<10)
	o.Concurrency = cmp.Or(o.Concurrency, 8)
	o.QueueTime = cmp.Or(o.QueueTime, 20*time.Second)
	o.SweepEvery = cmp.Or(o.SweepEvery, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Digest == nil {
		o.Digest = func(image string) (string, error) { return image, nil }
	}
	if o.FreeMemory == nil {
		o.FreeMemory = freeMemory
	}
	if o.Observe == nil {
		o.Observe = func(string, bool, time.Duration) {}
	}
}

func (o *Options) check() error {
	switch {
	case o.Engine == nil || o.Store == nil:
		return errors.New("an engine and a store are needed")
	case o.ServerID == "":
		return errors.New("a server id is needed")
	case o.DefaultTimeout < 0 || o.DefaultTimeout > o.MaxTimeout:
		return fmt.Errorf("default timeout %v: want at most the maximum, %v", o.DefaultTimeout, o.MaxTimeout)
	case o.MaxOutput < 0 || o.MaxOutput > 2*agent.MaxKeep:
		return fmt.Errorf("output of %d bytes: want at most %d", o.MaxOutput, 2*agent.MaxKeep)
	case o.Concurrency < 0:
		return fmt.Errorf("concurrency %d: must be positive", o.Concurrency)
	}
	return o.Limits.Check()
}

// A Manager runs scripts. Its methods are safe for concurrent use.
type Manager struct {
	o     Options
	boot  string // tells this process's sandboxes from an earlier one's
	slots slots
	pool  *pool
	kept  keeper

	// base ends when runs must end, since the Manager is closed.
	base context.Context
	halt context.CancelFunc
	// closing is closed when Close begins.
	closing chan struct{}

	mu     sync.Mutex // guards what follows
	closed bool
	boxes  map[string]*box
	probes map[string]probe // by image
	work   sync.WaitGroup   // runs, removals, probes, the loop; Add only under mu while not closed, or from inside of counted work

	probing singleflight.Group // by image
}

// New returns a Manager. Call Start before the first Run.
func New(o Options) (*Manager, error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("making the sandbox manager: %w", err)
	}
	closing := make(chan struct{})
	m := &Manager{
		o:       o,
		boot:    randomID(),
		slots:   newSlots(o.Concurrency, o.QueueTime, closing),
		closing: closing,
		boxes:   map[string]*box{},
		probes:  map[string]probe{},
		kept:    keeper{by: map[string]keptFiles{}},
	}
	m.pool = newPool(m)
	m.base, m.halt = context.WithCancel(context.Background())
	return m, nil
}

// ErrClosed is for calls after Close.
var ErrClosed = errors.New("the sandbox manager is closed")

// begin counts a piece of work that Close waits for; end it with
// m.work.Done.
func (m *Manager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.work.Add(1)
	return nil
}

// closeGrace is how long Close waits for clean-up once its context has ended.
const closeGrace = 15 * time.Second

// Close waits for runs and removals. When ctx ends it ends the runs, and
// waits a little longer for what they leave to be removed. What cannot be
// removed is named in the error; the next Start removes it.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		close(m.closing)
	}
	m.mu.Unlock()
	m.pool.close()

	done := make(chan struct{})
	go func() {
		m.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		m.halt()
		select {
		case <-done:
		case <-time.After(closeGrace):
		}
	}
	m.halt()
	if left := m.left(); len(left) > 0 {
		return fmt.Errorf("closing the sandbox manager: not removed: %s", strings.Join(left, ", "))
	}
	return nil
}

// randomID returns 12 random characters of a-z and 2-7: 60 bits.
func randomID() string { return strings.ToLower(rand.Text()[:12]) }
