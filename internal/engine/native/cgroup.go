package native

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// cgroups is where the host's control groups are.
type cgroups struct {
	// unified is the mount point of the version 2 hierarchy, "" if none.
	unified string
	// legacy maps a version 1 controller to its hierarchy.
	legacy map[string]cgroupMount
}

type cgroupMount struct{ root, point string }

func findCgroups() (cgroups, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}, err
	}
	defer f.Close()
	c := cgroups{legacy: map[string]cgroupMount{}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// "36 35 98:0 ROOT POINT rw shared:1 - TYPE SOURCE OPTIONS", proc(5).
		before, after, ok := strings.Cut(lines.Text(), " - ")
		front, back := strings.Fields(before), strings.Fields(after)
		if !ok || len(front) < 5 || len(back) < 3 {
			continue
		}
		switch back[0] {
		case "cgroup2":
			c.unified = front[4]
		case "cgroup":
			for opt := range strings.SplitSeq(back[2], ",") {
				c.legacy[opt] = cgroupMount{root: front[3], point: front[4]}
			}
		}
	}
	return c, lines.Err()
}

// v2 is whether limits are held by the version 2 hierarchy.
func (c cgroups) v2() bool { _, v1 := c.legacy["memory"]; return !v1 && c.unified != "" }

// hybrid returns the unified hierarchy's mount point where it stands beside
// version 1 controllers, else "".
func (c cgroups) hybrid() string {
	if c.v2() {
		return ""
	}
	return c.unified
}

func (c cgroups) String() string {
	switch {
	case c.v2():
		return "cgroup v2"
	case len(c.legacy) > 0:
		return "cgroup v1"
	}
	return "no cgroups"
}

// vacate moves the processes in the topmost group of version 2 to one below,
// if that is not the root of all groups but a container's own: such a group
// cannot have processes and pass controllers on as well.
func (c cgroups) vacate() error {
	top := c.unified
	if _, err := os.Stat(filepath.Join(top, "cgroup.type")); !c.v2() || err != nil {
		return nil // the root of all has no such file, and may have both
	}
	below := filepath.Join(top, "init")
	for range 100 { // they may be forking
		pids := strings.Fields(readWord(top, "cgroup.procs"))
		if len(pids) == 0 {
			return nil
		}
		if err := os.Mkdir(below, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, pid := range pids {
			if pid == "0" { // which would mean this one
				return fmt.Errorf("processes from outside of the container are in %s", top)
			}
			err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(pid), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("moving process %s to %s: %w", pid, below, err)
			}
		}
	}
	return fmt.Errorf("processes keep appearing in %s", top)
}

// points returns where the hierarchies are mounted.
func (c cgroups) points() []string {
	var points []string
	for _, m := range c.legacy {
		points = append(points, m.point)
	}
	if c.unified != "" {
		points = append(points, c.unified)
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// dirs returns the existing directories of the group in every hierarchy.
func (c cgroups) dirs(group string) []string {
	var dirs []string
	for _, p := range c.points() {
		dir := filepath.Join(p, group)
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// procs returns the processes in the group and in those below it, in order.
func (c cgroups) procs(group string) []int {
	var pids []int
	for _, dir := range c.dirs(group) {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil // a group that has gone meanwhile
			}
			data, _ := os.ReadFile(path)
			for _, s := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(s); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids) // each shows in every hierarchy
}

// end kills what is left in the group and removes it. It is idempotent.
func (c cgroups) end(group string) error {
	// Most often nothing is left: process 1 of a sandbox takes all others
	// along. Then a look into every group would be for nothing.
	if c.remove(group) {
		return nil
	}
	for range 100 {
		pids := c.procs(group)
		for _, pid := range pids {
			if err := killAndWait(pid); err != nil {
				return err
			}
		}
		if len(pids) == 0 {
			break
		}
	}
	var errs []error
	for _, dir := range c.dirs(group) {
		if err := removeGroup(dir); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove removes a group in which nothing is left from every hierarchy, and
// reports whether it is gone.
func (c cgroups) remove(group string) bool {
	gone := true
	for _, point := range c.points() {
		err := unix.Rmdir(filepath.Join(point, group))
		gone = gone && (err == nil || err == unix.ENOENT)
	}
	return gone
}

// removeGroup removes a group and those below it, deepest first.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return fmt.Errorf("removing cgroup %s: %w", dir, err)
	}
	return nil
}

// killAndWait ends a process and waits until the kernel says it ended.
func killAndWait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for process %d: %w", pid, err)
		}
		if n == 0 {
			return fmt.Errorf("process %d does not end", pid)
		}
		return nil
	}
}

// membership is where one process is in the hierarchies, as directories.
type membership struct {
	v2  string
	dir map[string]string // by version 1 controller
}

// of reads where a process is from the kernel.
func (c cgroups) of(pid int) (membership, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return membership{}, err
	}
	m := membership{dir: map[string]string{}}
	for line := range strings.Lines(string(data)) {
		// "4:memory:/path", cgroups(7).
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" {
			m.v2 = filepath.Join(c.unified, f[2])
			continue
		}
		for controller := range strings.SplitSeq(f[1], ",") {
			if h, ok := c.legacy[controller]; ok {
				m.dir[controller] = filepath.Join(h.point, strings.TrimPrefix(f[2], strings.TrimSuffix(h.root, "/")))
			}
		}
	}
	return m, nil
}

// receipt reads the limits of memory, CPU and processes back.
func (c cgroups) receipt(m membership, asked engine.Limits) engine.Receipt {
	var r engine.Receipt
	if c.v2() {
		r.Memory = noted(held(readNumber(m.v2, "memory.max"), float64(asked.Memory)),
			swapNote(readNumber(m.v2, "memory.swap.max") == 0))
		r.PIDs = held(readNumber(m.v2, "pids.max"), float64(asked.PIDs))
		quota, period, _ := strings.Cut(readWord(m.v2, "cpu.max"), " ")
		r.CPUs = held(number(quota)/number(period), asked.CPUs)
		return r
	}
	memory := readNumber(m.dir["memory"], "memory.limit_in_bytes")
	r.Memory = noted(held(memory, float64(asked.Memory)),
		swapNote(readNumber(m.dir["memory"], "memory.memsw.limit_in_bytes") == memory))
	r.PIDs = held(readNumber(m.dir["pids"], "pids.max"), float64(asked.PIDs))
	r.CPUs = held(readNumber(m.dir["cpu"], "cpu.cfs_quota_us")/readNumber(m.dir["cpu"], "cpu.cfs_period_us"), asked.CPUs)
	return r
}

// oomKills reads how many processes died for want of memory.
func (c cgroups) oomKills(m membership) int64 {
	if c.v2() {
		return counter(m.v2, "memory.events", "oom_kill")
	}
	return counter(m.dir["memory"], "memory.oom_control", "oom_kill")
}

// fullShare gives the group of a spare sandbox the weight that groups have
// from the start.
func (c cgroups) fullShare(m membership) error {
	if c.v2() {
		return os.WriteFile(filepath.Join(m.v2, "cpu.weight"), []byte("100"), 0)
	}
	dir := m.dir["cpu"]
	if dir == "" {
		return nil // no such controller here: there is no weight
	}
	return os.WriteFile(filepath.Join(dir, "cpu.shares"), []byte("1024"), 0)
}

// memoryUsed reads what a group has in use, without file pages that were not
// used of late.
func (c cgroups) memoryUsed(m membership) int64 {
	dir, usage, inactive := m.dir["memory"], "memory.usage_in_bytes", "total_inactive_file"
	if c.v2() {
		dir, usage, inactive = m.v2, "memory.current", "inactive_file"
	}
	return max(0, int64(readNumber(dir, usage))-counter(dir, "memory.stat", inactive))
}

// counter reads a line "NAME NUMBER" of a control file; 0 if there is none.
func counter(dir, file, name string) int64 {
	data, _ := os.ReadFile(filepath.Join(dir, file))
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}

// held says whether what the kernel holds is a limit at least as tight as
// what was asked. The kernel rounds to pages and to ticks.
func held(got, asked float64) engine.Limit {
	if got > 0 && got <= asked*1.01 {
		return engine.Limit{Value: got, Enforced: true}
	}
	return engine.Limit{Value: asked, Note: "the kernel does not hold this limit here"}
}

// noted says more about a limit that is held; one that is not says so itself.
func noted(l engine.Limit, note string) engine.Limit {
	if l.Enforced {
		l.Note = note
	}
	return l
}

func swapNote(counted bool) string {
	if counted {
		return "swap and tmpfs pages (/tmp, /dev/shm) count in it"
	}
	return "tmpfs pages (/tmp, /dev/shm) count in it; swap is not limited here"
}

// readNumber reads a control file with one number; -1 if there is none.
func readNumber(dir, file string) float64 { return number(readWord(dir, file)) }

func readWord(dir, file string) string {
	if dir == "" {
		return ""
	}
	data, _ := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data))
}

func number(s string) float64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return -1 // "max", or no such file
	}
	return n
}
