package native

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is process 1 of a sandbox, held by a file descriptor, so that no
// later process with its number is taken for it.
type process struct {
	pid   int
	birth uint64 // in clock ticks since boot
	fd    *os.File
	// groups is where its limits are; they outlive the process by a little.
	groups membership
	// ended is closed when the kernel says that the process ended, or when
	// the process is let go of.
	ended chan struct{}
}

// watch takes hold of a running process.
func watch(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}
	if p.birth, err = birth(pid); err != nil {
		p.fd.Close()
		return nil, err
	}
	conn, err := p.fd.SyscallConn()
	if err != nil {
		p.fd.Close()
		return nil, err
	}
	go func() {
		defer close(p.ended)
		// Waits without a thread until the descriptor is readable, which
		// means ended, or closed.
		conn.Read(func(uintptr) bool { return !p.alive() })
	}()
	return p, nil
}

// alive asks the kernel.
func (p *process) alive() bool {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return false
	}
	ended := true
	conn.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = err == nil && n == 1
	})
	return !ended
}

// kill ends the process, and with it, it being process 1 of its namespace,
// every other one there. It returns when the kernel says they ended.
func (p *process) kill() error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var killErr error
	err = conn.Control(func(fd uintptr) { killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err = errors.Join(err, killErr); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process 1: %w", err)
	}
	<-p.ended
	return nil
}

func (p *process) close() { p.fd.Close() }

// birth reads when a process started: field 22 of its stat file, proc(5).
func birth(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold anything.
	rest := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(rest) < 20 {
		return 0, fmt.Errorf("process %d: unreadable stat", pid)
	}
	return strconv.ParseUint(rest[19], 10, 64)
}
