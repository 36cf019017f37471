package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
)

// children starts the agent's helper processes and is the one place that
// waits for processes. As process 1 it reaps whatever ends, since orphans of
// the whole sandbox arrive here; otherwise only what it started itself.
type children struct {
	init   bool
	reaped atomic.Int64 // orphans
	sigs   chan os.Signal
	done   chan struct{}
	// victims is what openVictims opened before this process was closed to
	// others.
	victims *os.File

	// mu is held while forking and while reaping, so that a process is known
	// before it can be reaped, and no pid is signalled after it was.
	mu      sync.Mutex
	running map[int]*child
}

// child is a process that children started.
type child struct {
	pid    int
	helper bool          // one of the agent's own, not of a job
	done   chan struct{} // closed when it was reaped
	status syscall.WaitStatus
}

func newChildren() *children {
	c := &children{
		init:    os.Getpid() == 1,
		sigs:    make(chan os.Signal, 1),
		done:    make(chan struct{}),
		running: map[int]*child{},
	}
	c.victims, _ = openVictims()
	signal.Notify(c.sigs, syscall.SIGCHLD)
	go func() {
		defer close(c.done)
		for range c.sigs {
			c.reap()
		}
	}()
	return c
}

// close stops reaping.
func (c *children) close() {
	signal.Stop(c.sigs)
	close(c.sigs)
	<-c.done
	c.victims.Close()
}

var errFull = errors.New("it has as many processes and threads as it may have; end some first, such as those that an earlier job has left")

// start runs this program's binary as a helper, with files as descriptors 0
// and up.
func (c *children) start(argv []string, files ...*os.File) (*child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: descriptors(files),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if errors.Is(err, syscall.EAGAIN) {
		return nil, errFull
	}
	if err != nil {
		return nil, fmt.Errorf("starting a helper process: %w", err)
	}
	return c.add(&child{pid: pid, helper: true}), nil
}

// startCommand starts a job's command without a supervisor.
func (c *children) startCommand(o order, files ...*os.File) (*child, *outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, failure := startCommand(o, descriptors(files), c.victims)
	if failure != nil {
		return nil, failure
	}
	return c.add(&child{pid: pid}), nil
}

func (c *children) add(ch *child) *child {
	ch.done = make(chan struct{})
	c.running[ch.pid] = ch
	return ch
}

func descriptors(files []*os.File) []uintptr {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	return fds
}

// kill sends SIGKILL unless the process was reaped already.
func (c *children) kill(ch *child) {
	c.hold(ch, func() { syscall.Kill(ch.pid, syscall.SIGKILL) })
}

// hold calls f while ch cannot be reaped and its pid is its own; false if it
// was reaped already.
func (c *children) hold(ch *child, f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[ch.pid] != ch {
		return false
	}
	f()
	return true
}

// helpers are the helper processes that were not reaped yet.
func (c *children) helpers() map[int]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make(map[int]bool, len(c.running))
	for pid, ch := range c.running {
		if ch.helper {
			pids[pid] = true
		}
	}
	return pids
}

// reap waits for every process that has ended.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.init {
		for c.wait(-1) {
		}
		return
	}
	for pid := range c.running {
		c.wait(pid)
	}
}

// wait reaps one process if there is one to reap.
func (c *children) wait(which int) bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(which, &status, syscall.WNOHANG, nil)
	if errors.Is(err, syscall.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	ch := c.running[pid]
	if ch == nil {
		c.reaped.Add(1)
		return true
	}
	delete(c.running, pid)
	ch.status = status
	close(ch.done)
	return true
}
