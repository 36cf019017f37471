package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Sandboxes have user ids from here on, in windows that servers hold.
const (
	firstUser  = 1879048192
	windowSize = 256 * 65536
)

// leftovers names everything on the host that belongs to sandboxes of a
// state directory's server: directories, loop devices, cgroups, mounts and
// processes. The server itself, by its process id, is none; 0 if it has
// ended. As long as it runs, what waits in its pool is not left over.
func leftovers(state string, server int) []string {
	var left []string
	waits := func(string) bool { return false }
	if server != 0 {
		waits = waiting(state)
	}
	for _, dir := range []string{"native/sandboxes", "images/tmp", "output/.staging"} {
		entries, _ := os.ReadDir(filepath.Join(state, dir))
		for _, e := range entries {
			if file := filepath.Join(state, dir, e.Name()); !waits(file) {
				left = append(left, "file "+file)
			}
		}
	}
	for _, device := range glob("/sys/block/loop*/loop/backing_file") {
		if file := read(device); strings.HasPrefix(file, state+"/") && !waits(file) {
			left = append(left, fmt.Sprintf("loop device %s on %s", strings.Split(device, "/")[3], file))
		}
	}
	for _, dir := range cgroupsOf(state) {
		if !waits(dir) {
			left = append(left, "cgroup "+dir)
		}
	}
	group := "/belljar/" + read(filepath.Join(state, "native/id")) + "/"
	for _, p := range processes() {
		// What has ended and whose parent is not the server, that parent has
		// to reap.
		if p.pid == server || p.pid == os.Getpid() || p.dead && p.parent != server {
			continue
		}
		cgroup := read(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if waits(cgroup) || waits(p.command) {
			continue
		}
		switch {
		// After the server's end its window of user ids may be another's.
		case server != 0 && ours(state, p.user), strings.Contains(p.command, state),
			strings.Contains(cgroup, group):
			left = append(left, p.String())
		case strings.Contains(read(fmt.Sprintf("/proc/%d/mountinfo", p.pid)), state):
			left = append(left, "mount seen by "+p.String())
		}
	}
	return left
}

// waiting returns whether a text names a sandbox of a state directory that
// waits in the pool: not one that a run has claimed. The process with the
// networks waits as well.
func waiting(state string) func(text string) bool {
	var ids []string
	for _, dir := range glob(filepath.Join(state, "native/sandboxes/spare-*")) {
		if strings.Contains(read(filepath.Join(dir, "sandbox.json")), `"kind":"spare"`) {
			ids = append(ids, filepath.Base(dir))
		}
	}
	return func(text string) bool {
		if strings.Contains(text, "/.net") {
			return true
		}
		return slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(text, id) })
	}
}

// ours reports whether a user id is of the server's window.
func ours(state string, user int) bool {
	window, err := strconv.Atoi(read(filepath.Join(state, "native/window")))
	first := firstUser + window*windowSize
	return err == nil && user >= first && user < first+windowSize
}

// cgroupsOf returns the directories of the sandboxes' cgroups.
func cgroupsOf(state string) []string {
	id := read(filepath.Join(state, "native/id"))
	if id == "" {
		return nil
	}
	return slices.DeleteFunc(append(glob("/sys/fs/cgroup/belljar/"+id+"/*"), glob("/sys/fs/cgroup/*/belljar/"+id+"/*")...), func(name string) bool {
		info, err := os.Stat(name)
		return err != nil || !info.IsDir()
	})
}

// process is a process of the host.
type process struct {
	pid, parent, user int
	dead              bool // and not reaped
	command           string
}

func (p process) String() string {
	return fmt.Sprintf("process %d of user %d: %.200q", p.pid, p.user, p.command)
}

func processes() []process {
	var all []process
	for _, dir := range glob("/proc/[0-9]*") {
		p := process{command: strings.ReplaceAll(read(dir+"/cmdline"), "\x00", " ")}
		status := read(dir + "/status")
		field := func(name string) (value string) {
			_, after, _ := strings.Cut(status, "\n"+name+":")
			fmt.Sscan(after, &value)
			return value
		}
		var errs [3]error
		p.pid, errs[0] = strconv.Atoi(filepath.Base(dir))
		p.parent, errs[1] = strconv.Atoi(field("PPid"))
		p.user, errs[2] = strconv.Atoi(field("Uid"))
		if errors.Join(errs[:]...) != nil {
			continue // ended meanwhile
		}
		p.dead = field("State") == "Z"
		all = append(all, p)
	}
	return all
}

// inside returns the processes in sandboxes of a server.
func inside(state string) []process {
	waits := waiting(state)
	return slices.DeleteFunc(processes(), func(p process) bool {
		return !ours(state, p.user) || waits(read(fmt.Sprintf("/proc/%d/cgroup", p.pid)))
	})
}

func glob(pattern string) []string {
	names, err := filepath.Glob(pattern)
	if err != nil {
		panic(err) // the pattern is wrong
	}
	return names
}

// read returns a file without the line's end, or "" if there is none.
func read(name string) string {
	data, _ := os.ReadFile(name)
	return strings.TrimSuffix(string(data), "\n")
}

// memory returns a field of a process's status, in bytes.
func memory(t testing.TB, pid int, field string) int64 {
	t.Helper()
	_, after, ok := strings.Cut(read(fmt.Sprintf("/proc/%d/status", pid)), "\n"+field+":")
	var kib int64
	if n, err := fmt.Sscan(after, &kib); !ok || n != 1 {
		t.Fatalf("reading %s of process %d: %v", field, pid, err)
	}
	return kib << 10
}

// growth measures by how much a process's memory has grown at most, from now
// until the returned function is called.
func growth(t testing.TB, pid int) func() int64 {
	t.Helper()
	// 5 resets the peak, proc_pid_clear_refs(5).
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	before := memory(t, pid, "VmRSS")
	return func() int64 { t.Helper(); return memory(t, pid, "VmHWM") - before }
}

// diskUsed returns how many bytes files below a directory take on disk.
func diskUsed(t testing.TB, dir string) int64 {
	t.Helper()
	var total int64
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			total += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}
