package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// Start implements engine.Engine.
func (e *Engine) Start(ctx context.Context, id string) error {
	return e.with(id, "starting", func(b *box) error {
		if b.running() {
			return nil
		}
		// What an ended process left goes; that it ended needs no note on
		// disk, since the new process gets one.
		if b.record.Started {
			if err := b.end(); err != nil {
				return err
			}
		}
		if err := b.start(ctx); err != nil {
			e.logFailure("clearing a sandbox that could not be started", b.halt())
			return err
		}
		return nil
	})
}

func (b *box) start(ctx context.Context) error {
	id := b.record.Spec.ID
	if err := b.readyLayer(ctx); err != nil {
		return err
	}
	if err := b.takeRange(); err != nil {
		return err
	}
	share := filepath.Join(b.e.sandboxDir(id), shareDir)
	if b.durable() {
		// It may have been made by an earlier version.
		if err := b.e.makeShare(share); err != nil {
			return err
		}
	}
	server, err := listen(share)
	if err != nil {
		return err
	}
	b.update(func(*record) { b.server = server })
	var pid int
	err = b.e.ns.do(func() error {
		p, ids := place{id}, slotRange(b.record.Slot)
		if err := b.mount(p, ids); err != nil {
			return err
		}
		err := b.e.writeConfig(p.dir(), container{
			rootfs: p.rootfs(), ids: ids, group: b.e.group(id), dir: "/",
			argv:   b.argv(),
			env:    agentEnv(b.img.Config.Env),
			limits: b.record.Spec.Limits, spare: b.record.Spec.Spare,
			mounts: b.ownMounts(p),
			filter: b.e.filter.known(),
		})
		if err != nil {
			return err
		}
		pid, err = b.e.runtime.start(ctx, p.dir(), id)
		return err
	})
	if err != nil {
		return err
	}
	b.ours.Store(true)
	return b.began(pid)
}

// readyLayer sees to it that the layer can be mounted: there is room on the
// disk for what it may grow to, and it is not mounted any more.
func (b *box) readyLayer(ctx context.Context) error {
	if err := b.e.room(b); err != nil {
		return err
	}
	if b.loose || !b.record.Started {
		b.loose = false
		return nil
	}
	return awaitDetached(ctx, b.layer())
}

// mount makes all mounts of the sandbox. Call it inside the mount namespace.
func (b *box) mount(p place, ids idRange) error {
	ns, err := b.e.ids.mappings(ids)
	if err != nil {
		return err
	}
	spec := b.record.Spec
	format := func(dev *os.File) error {
		if b.record.Started {
			return nil
		}
		return b.e.layers.format(dev, layerKind{spec.Limits.Disk, spec.Limits.Inodes, spec.Durable})
	}
	options := runOptions
	if spec.Durable {
		options = durableOptions
	}
	if err := mountLayer(b.layer(), p.layer(), ns.layer, b.e.cg, options, format); err != nil {
		return err
	}
	upper, work := filepath.Join(p.layer(), rootUpper), filepath.Join(p.layer(), rootWork)
	if b.record.Rebased {
		if err := errors.Join(os.RemoveAll(upper), os.RemoveAll(work)); err != nil {
			return fmt.Errorf("clearing what was written over another image: %w", err)
		}
	}
	if err := makeUpper(upper, work, ids); err != nil {
		return err
	}
	if err := mountRootfs(p, []string{b.img.Rootfs}, upper, work, ns.image); err != nil {
		return err
	}
	if !b.record.Started {
		b.e.logFailure("writing names into the root filesystem of "+p.id, writeNames(p.rootfs(), ids))
	}
	if spec.Durable {
		upper, work := filepath.Join(p.layer(), homeUpper), filepath.Join(p.layer(), homeWork)
		if err := makeUpper(upper, work, ids); err != nil {
			return err
		}
		if err := mountHome(p, b.img.Rootfs, upper, work, ns.image); err != nil {
			return err
		}
	}
	return mountShare(filepath.Join(b.e.sandboxDir(p.id), shareDir), p.share())
}

// argv is process 1.
func (b *box) argv() []string {
	if b.durable() {
		return []string{agent.Binary, agent.InWorkspace}
	}
	return []string{agent.Binary}
}

// ownMounts are what the sandbox sees beside the usual.
func (b *box) ownMounts(p place) []specs.Mount {
	all := []specs.Mount{agentMount(p.share())}
	if b.record.Spec.Durable {
		all = append(all, specs.Mount{Destination: agent.Workdir, Type: "bind", Source: p.home(), Options: []string{"bind", "nosuid", "nodev"}})
	}
	return all
}

// began takes note of process 1 and reads back what it got.
func (b *box) began(pid int) error {
	process, err := watch(pid)
	if err != nil {
		return fmt.Errorf("watching process 1: %w", err)
	}
	if process.groups, err = b.e.cg.of(pid); err != nil {
		process.close()
		return fmt.Errorf("finding the cgroups of process 1: %w", err)
	}
	attached := b.attach(process)
	b.update(func(r *record) {
		b.process = process
		r.Started, r.Rebased, r.PID, r.Birth = true, false, pid, process.birth
	})
	saved := b.save()
	receipt, err := b.e.readBack(process, b.record.Spec.Limits)
	receipt.Network, receipt.NetworkMissing = attached()
	if saved != nil {
		return saved
	}
	if err != nil {
		return fmt.Errorf("reading the limits back: %w", err)
	}
	b.update(func(*record) { b.receipt = receipt })
	return nil
}

// Rebase implements engine.Rebaser.
func (e *Engine) Rebase(_ context.Context, id, image string) error {
	return e.with(id, "rebasing", func(b *box) error {
		switch {
		case !b.durable():
			return errors.New("the sandbox is not durable")
		case b.running():
			return engine.ErrRunning
		}
		before := b.free
		if err := b.acquire(image); err != nil {
			return err
		}
		if before != nil {
			before()
		}
		b.update(func(r *record) { r.Spec.Image, r.Rebased = image, r.Started })
		return b.save()
	})
}
