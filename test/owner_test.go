package test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// One process owns a state directory; these tests have several at a time.

// stdio starts a `belljar stdio` on a state directory.
func stdio(t *testing.T, state string, log *logBuffer, version string) *mcp.ClientSession {
	t.Helper()
	cmd := exec.Command(belljar(t), "stdio", "--port", "0")
	cmd.Dir = t.TempDir()
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	cmd.Stderr = log
	session, err := connect(t.Context(), &mcp.CommandTransport{Command: cmd}, version)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return session
}

// TestStdioAlone: with no server about, `belljar stdio` does the work itself,
// serves the links, and leaves nothing.
func TestStdioAlone(t *testing.T) {
	state := newState(t)
	for _, version := range []string{modern, legacy} {
		log := newLogBuffer()
		session := stdio(t, state, log, version)
		f := checkSession(t, session).file(t, "sine.png")
		if err := session.Close(); err != nil {
			t.Errorf("%v\n%s", err, log)
		}
		if _, err := http.Get(f.URL); err == nil {
			t.Error("links are served after the end")
		}
		if left := leftovers(state, 0); len(left) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		if strings.Contains(log.String(), f.token()) {
			t.Error("the token of a link is in the log")
		}
	}
}

// TestStdioBesideServer: where a server runs, its sandboxes and links are
// used, and outlive the client.
func TestStdioBesideServer(t *testing.T) {
	s := startServer(t)
	for _, version := range []string{modern, legacy} {
		session := stdio(t, s.state, newLogBuffer(), version)
		r := checkSession(t, session)
		s.note(r)
		f := r.file(t, "sine.png")
		if !strings.HasPrefix(f.URL, s.base()+"/") {
			t.Errorf("the link is not the server's: %s", f.URL)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		download(t, f)
	}
	s.settled(t)
}

// TestRunBesideServer: a command goes through the server's socket, and the
// server's sandboxes do not notice.
func TestRunBesideServer(t *testing.T) {
	s := startServer(t)
	held, release := holdRun(t, s)
	for i := range 3 {
		out, errs, code := output(t, s.state, fmt.Sprintf("print(%d)", i), "run", "python", "-")
		if code != 0 || out != fmt.Sprintf("%d\n", i) {
			t.Errorf("run %d: %d %s%s", i, code, out, errs)
		}
	}
	if out, errs, code := output(t, s.state, "", "gc"); code != 0 {
		t.Errorf("gc: %d %s%s", code, out, errs)
	}
	release()
	if r := <-held; r == nil || r.Stdout != "begun\nended\n" {
		t.Errorf("the server's run: %s", r)
	}
	info, err := os.Stat(filepath.Join(s.state, "belljar.sock"))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v %v", info, err)
	}
}

// holdRun starts a run that ends well when release is called.
func holdRun(t *testing.T, s *server) (held <-chan *result, release func()) {
	t.Helper()
	results := make(chan *result, 1)
	go func() {
		defer close(results)
		r, err := s.tryRun(t.Context(), "bash", "echo begun; sleep 987654; echo ended", args{"timeout": 300})
		if err != nil {
			t.Error(err)
			return
		}
		results <- r
	}()
	if !eventually(func() bool { return len(sleepers(s.state)) == 1 }) {
		t.Fatal("the script did not start")
	}
	return results, func() {
		t.Helper()
		for _, p := range sleepers(s.state) {
			if p.command == "sleep 987654 " {
				if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
					t.Errorf("ending the script's sleep: %v", err)
				}
			}
		}
	}
}

// TestSecondServerIsRefused, in words, and does no harm.
func TestSecondServerIsRefused(t *testing.T) {
	s := startServer(t)
	held, release := holdRun(t, s)
	_, errs, code := output(t, s.state, "", "serve", "--port", "0")
	for _, want := range []string{"the state directory is in use", fmt.Sprintf("process %d", s.pid), s.url, "BELLJAR_STATE_DIR"} {
		if code != 1 || !strings.Contains(errs, want) {
			t.Errorf("exit code %d, %q lacks %q", code, errs, want)
		}
	}
	release()
	if r := <-held; r == nil || r.Stdout != "begun\nended\n" {
		t.Errorf("the first server's run: %s", r)
	}
}

// TestImageInUseStays: an image is not taken away under a sandbox.
func TestImageInUseStays(t *testing.T) {
	s := startServer(t)
	held, release := holdRun(t, s)
	if _, errs, code := output(t, s.state, "", "image", "rm", "mini"); code != 1 || !strings.Contains(errs, "in use") {
		t.Errorf("removing it: %d %s", code, errs)
	}
	s.succeed(t, "bash", "true")
	release()
	if r := <-held; r == nil || r.Stdout != "begun\nended\n" {
		t.Errorf("the run: %s", r)
	}
	s.settled(t)
	if out, errs, code := output(t, s.state, "", "image", "rm", "mini"); code != 0 {
		t.Errorf("removing it afterwards: %d %s%s", code, out, errs)
	}
	if text := s.refused(t, "bash", "true"); !strings.Contains(text, `the image "mini" is not there yet`) {
		t.Errorf("a run without its image: %s", text)
	}
}

// TestCommandsWhileTheServerComesAndGoes: commands that find the server
// dead, starting or ending either work or say what is the matter; a server
// that has started works, and its sandboxes are its own.
func TestCommandsWhileTheServerComesAndGoes(t *testing.T) {
	s := startServer(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	type outcome struct {
		out, errs string
		code      int
	}
	outcomes := make(chan []outcome)
	go func() {
		var all []outcome
		for ctx.Err() == nil {
			out, errs, code := output(t, s.state, "echo from the command line", "run", "bash", "-")
			all = append(all, outcome{out, errs, code})
		}
		outcomes <- all
	}()
	for round := range 4 {
		s.kill(t)
		// The command may own the directory now. A server waits for nobody,
		// so it is its supervisor's part to start it again.
		if !eventually(func() bool { return s.start() == nil }) {
			t.Fatalf("round %d: the server does not start:\n%s", round, tail(s.log.String(), 3000))
		}
		held, release := holdRun(t, s)
		if r := s.succeed(t, "bash", "echo works"); r.Stdout != "works\n" {
			t.Errorf("round %d: %s", round, r)
		}
		release()
		if r := <-held; r == nil || r.Stdout != "begun\nended\n" {
			t.Fatalf("round %d: the server's run: %s", round, r)
		}
	}
	stop()
	worked := 0
	for _, o := range <-outcomes {
		switch {
		case o.code == 0 && o.out == "from the command line\n":
			worked++
		case o.code == 1 && o.out == "" && strings.Contains("\n"+o.errs, "\nbelljar: ") && !strings.Contains(o.errs, "goroutine "):
			t.Logf("a command said: %s", o.errs)
		default:
			t.Errorf("a command ended with %d: %q %s", o.code, o.out, o.errs)
		}
	}
	if worked == 0 {
		t.Error("no command ever worked")
	}
	s.settled(t)
}
