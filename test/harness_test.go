// Package test looks at Belljar from outside: a real server, the native
// engine, real clients, and scripts that mean harm. The rules of the
// repository are kept here too.
package test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// cacheDir holds what is expensive to make, between runs of the tests, and
// the state directories of test servers beside it: images are hard-linked
// into those, so both are on one file system.
const cacheDir = "/var/cache/belljar-test"

const program = "../bin/belljar"

func TestMain(m *testing.M) {
	code := m.Run()
	if err := endShared(); err != nil {
		fmt.Fprintln(os.Stderr, "the shared server:", err)
		code = 1
	}
	if err := endRunDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// belljar returns the path of the program, built from this tree.
func belljar(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var built = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("make", "-s", "build")
	cmd.Dir = ".."
	// Static, as users get it, also where the tests themselves are built with
	// cgo for the race detector. Root need not be the owner of the tree.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return filepath.Abs(program)
})

// needRoot skips a test of the native engine for other users.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the native engine runs as root")
	}
}

// newState makes a state directory that has the images of the given names,
// mini if none is given. It is removed when the tests end.
func newState(t testing.TB, images ...string) string {
	t.Helper()
	needRoot(t)
	if len(images) == 0 {
		images = []string{"mini"}
	}
	dir, err := runDir()
	if err != nil {
		t.Fatal(err)
	}
	state, err := os.MkdirTemp(dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(state, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := copyImages(filepath.Join(state, "images"), images); err != nil {
		t.Fatal(err)
	}
	return state
}

// runDir is where this process's state directories are. It is locked while
// the process lives, so that a later one can tell what nobody uses.
var runDir = sync.OnceValues(func() (string, error) {
	if err := os.MkdirAll(cacheDir, 0o711); err != nil {
		return "", err
	}
	clearStale()
	dir := filepath.Join(cacheDir, "run-"+strings.ToLower(rand.Text()[:8]))
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	runLock = lock
	return dir, nil
})

var runLock *os.File // keeps the lock of runDir

func endRunDir() error {
	if runLock == nil {
		return nil
	}
	dir := filepath.Dir(runLock.Name())
	forgetServers(dir)
	return os.RemoveAll(dir)
}

// forgetServers removes the cgroups that servers keep for their next start.
func forgetServers(dir string) {
	for _, file := range glob(filepath.Join(dir, "s*/native/id")) {
		for _, group := range append(glob("/sys/fs/cgroup/belljar/"+read(file)), glob("/sys/fs/cgroup/*/belljar/"+read(file))...) {
			_ = os.Remove(group) // not if a sandbox is left in it, which is reported elsewhere
		}
	}
}

// clearStale removes the directories of runs of the tests that were killed,
// with what their servers left.
func clearStale() {
	for _, dir := range glob(filepath.Join(cacheDir, "run-*")) {
		lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		for _, state := range glob(filepath.Join(dir, "s*")) {
			// It may be too broken for that.
			_ = clearCommand(state, "sandbox", "rm", "-f", "default").Run()
			_ = clearCommand(state, "gc").Run()
		}
		forgetServers(dir)
		_ = os.RemoveAll(dir)
		lock.Close()
	}
}

func clearCommand(state string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	return cmd
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// environ is the environment of a program under test: what it needs, the image
// that most tests use, and the settings that the test makes, but none of the
// developer's.
func environ(settings ...string) []string {
	env := []string{"HOME=" + os.TempDir(), "SANDBOX_IMAGE=mini"}
	for _, name := range []string{"PATH", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, settings...)
}

// output runs a command of belljar's on a state directory.
func output(t testing.TB, state, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), belljar(t), args...)
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	cmd.Dir = t.TempDir()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// logBuffer keeps a server's log and tells who waits for a line of it.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed when there is more
}

func newLogBuffer() *logBuffer { return &logBuffer{more: make(chan struct{})} }

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.more)
	b.more = make(chan struct{})
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	text, _ := b.state()
	return text
}

// state returns the log and a channel that is closed once there is more.
func (b *logBuffer) state() (string, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String(), b.more
}
