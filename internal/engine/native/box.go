package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"belljar/internal/egress"
	"belljar/internal/engine"
	"belljar/internal/image"
)

// box is a sandbox. Its methods may be called concurrently.
type box struct {
	e *Engine

	// op is held through create, start, stop and remove, which take turns.
	op sync.Mutex
	// gone is set once removed; guarded by op.
	gone bool
	img  image.Image
	free func() // releases the image

	// made is whether it is there for others to see.
	made atomic.Bool
	// letIn is whether its disk counts; guarded by the engine's mu.
	letIn bool
	// loose is whether its layer is known not to be mounted; guarded by op.
	loose bool
	// ours is whether this process has started it.
	ours atomic.Bool

	// network is what it was attached by; guarded by op.
	network *egress.Client

	mu      sync.Mutex // guards what follows; taken after op
	record  record
	process *process // process 1 while it is known; it may have ended
	server  *listener
	receipt engine.Receipt
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) error {
	if err := errors.Join(engine.CheckID(spec.ID), spec.Limits.Check()); err != nil {
		return err
	}
	b := &box{e: e, record: record{Spec: spec, Created: time.Now()}}
	b.op.Lock()
	defer b.op.Unlock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return engine.ErrClosed
	}
	if e.boxes[spec.ID] != nil {
		e.mu.Unlock()
		return fmt.Errorf("creating %s: %w", spec.ID, engine.ErrExists)
	}
	e.boxes[spec.ID] = b // holds the name; invisible to List until filled
	e.mu.Unlock()
	if err := b.create(); err != nil {
		e.logFailure("clearing a sandbox that could not be created", b.remove())
		return fmt.Errorf("creating %s: %w", spec.ID, err)
	}
	return nil
}

func (b *box) create() error {
	spec := b.record.Spec
	if err := b.e.room(b); err != nil {
		return err
	}
	if err := b.acquire(spec.Image); err != nil {
		return err
	}
	// A durable one has a range only while it runs: there may be many that
	// stand still.
	if !spec.Durable {
		if err := b.takeRange(); err != nil {
			return err
		}
	}
	dir := b.e.sandboxDir(spec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := b.e.makeShare(filepath.Join(dir, shareDir)); err != nil {
		return err
	}
	if err := createLayer(filepath.Join(dir, layerFile), spec.Limits.Disk); err != nil {
		return err
	}
	if spec.Durable {
		if err := syncFile(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	// What has no record is not there, so it comes last.
	if err := b.save(); err != nil {
		return err
	}
	b.made.Store(true)
	return nil
}

// takeRange gives the sandbox a range of ids, unless it has one.
func (b *box) takeRange() error {
	if b.record.Slot != 0 {
		return nil
	}
	ids, err := b.e.ids.take()
	if err != nil {
		return err
	}
	b.update(func(r *record) { r.Slot = ids.slot })
	return nil
}

// acquire takes hold of the image.
func (b *box) acquire(ref string) error {
	img, release, err := b.e.images.Acquire(ref)
	if errors.Is(err, image.ErrNotFound) {
		return fmt.Errorf("%w: %s", engine.ErrNoImage, ref)
	}
	if err != nil {
		return err
	}
	b.img, b.free = img, release
	b.update(func(r *record) { r.Digest = img.Digest })
	return nil
}

// Claim implements engine.Engine.
func (e *Engine) Claim(_ context.Context, id string, labels map[string]string, expires time.Time) error {
	return e.with(id, "claiming", func(b *box) error {
		if !b.running() {
			return engine.ErrNotRunning
		}
		if err := e.cg.fullShare(b.process.groups); err != nil {
			return fmt.Errorf("giving it its share of the CPU: %w", err)
		}
		b.update(func(r *record) {
			r.Spec.Labels, r.Spec.Expires, r.Spec.Spare = maps.Clone(labels), expires, false
		})
		return b.save()
	})
}

// agentEnv is the environment of process 1, which jobs inherit.
func agentEnv(image []string) []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8",
	}, image...)
}

// Stop implements engine.Engine.
func (e *Engine) Stop(ctx context.Context, id string) error {
	return e.with(id, "stopping", (*box).halt)
}

// halt ends all processes, takes away what is there only while they run, and
// notes it on disk. It is idempotent, and also clears what is left of ended
// processes.
func (b *box) halt() error {
	if err := b.end(); err != nil {
		return err
	}
	return b.save()
}

// end is halt without the note.
func (b *box) end() error {
	b.mu.Lock()
	process, server, id := b.process, b.server, b.record.Spec.ID
	b.mu.Unlock()
	if process != nil {
		if err := process.kill(); err != nil {
			return err
		}
	} else if err := b.e.runtime.delete(id); err != nil {
		return err
	}
	group := b.e.group(id)
	if err := b.e.cg.end(group); err != nil {
		return err
	}
	b.e.net.detach(b)
	err := b.e.ns.do(func() error {
		return errors.Join(b.e.runtime.forget(id), b.e.ns.clearInside(place{id}, group))
	})
	if err != nil {
		return err
	}
	if server != nil {
		server.close()
	}
	if process != nil {
		process.close()
	}
	b.update(func(r *record) {
		b.process, b.server = nil, nil
		r.PID, r.Birth = 0, 0
	})
	if b.durable() {
		return b.settle()
	}
	return nil
}

// detachTime bounds how long a stop waits for the layer's last blocks to reach
// the disk.
const detachTime = time.Minute

// settle waits until the layer is on the disk, and gives back what a sandbox
// that stands still does not need.
func (b *box) settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	if err := awaitDetached(ctx, b.layer()); err != nil {
		return err
	}
	b.loose = true
	if slot := b.record.Slot; slot != 0 {
		b.e.ids.release(slot)
		b.update(func(r *record) { r.Slot = 0 })
	}
	b.e.mu.Lock()
	b.letIn = false
	b.e.mu.Unlock()
	return nil
}

// Remove implements engine.Engine.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.with(id, "removing", (*box).remove)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	return err
}

func (b *box) remove() error {
	id := b.record.Spec.ID
	// Without a note of it: where the disk is full, removing is what makes
	// room, so it must not need any.
	if err := b.end(); err != nil {
		return err
	}
	if err := os.RemoveAll(b.e.sandboxDir(id)); err != nil {
		return err
	}
	if b.record.Slot != 0 {
		b.e.ids.release(b.record.Slot)
	}
	if b.free != nil {
		b.free()
	}
	b.gone = true
	b.e.mu.Lock()
	delete(b.e.boxes, id)
	b.e.mu.Unlock()
	return nil
}

// find returns a sandbox by its id.
func (e *Engine) find(id, doing string) (*box, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, engine.ErrClosed
	}
	b := e.boxes[id]
	if b == nil {
		return nil, fmt.Errorf("%s %s: %w", doing, id, engine.ErrNotFound)
	}
	return b, nil
}

// with runs f on a sandbox, which no other operation changes meanwhile.
func (e *Engine) with(id, doing string, f func(*box) error) error {
	b, err := e.find(id, doing)
	if err != nil {
		return err
	}
	b.op.Lock()
	defer b.op.Unlock()
	if b.gone {
		return fmt.Errorf("%s %s: %w", doing, id, engine.ErrNotFound)
	}
	if err := f(b); err != nil {
		return fmt.Errorf("%s %s: %w", doing, id, err)
	}
	return nil
}

// update changes what mu guards.
func (b *box) update(f func(*record)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.record)
}

func (b *box) disk() int64   { return b.record.Spec.Limits.Disk }
func (b *box) durable() bool { return b.record.Spec.Durable }
func (b *box) layer() string { return filepath.Join(b.e.sandboxDir(b.record.Spec.ID), layerFile) }

// running asks the kernel.
func (b *box) running() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process != nil && b.process.alive()
}

// status reports a sandbox, unless it is still being made.
func (b *box) status() (engine.Status, bool) {
	running := b.running()
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record
	s := engine.Status{
		ID: r.Spec.ID, State: engine.Created, Labels: r.Spec.Labels,
		Image: r.Spec.Image, Digest: r.Digest, Created: r.Created, Expires: r.Spec.Expires,
	}
	switch {
	case running:
		s.State = engine.Running
	case r.Started:
		s.State = engine.Stopped
	}
	return s, b.made.Load()
}

// letGo closes what this process holds of the sandbox, which goes on.
func (b *box) letGo() error {
	b.op.Lock()
	defer b.op.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if b.server != nil {
		b.server.close()
	}
	if b.process != nil {
		b.process.close()
	}
	return nil
}
