package agent

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// GateVariable is the environment variable that names the FIFO at which the
// command of a job with a gate waits.
const GateVariable = "BELLJAR_GATE"

// PreloadVariable tells such a command to load, before it waits, what it is
// likely to need.
const PreloadVariable = "BELLJAR_PRELOAD"

// ErrGate says that a job does not wait quietly at its gate: it has none, has
// not got there yet, was let through before, has ended, or has printed.
var ErrGate = errors.New("the job does not wait at its gate")

// gate is a FIFO that a command reads to its end before it goes on.
type gate struct {
	path    string
	node    *os.File           // the FIFO, whatever becomes of its name
	reached chan struct{}      // closed when the command has opened the FIFO
	passed  chan time.Duration // gets the time limit when the command is let through

	mu      sync.Mutex
	writer  *os.File // held while the command waits
	printed int64    // bytes of output when that was told; -1 before
}

// newGate makes the FIFO of a job's gate.
func newGate(path string) (*gate, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("making the gate: %w", err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("making the gate: %w", err)
	}
	node := os.NewFile(uintptr(fd), path)
	return &gate{path: path, node: node, reached: make(chan struct{}), passed: make(chan time.Duration, 1), printed: -1}, nil
}

// reopen opens the FIFO itself.
func (g *gate) reopen(flags int) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", g.node.Fd()), flags, 0)
}

// await waits until the command has opened the FIFO for reading: the kernel
// lets the writer open it then. It takes a thread meanwhile.
func (g *gate) await() {
	defer close(g.reached)
	w, err := g.reopen(os.O_WRONLY)
	if err != nil {
		return // out of descriptors: nobody gets through
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writer = w
}

// open lets the command through.
func (g *gate) open(timeout time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.writer == nil {
		return ErrGate
	}
	// Only a byte tells whether somebody still reads.
	_, err := g.writer.Write([]byte("\n"))
	g.writer.Close()
	g.writer = nil
	if err != nil {
		return ErrGate
	}
	g.passed <- timeout
	return nil
}

// close lets go of the gate, when the command has ended. Await must have been
// called.
func (g *gate) close() {
	// A command that never came has left await waiting for a reader.
	if r, err := g.reopen(os.O_RDONLY | unix.O_NONBLOCK); err == nil {
		<-g.reached
		r.Close()
	}
	os.Remove(g.path)
	g.node.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.writer != nil {
		g.writer.Close()
		g.writer = nil
	}
}

// told remembers how much the command had printed when a client was told that
// it waits.
func (g *gate) told(printed int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.printed < 0 {
		g.printed = printed
	}
}

// quiet is whether the command has not printed since.
func (g *gate) quiet(printed int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.printed < 0 || g.printed == printed
}

// waiting is whether the command waits at the gate now.
func (g *gate) waiting() bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writer != nil
}

func (s *Server) serveOpen(w http.ResponseWriter, r *http.Request) error {
	j, err := s.job(r)
	if err != nil {
		return err
	}
	timeout, err := time.ParseDuration(r.FormValue("timeout"))
	if err != nil || timeout <= 0 {
		return fmt.Errorf("timeout %q", r.FormValue("timeout"))
	}
	return j.pass(timeout)
}

// pass lets a command that waits at its gate through. Its time counts from
// now.
func (j *job) pass(timeout time.Duration) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gate == nil || j.outcome != nil || !j.gate.quiet(j.stdout.written()+j.stderr.written()) {
		return ErrGate
	}
	os.Remove(j.gate.path) // before the command could see it
	started := time.Now()
	if err := j.gate.open(timeout); err != nil {
		return err
	}
	j.started = started
	return nil
}
