package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// proc is a process as /proc shows it.
type proc struct {
	pid, ppid, sid int
	threads        int
	zombie         bool
}

// alive is false for what only waits to be reaped. The first thread of a
// process may be a zombie while others run on.
func (p proc) alive() bool { return !p.zombie || p.threads > 1 }

// processes reads the process table.
func processes() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var procs []proc
	var buf [1024]byte
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProc(pid, buf[:]); ok {
				procs = append(procs, p)
			}
		}
	}
	return procs, nil
}

// readProc reads one line of the process table; false if it is gone.
func readProc(pid int, buf []byte) (proc, bool) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return proc{}, false
	}
	defer syscall.Close(fd)
	n, err := syscall.Read(fd, buf)
	if err != nil {
		return proc{}, false
	}
	// The name in parentheses may hold anything, parentheses included.
	_, rest, ok := cutLast(buf[:n], ')')
	f := bytes.Fields(rest)
	if !ok || len(f) < 18 {
		return proc{}, false
	}
	number := func(i int) int { v, _ := strconv.Atoi(string(f[i])); return v }
	return proc{
		pid:     pid,
		zombie:  f[0][0] == 'Z' || f[0][0] == 'X',
		ppid:    number(1),
		sid:     number(3),
		threads: number(17),
	}, true
}

func cutLast(b []byte, sep byte) (before, after []byte, ok bool) {
	i := bytes.LastIndexByte(b, sep)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i], b[i+1:], true
}

// selector picks processes out of the process table.
type selector func([]proc) []proc

// below selects the descendants of root, without those in and under except.
func below(root int, except map[int]bool) selector {
	return func(all []proc) []proc {
		children := map[int][]proc{}
		for _, p := range all {
			if p.pid != p.ppid && !except[p.pid] {
				children[p.ppid] = append(children[p.ppid], p)
			}
		}
		found := children[root]
		delete(children, root)
		for i := 0; i < len(found); i++ {
			found = append(found, children[found[i].pid]...)
			delete(children, found[i].pid)
		}
		return found
	}
}

// session selects the processes of a session and their descendants.
func session(sid int) selector {
	return func(all []proc) []proc {
		var found []proc
		for _, p := range all {
			if p.sid == sid {
				found = append(found, p)
				found = append(found, below(p.pid, nil)(all)...)
			}
		}
		return found
	}
}

const (
	// endPatience is how long ending processes may take. It is long since a
	// process in the middle of a write to a slow disk ends after that.
	endPatience = 10 * time.Second
	// chaseRounds is how often single processes are chased until, as process
	// 1, the whole sandbox is held still for a moment.
	chaseRounds = 5
	// maxPasses bounds one round against processes that follow each other
	// faster than they can be stopped.
	maxPasses = 50
)

var errUnending = errors.New("some processes could not be ended")

// endAll repeats round, which kills what it finds and says whether all is
// gone, until it is. Every so many rounds, never if 0, the whole sandbox is
// held still meanwhile, which only process 1 can do: reading the process table
// takes longer than some processes live, and so may miss a chain of them.
func endAll(every int, round func() (gone bool, err error)) error {
	deadline := time.Now().Add(endPatience)
	for n := 1; ; n++ {
		still := every > 0 && n%every == 0
		if still {
			syscall.Kill(-1, syscall.SIGSTOP)
		}
		gone, err := round()
		if still {
			syscall.Kill(-1, syscall.SIGCONT)
		}
		if err != nil || gone {
			return err
		}
		if time.Now().After(deadline) {
			return errUnending
		}
		time.Sleep(time.Millisecond) // the kernel tells nobody when a descendant is gone
	}
}

// endRound stops what is selected until there is nothing new, so that none
// can fork a successor between being found and being killed, then kills it.
// A stopped process cannot end by itself, so no pid changes hands meanwhile.
func endRound(sel selector) (gone bool, err error) {
	stopped := map[int]bool{}
	for pass := 0; ; pass++ {
		all, err := processes()
		if err != nil {
			return false, fmt.Errorf("reading the process table: %w", err)
		}
		procs := slices.DeleteFunc(sel(all), func(p proc) bool { return !p.alive() })
		fresh := false
		for _, p := range procs {
			if !stopped[p.pid] {
				stopped[p.pid], fresh = true, true
				syscall.Kill(p.pid, syscall.SIGSTOP)
			}
		}
		if fresh && pass < maxPasses {
			continue
		}
		for _, p := range procs {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
		return len(procs) == 0, nil
	}
}
