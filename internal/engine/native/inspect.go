package native

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// Inspect implements engine.Engine. The limits were read back at the start,
// and nothing changes them; the counters are read now. It also answers for a
// sandbox whose processes ended by themselves, until it is stopped, since that
// is when its counters are asked for.
func (e *Engine) Inspect(_ context.Context, id string) (engine.Receipt, error) {
	b, err := e.find(id, "inspecting")
	if err != nil {
		return engine.Receipt{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return engine.Receipt{}, fmt.Errorf("inspecting %s: %w", id, engine.ErrNotRunning)
	}
	r := b.receipt
	r.OOMKills = e.cg.oomKills(b.process.groups)
	r.MemoryUsed = e.cg.memoryUsed(b.process.groups)
	return r, nil
}

// readBack reads a sandbox's limits from the cgroups of its process 1 and
// from the file systems that this one sees.
func (e *Engine) readBack(p *process, asked engine.Limits) (engine.Receipt, error) {
	r := e.cg.receipt(p.groups, asked)
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", p.pid))
	if err != nil {
		return r, err
	}
	defer root.Close()
	var disk, tmp unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &disk); err != nil {
		return r, err
	}
	r.Disk = noted(held(float64(disk.Blocks)*float64(disk.Bsize), float64(asked.Disk)),
		"the root filesystem, /sandbox included, without what the filesystem itself takes")
	r.Inodes = held(float64(disk.Files), float64(asked.Inodes)+inodeSlack)
	if asked.Tmp == 0 {
		r.Tmp = noted(held(r.Disk.Value, r.Disk.Value), "part of the disk")
		return r, nil
	}
	// Nothing in a path below a sandbox's root is to be trusted.
	fd, err := unix.Openat2(int(root.Fd()), "tmp", &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return r, fmt.Errorf("opening /tmp: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fstatfs(fd, &tmp); err != nil {
		return r, err
	}
	r.Tmp = noted(held(float64(tmp.Blocks)*float64(tmp.Bsize), float64(asked.Tmp)),
		"memory: its pages count in the memory limit")
	return r, nil
}

// inodeSlack is what mkfs.ext4 may add, rounding up to fill its inode tables.
const inodeSlack = 16 * 128
