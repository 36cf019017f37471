package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// listener is the socket on which the server waits for a sandbox's agent. It
// stands in a directory that the sandbox sees read-only. The server listens
// and never dials, so nothing in the sandbox decides where it connects to.
type listener struct {
	turn sync.Mutex // one Connect at a time
	l    *net.UnixListener
}

func listen(dir string) (*listener, error) {
	name := filepath.Base(agent.Socket)
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// A socket's name is short (108 bytes, unix(7)); directories are not.
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening for the agent: %w", err)
	}
	l.SetUnlinkOnClose(false)
	// The agent is no one here; only the mount leads to the socket.
	if err := os.Chmod(filepath.Join(dir, name), 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return &listener{l: l}, nil
}

func (s *listener) close() { s.l.Close() }

// Connect implements engine.Engine.
func (e *Engine) Connect(ctx context.Context, id string) (net.Conn, error) {
	b, err := e.find(id, "connecting to")
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	process, server := b.process, b.server
	b.mu.Unlock()
	if process == nil || server == nil {
		return nil, fmt.Errorf("connecting to %s: %w", id, engine.ErrNotRunning)
	}
	conn, err := server.accept(ctx, process)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", id, err)
	}
	// What dials is the agent, so the runtime has done its part by now.
	if err := b.checkFilter(process.pid); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connecting to %s: %w", id, err)
	}
	return conn, nil
}

// accept waits for the agent to dial.
func (s *listener) accept(ctx context.Context, p *process) (net.Conn, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.l.SetDeadline(time.Time{})
	over, woken := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(woken)
		select {
		case <-ctx.Done():
		case <-p.ended:
		case <-over:
			return
		}
		s.l.SetDeadline(time.Unix(1, 0)) // wakes Accept
	}()
	defer func() { close(over); <-woken }()
	for {
		conn, err := s.l.AcceptUnix()
		switch {
		case err == nil && peer(conn) == p.pid:
			return conn, nil
		case err == nil: // some other process of the sandbox
			conn.Close()
		case ctx.Err() != nil:
			return nil, ctx.Err()
		default:
			return nil, engine.ErrNotRunning
		}
	}
}

// peer returns the process that dialled.
func peer(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
