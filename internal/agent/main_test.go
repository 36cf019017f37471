package agent

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	RunHelper()
	os.Exit(m.Run())
}

// sandbox is a server in this process and a client of it.
type sandbox struct {
	*Client
	server *Server
	root   string
}

func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "sandbox"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := NewServer(Options{Root: root})
	t.Cleanup(s.Close)
	sb := &sandbox{server: s, root: root}
	sb.connect(t)
	return sb
}

// connect gives the sandbox a new client.
func (sb *sandbox) connect(t testing.TB) {
	t.Helper()
	ours, theirs := connPair(t)
	go sb.server.Serve(theirs)
	sb.Client = NewClient(ours)
	t.Cleanup(func() { sb.Client.Close() })
}

func connPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "conn")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return conns[0], conns[1]
}

// patience is longer than anything here should take.
const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func bash(id, script string) JobSpec {
	return JobSpec{ID: id, Argv: []string{"bash", "-c", script}, Timeout: patience, Keep: 1 << 10}
}

// run runs a job to its end.
func (sb *sandbox) run(t *testing.T, spec JobSpec) JobStatus {
	t.Helper()
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	st, err := sb.WaitJob(testContext(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// file is where a file of the sandbox is on the host.
func (sb *sandbox) file(name string) string { return filepath.Join(sb.root, "sandbox", name) }

// pids reads the process ids that a script has written, a line each, waiting
// until there are n.
func (sb *sandbox) pids(t *testing.T, name string, n int) []int {
	t.Helper()
	var pids []int
	await(t, "pids of the script", func() bool {
		data, err := os.ReadFile(sb.file(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		pids = nil
		for _, f := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		return len(pids) >= n
	})
	return pids
}

// await polls what the kernel does not announce.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func alive(pid int) bool {
	p, ok := readProc(pid, make([]byte, 1024))
	return ok && p.alive() && syscall.Kill(pid, 0) == nil
}
