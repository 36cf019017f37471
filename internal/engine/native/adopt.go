package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// adopt takes over what an earlier process left: sandboxes that have a record
// go on and are listed; of everything else made under this server's name
// nothing is left.
func (e *Engine) adopt() error {
	entries, err := os.ReadDir(filepath.Join(e.dir, "sandboxes"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		id := entry.Name()
		r, err := e.readRecord(id)
		if err != nil {
			e.log.Warn("clearing a half-made sandbox", "sandbox", id, "reason", err)
			if err := os.RemoveAll(e.sandboxDir(id)); err != nil {
				return fmt.Errorf("clearing %s: %w", id, err)
			}
			continue
		}
		b := &box{e: e, record: r, letIn: true}
		b.made.Store(true)
		if r.Slot != 0 {
			e.ids.keep(r.Slot)
		}
		// One that cannot be ended now must not keep the others from starting:
		// it is listed, and whoever removes it tries again.
		e.logFailure("adopting "+id, b.adopt())
		e.boxes[id] = b
	}
	// Nor must what cannot be cleared away, such as a process that waits for a
	// disk for ever. The next start tries again.
	e.logFailure("clearing what an earlier process left", e.sweep())
	return nil
}

// adopt finds out from the kernel whether the sandbox still runs.
func (b *box) adopt() error {
	if err := b.acquire(b.record.Digest); err != nil {
		// It cannot be started again, but what there is can be removed.
		b.e.log.Warn("a sandbox's image is gone", "sandbox", b.record.Spec.ID, "error", err)
	}
	if b.record.PID != 0 {
		if born, err := birth(b.record.PID); err == nil && born == b.record.Birth {
			server, err := listen(filepath.Join(b.e.sandboxDir(b.record.Spec.ID), shareDir))
			if err != nil {
				return err
			}
			b.server = server
			if err := b.began(b.record.PID); err == nil || b.running() {
				return err
			} // else it has ended while it was looked at
		}
	}
	return b.halt()
}

// sweep ends and removes what carries this server's name and belongs to no
// sandbox: cgroups with their processes.
func (e *Engine) sweep() error {
	var errs []error
	for _, dir := range e.cg.dirs(e.group("")) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			errs = append(errs, err)
		}
		for _, entry := range entries {
			if entry.IsDir() && entry.Name() != netGroup && e.boxes[entry.Name()] == nil {
				errs = append(errs, e.cg.end(e.group(entry.Name())))
			}
		}
	}
	errs = append(errs, e.killStrays())
	return errors.Join(errs...)
}

// killStrays ends processes with ids of this server's window that belong to
// no running sandbox: a container that was being made when its maker was
// killed may not have joined its cgroup yet.
func (e *Engine) killStrays() error {
	running := map[int]bool{}
	for _, b := range e.boxes {
		if b.running() {
			running[b.record.Slot] = true
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		var pid int
		if n, _ := fmt.Sscanf(entry.Name(), "%d", &pid); n != 1 {
			continue
		}
		uid, ok := userOf(pid)
		if !ok {
			continue
		}
		slot, ok := e.ids.slotOf(uid)
		if !ok || running[slot] {
			continue
		}
		if e.foreign(pid) {
			e.ids.keep(slot)
			continue
		}
		if err := killAndWait(pid); err != nil {
			errs = append(errs, err)
			e.ids.keep(slot) // while it is there, its ids are no sandbox's
		}
	}
	return errors.Join(errs...)
}

// foreign is whether a process is in a sandbox of another server. The lock of
// a window keeps servers apart that share /run, which one in a container does
// not do with one outside.
func (e *Engine) foreign(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, groups+"/") && !strings.Contains(line, e.group("")+"/") {
			return true
		}
	}
	return false
}

// userOf reads a process's real user id. Its directory's owner will not do:
// that is root where the process is not dumpable.
func userOf(pid int) (uint32, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false // ended meanwhile
	}
	_, after, _ := strings.Cut(string(data), "\nUid:")
	var uid uint32
	n, _ := fmt.Sscan(after, &uid)
	return uid, n == 1
}

// clearScratch removes the bundles of probes and build steps that were killed.
func (e *Engine) clearScratch() {
	left, _ := filepath.Glob(filepath.Join(e.dir, scratch+"*"))
	for _, dir := range left {
		e.logFailure("clearing a scratch bundle", os.RemoveAll(dir))
	}
}
