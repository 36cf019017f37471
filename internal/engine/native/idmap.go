package native

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// Every sandbox has a range of 65,536 user and group ids of its own, so that
// its root is no one on the host and two sandboxes are strangers to each
// other. Ranges come from 1879048192 to 2147352575, which systemd's
// UIDS-GIDS.md lists as unused: above the ranges of container managers, below
// the foreign range. They are dealt out in windows, and a server holds one
// window by a lock, so that servers on one host do not share ranges.
const (
	rangeSize   = 65536
	rangesBase  = 1879048192
	windowSlots = 256
	windows     = (2147352576 - rangesBase) / (rangeSize * windowSlots) // 15
)

// idRange is a sandbox's range: id 0 inside is base outside. Slots are counted
// from 1; 0 is none.
type idRange struct {
	slot int
	base uint32
}

func (r idRange) holds(id uint32) bool { return id >= r.base && id-r.base < rangeSize }

// ranges deals out id ranges of one window.
type ranges struct {
	lock  *os.File // holds the window
	first int      // the window's first slot

	mu     sync.Mutex
	taken  map[int]bool
	userns map[int]mappings // by slot, made once
}

// mappings are user namespaces to give to idmapped mounts.
type mappings struct {
	// image has the range's ids for those on disk, from 0.
	image *os.File
	// layer has this process's own, for the id after those, as well: an overlay
	// keeps files of its maker beside those of the sandbox.
	layer *os.File
}

// openRanges claims a free window, the preferred one if it can.
func openRanges(preferred int) (*ranges, error) {
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, err
	}
	for i := range windows {
		w := (preferred + i) % windows
		f, err := os.OpenFile(filepath.Join(runDir, fmt.Sprintf("range-%02d.lock", w)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return &ranges{lock: f, first: w*windowSlots + 1, taken: map[int]bool{}, userns: map[int]mappings{}}, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("all %d windows of id ranges are taken by other servers on this host", windows)
}

func (r *ranges) window() int { return (r.first - 1) / windowSlots }

// take returns a range that no sandbox of this server has.
func (r *ranges) take() (idRange, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := r.first; s < r.first+windowSlots; s++ {
		if !r.taken[s] {
			r.taken[s] = true
			return slotRange(s), nil
		}
	}
	return idRange{}, &engine.HostFullError{What: fmt.Sprintf("all %d ranges of user ids are in use", windowSlots)}
}

// keep marks the range of a sandbox that an earlier process made.
func (r *ranges) keep(slot int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken[slot] = true
}

func (r *ranges) release(slot int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, slot)
}

func slotRange(slot int) idRange {
	return idRange{slot: slot, base: uint32(rangesBase + (slot-1)*rangeSize)}
}

// slotOf returns the slot of this window whose range has the user id.
func (r *ranges) slotOf(uid uint32) (slot int, ok bool) {
	first := slotRange(r.first).base
	if uid < first || uid-first >= windowSlots*rangeSize {
		return 0, false
	}
	return r.first + int((uid-first)/rangeSize), true
}

// mappings returns those of a range. The files stay open until close.
func (r *ranges) mappings(ids idRange) (mappings, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, ok := r.userns[ids.slot]; ok {
		return m, nil
	}
	sandbox := syscall.SysProcIDMap{ContainerID: 0, HostID: int(ids.base), Size: rangeSize}
	image, err := newUserNamespace(sandbox)
	if err != nil {
		return mappings{}, fmt.Errorf("making a user namespace: %w", err)
	}
	layer, err := newUserNamespace(sandbox, syscall.SysProcIDMap{ContainerID: rangeSize, HostID: 0, Size: 1})
	if err != nil {
		image.Close()
		return mappings{}, fmt.Errorf("making a user namespace: %w", err)
	}
	r.userns[ids.slot] = mappings{image, layer}
	return r.userns[ids.slot], nil
}

func (r *ranges) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.userns {
		m.image.Close()
		m.layer.Close()
	}
	return r.lock.Close()
}

// newUserNamespace makes a user namespace by starting a process in it, which
// is stopped before its first instruction (as a traced process is at exec)
// and killed once the namespace's file is open.
func newUserNamespace(mapping ...syscall.SysProcIDMap) (*os.File, error) {
	var f *os.File
	err := onOwnThread(func() error { // a tracer is a thread
		p, err := os.StartProcess("/proc/self/exe", []string{"belljar-userns"}, &os.ProcAttr{
			Sys: &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER,
				UidMappings: mapping,
				GidMappings: mapping,
				Ptrace:      true,
				Pdeathsig:   syscall.SIGKILL,
			},
		})
		if err != nil {
			return err
		}
		defer func() {
			p.Kill()
			p.Wait()
		}()
		f, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
		return err
	})
	return f, err
}
