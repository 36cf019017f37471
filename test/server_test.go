package test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long what must happen may take here. Machines that run
// tests are slow and busy; nothing here measures speed.
const patience = 3 * time.Minute

// server is a `belljar serve` with a state directory of its own.
type server struct {
	state string
	env   []string
	log   *logBuffer
	cmd   *exec.Cmd
	ended chan error // gets what Wait returns
	url   string     // of /mcp
	pid   int

	mu     sync.Mutex
	tokens []string // of all links that results gave
}

// startServer starts a server, which is stopped at the end of the test. Then
// it must end with success, leave nothing behind, and have kept the tokens of
// links out of its log.
func startServer(t testing.TB, settings ...string) *server {
	t.Helper()
	return startServerWith(t, []string{"mini"}, settings...)
}

// startServerWith is startServer with other images than mini.
func startServerWith(t testing.TB, images []string, settings ...string) *server {
	t.Helper()
	s := &server{state: newState(t, images...), env: settings, log: newLogBuffer()}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the server's log ends with:\n%s", tail(s.log.String(), 6000))
		}
	})
	return s
}

// shared is a server that tests share which neither kill it nor measure it.
type shared struct {
	images   []string
	settings []string

	mu     sync.Mutex
	server *server // nil until a test asks for it
}

var (
	miniShared = &shared{images: []string{"mini"}}
	// The image is the default one here.
	scienceShared     = scienceWith()
	scienceColdShared = scienceWith("BELLJAR_POOL_MEMORY=0")
	// Room for all runtimes, whatever was asked for before.
	scienceWarmShared = scienceWith("BELLJAR_POOL_MEMORY=4GiB")
)

func scienceWith(settings ...string) *shared {
	return &shared{
		images:   []string{"science", "mini", "julia-bullseye"},
		settings: append([]string{"SANDBOX_IMAGE=", "BELLJAR_RUNTIMES=" + exampleTable("julia")}, settings...),
	}
}

// sharedServer returns a server with default settings and the image mini.
func sharedServer(t testing.TB) *server { return miniShared.get(t) }

// scienceServer returns a server with default settings, which has the images
// science and mini, and runs Julia in the image julia-bullseye.
func scienceServer(t testing.TB) *server { return scienceShared.get(t) }

// exampleTable is the path of an example of an operator's table of runtimes.
func exampleTable(name string) string {
	path, err := filepath.Abs("../examples/runtimes/" + name + ".toml")
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

func (s *shared) get(t testing.TB) *server {
	t.Helper()
	needRoot(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		started := &server{state: newState(t, s.images...), env: s.settings, log: newLogBuffer()}
		if err := started.start(); err != nil {
			t.Fatal(err)
		}
		s.server = started
	}
	return s.server
}

func endShared() error {
	var errs []error
	for _, s := range []*shared{miniShared, scienceShared, scienceColdShared, scienceWarmShared} {
		if s.server != nil {
			errs = append(errs, s.server.end())
		}
	}
	return errors.Join(errs...)
}

var serving = regexp.MustCompile(`msg="serving MCP" url=(http://\S+/mcp)`)

// start starts the server, or starts it again, and waits until it serves.
func (s *server) start() error {
	path, err := built()
	if err != nil {
		return err
	}
	before := len(s.log.String())
	cmd := exec.Command(path, "serve", "--port", "0")
	cmd.Dir = s.state // where no .env is
	cmd.Env = environ(append([]string{"BELLJAR_STATE_DIR=" + s.state}, s.env...)...)
	cmd.Stderr = s.log
	// Should the tests be killed, so is the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.pid, s.ended = cmd, cmd.Process.Pid, make(chan error, 1)
	go func() { s.ended <- cmd.Wait() }()
	limit := time.After(patience)
	for {
		text, more := s.log.state()
		if m := serving.FindStringSubmatch(text[before:]); m != nil {
			s.url = m[1]
			return nil
		}
		select {
		case <-more:
		case err := <-s.ended:
			return fmt.Errorf("the server did not start: %v\n%s", err, s.log.String()[before:])
		case <-limit:
			return fmt.Errorf("the server did not start in time:\n%s", text[before:])
		}
	}
}

// base is the server's address, without a slash at the end.
func (s *server) base() string { return strings.TrimSuffix(s.url, "/mcp") }

// kill ends the server as a crash would.
func (s *server) kill(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	s.cmd = nil
}

// restart starts a killed or stopped server on the same state directory.
func (s *server) restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// stop asks the server to end, and waits until it has. It is no error that
// it was stopped before.
func (s *server) stop() error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-s.ended:
		s.cmd = nil
		if err != nil {
			return fmt.Errorf("after SIGTERM the server ended with %w", err)
		}
		return nil
	case <-time.After(patience):
		s.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines into the log
		<-s.ended
		s.cmd = nil
		return fmt.Errorf("the server did not end within %v of SIGTERM:\n%s", patience, tail(s.log.String(), 20000))
	}
}

// end stops the server and looks for what should not be there afterwards.
func (s *server) end() error {
	errs := []error{s.deleteWorkspaces(), s.stop()}
	if left := leftovers(s.state, 0); len(left) > 0 {
		errs = append(errs, fmt.Errorf("the server has left behind:\n%s", strings.Join(left, "\n")))
	}
	log := s.log.String()
	for _, token := range s.tokens {
		if strings.Contains(log, token) {
			errs = append(errs, fmt.Errorf("the token of a link is in the server's log"))
			break
		}
	}
	return errors.Join(errs...)
}

// settled waits until no sandbox is left, and fails the test if one stays.
func (s *server) settled(t testing.TB) {
	t.Helper()
	var left []string
	if !eventually(func() bool { left = leftovers(s.state, s.pid); return len(left) == 0 }) {
		t.Errorf("still there:\n%s", strings.Join(left, "\n"))
	}
}

// sandboxes returns the directories of the sandboxes that do not wait in the
// pool.
func (s *server) sandboxes(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.state, "native/sandboxes/*"))
	if err != nil {
		t.Fatal(err)
	}
	waits := waiting(s.state)
	return slices.DeleteFunc(dirs, waits)
}

// eventually reports whether ok became true in time.
func eventually(ok func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for {
		if ok() {
			return true
		}
		select {
		case <-tick.C:
		case <-limit:
			return ok()
		}
	}
}

// tail returns the last n bytes of a text.
func tail(s string, n int) string { return s[max(0, len(s)-n):] }
