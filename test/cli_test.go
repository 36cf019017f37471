package test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestCommandLine runs the scripts of testdata. They are written to be read:
// each shows what a part of the command line does. Besides testscript's own
// commands there are
//
//	serve [NAME=VALUE...]  start a server; $URL is its /mcp
//	stop                   stop it
//	nobody ARG...          run belljar as an ordinary user
//
// Scripts whose name begins with run- need root and have the image mini.
// Sandboxes must be gone when one ends.
func TestCommandLine(t *testing.T) {
	path := belljar(t)
	scripts := glob("testdata/*.txtar")
	if len(scripts) == 0 {
		t.Fatal("no scripts")
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		t.Run(name, func(t *testing.T) {
			c := &commandLine{program: path, state: filepath.Join(t.TempDir(), "state")}
			if strings.HasPrefix(name, "run-") {
				c.state = newState(t)
			}
			c.run(t, script)
			if left := leftovers(c.state, 0); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// commandLine is what one script works on.
type commandLine struct {
	program, state string
	server         *server // nil if none runs
}

func (c *commandLine) run(t *testing.T, script string) {
	defer func() {
		if c.server != nil {
			if err := c.server.end(); err != nil {
				t.Error(err)
			}
		}
	}()
	testscript.RunT(oneScript{t}, testscript.Params{
		Files:               []string{script},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(c.program)+":"+e.Getenv("PATH"))
			e.Setenv("BELLJAR_STATE_DIR", c.state)
			e.Setenv("SANDBOX_IMAGE", "mini")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": c.serve, "stop": c.stop, "nobody": c.nobody,
		},
	})
}

func (c *commandLine) serve(ts *testscript.TestScript, neg bool, settings []string) {
	if neg || c.server != nil {
		ts.Fatalf("usage: serve [NAME=VALUE...], once")
	}
	c.server = &server{state: c.state, env: settings, log: newLogBuffer()}
	ts.Check(c.server.start())
	ts.Setenv("URL", c.server.url)
}

func (c *commandLine) stop(ts *testscript.TestScript, neg bool, args []string) {
	if neg || c.server == nil || len(args) > 0 {
		ts.Fatalf("usage: stop, after serve")
	}
	ts.Check(c.server.end())
	c.server = nil
}

// nobody runs belljar as an ordinary user, who need not be able to reach the
// program's directory.
func (c *commandLine) nobody(ts *testscript.TestScript, neg bool, args []string) {
	f, err := os.Open(c.program)
	ts.Check(err)
	defer f.Close()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/proc/self/fd/3", args...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Env, cmd.Dir = environ("BELLJAR_STATE_DIR="+ts.Getenv("BELLJAR_STATE_DIR")), "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	err = cmd.Run()
	io.Copy(ts.Stdout(), &stdout)
	io.Copy(ts.Stderr(), &stderr)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	if neg == (err == nil) {
		ts.Fatalf("nobody: %v", err)
	}
}

// oneScript runs a script in its test rather than in a subtest of its name.
type oneScript struct{ *testing.T }

func (t oneScript) Run(_ string, f func(testscript.T)) { f(t) }
func (t oneScript) Verbose() bool                      { return testing.Verbose() }
func (t oneScript) Parallel()                          {}
