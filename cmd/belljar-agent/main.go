// Command belljar-agent is process 1 of a sandbox. It dials the Belljar
// server's socket and serves the agent's API there, over and over: a server
// that was restarted finds its jobs going on.
//
//	belljar-agent [SOCKET]
//	belljar-agent workspace  the same in a workspace, which is its user's alone
//	belljar-agent probe      ends at once: shows that a container can run
package main

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/agent"
)

func main() {
	agent.RunHelper()
	socket := agent.Socket
	if len(os.Args) > 1 {
		socket = os.Args[1]
	}
	if socket == "probe" {
		return
	}
	runs := socket != agent.InWorkspace
	if !runs {
		socket = agent.Socket
	}
	if err := run(socket, runs); err != nil {
		fmt.Fprintln(os.Stderr, "belljar-agent:", err)
		os.Exit(1)
	}
}

// run serves, after making the directories that a script expects if runs is
// set.
func run(socket string, runs bool) error {
	// Next to a script that takes all it can get, the agent stays small.
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(64 << 20)
	unix.Umask(0o022)
	// Commands get three descriptors, whatever this process was started with.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	dirs := []string{agent.Workdir}
	if runs {
		dirs = append(dirs, filepath.Join(agent.Workdir, "input"), filepath.Join(agent.Workdir, "output"))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)

	s := agent.NewServer(agent.Options{Spare: !runs})
	// What a script may do to other processes, it may not do to this one. Not
	// before the server has opened what is then closed to this one as well.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("closing the process to others: %w", err)
	}
	go func() {
		for {
			s.Serve(dial(socket))
		}
	}()
	<-end
	s.Close()
	return nil
}

// dial tries until the server is there. Nothing announces that it is.
func dial(socket string) net.Conn {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn
		}
		time.Sleep(wait)
	}
}
