package egress

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// program is the real one, built as users get it: what it gives up it gives up
// with all that it has.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "belljar-egress-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "belljar")
	cmd := exec.Command("go", "build", "-o", path, "belljar/cmd/belljar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil && path != "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

const testUser = 2130706431

// connect returns a client of a process on the world's host.
func (w *world) connect(dir, build string, change func(*Options)) (*Client, []string) {
	w.t.Helper()
	path, err := program()
	if err != nil {
		w.t.Fatal(err)
	}
	o := Options{Dir: dir, Program: []string{path, "net"}, User: testUser, Idle: 2 * time.Second}
	if change != nil {
		change(&o)
	}
	var has []string
	c, err := within(w.home, func() (c *Client, err error) {
		c, has, err = Connect(w.t.Context(), o, build)
		return c, err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.SetResolvers(w.host.resolversNow()); err != nil {
		w.t.Fatal(err)
	}
	return c, has
}

// attached is a sandbox whose network is the process's, with a process 1.
func (w *world) attached(c *Client, id string) (*jar, *exec.Cmd) {
	w.t.Helper()
	j := &jar{namespace: newNamespace(w.t)}
	one := exec.Command("sleep", "1000")
	if err := one.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { one.Process.Kill(); one.Wait() })
	w.attach(c, id, j, one.Process.Pid)
	return j, one
}

func (w *world) attach(c *Client, id string, j *jar, pid int) {
	w.t.Helper()
	tun, err := Device{Namespace: j.fd, IPv6: true}.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	defer tun.Close()
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		w.t.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	if err := c.Attach(id, engine.Network{Internet: true}, tun, pidfd); err != nil {
		w.t.Fatal(err)
	}
}

// TestProcess has a server end and another one come, while a connection is
// open.
func TestProcess(t *testing.T) {
	w := newWorld(t)
	w.dns.set("name.example", public4)
	dir := t.TempDir()
	heard := make(chan string, 10)
	c, has := w.connect(dir, version(t), func(o *Options) {
		o.Denied = func(id string, d engine.Denial) { heard <- id + " " + d.String() }
	})
	if len(has) != 0 {
		t.Errorf("a new process has %v", has)
	}
	j, one := w.attached(c, "a")
	if got, err := j.lookup("udp", "name.example"); err != nil || got[0].String() != public4 {
		t.Errorf("looking up: %v, %v", got, err)
	}
	conn, err := j.dial("tcp", at(public4, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	echo := func(text string) {
		t.Helper()
		got := make([]byte, len(text))
		io.WriteString(conn, text)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
			t.Fatalf("%q came back, %v", got, err)
		}
	}
	echo("before")
	if _, err := j.dial("tcp", at(hostIP, webPort)); err == nil {
		t.Error("the host was reached")
	}
	select {
	case got := <-heard:
		if want := "a " + at(hostIP, webPort) + " tcp: " + ruleHost; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Error("nobody heard of a denial")
	}
	c.Close()
	<-c.Ended()
	echo("between")
	c, has = w.connect(dir, "another build", nil)
	if len(has) != 1 || has[0] != "a" {
		t.Errorf("the process has %v", has)
	}
	echo("after")
	use, err := c.Use("a", 0)
	if err != nil || len(use.Denied) != 1 || use.Sent < int64(len("beforebetweenafter")) || use.Open != 1 {
		t.Errorf("use: %+v, %v", use, err)
	}
	if _, err := c.Use("b", 0); err != ErrUnknown {
		t.Errorf("of no sandbox: %v", err)
	}
	// The network ends with the sandbox's process 1, with nobody telling.
	one.Process.Kill()
	one.Wait()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlives the sandbox")
	}
	if use, err = c.Detach("a", use.Cursor); err != nil || len(use.Denied) != 0 {
		t.Errorf("the last report: %+v, %v", use, err)
	}
	c.Quit()
	select {
	case <-c.Ended():
	case <-time.After(patience):
		t.Error("the process does not end")
	}
}

// version is what the program says of itself.
func version(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))[1]
}

// TestProcessKilled attaches a sandbox to another process after the first was
// killed.
func TestProcessKilled(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	pid := 0
	place := func(o *Options) { o.Place = func(p int) { pid = p } }
	c, _ := w.connect(dir, version(t), place)
	j, one := w.attached(c, "a")
	conn, err := j.dial("tcp", at(public4, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Ended():
	case <-time.After(patience):
		t.Fatal("its end is not noticed")
	}
	first := pid
	c, has := w.connect(dir, version(t), place)
	if pid == first || len(has) > 0 {
		t.Errorf("process %d, then %d with %v", first, pid, has)
	}
	w.attach(c, "a", j, one.Process.Pid)
	if got, err := j.echo("tcp", at(public4, echoPort), "again"); got != "again" || err != nil {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	// The old connection is reset, not left to hang.
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, "x")
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the old connection: %v", err)
	}
	c.Close()
}

// TestProcessEnds wants a process to go that has nothing to do, and one of an
// older build to be replaced.
func TestProcessEnds(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	var pids []int
	change := func(o *Options) {
		o.Idle = 300 * time.Millisecond
		o.Place = func(p int) { pids = append(pids, p) }
	}
	c, _ := w.connect(dir, version(t), change)
	c.Close()
	c, _ = w.connect(dir, version(t), change)
	if len(pids) != 1 {
		t.Errorf("processes %v: the first was not found again", pids)
	}
	c.Close()
	c, _ = w.connect(dir, "a newer build", change)
	if len(pids) != 2 {
		t.Errorf("processes %v: the first was not replaced", pids)
	}
	c.Close()
	for _, pid := range pids {
		await(t, "the process ends", func() bool { return syscall.Kill(pid, 0) != nil })
	}
}

// TestForeignOrders has another user, and nonsense, at the socket.
func TestForeignOrders(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	c, _ := w.connect(dir, version(t), nil)
	j, _ := w.attached(c, "a")
	path := filepath.Join(dir, socketName())
	for p := dir; p != "/"; p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	os.Chmod(path, 0o666)
	cmd := exec.Command("sh", "-c", `printf '\000\000\000\016{"op":"quit"} ' | busybox nc local:`+path+` 2>&1 || true`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Run()
	for _, nonsense := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x02{]", "\x00\x00\x00\x02", "\x00\x00\x00\x0f{\"op\":\"attach\"}"} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, nonsense)
		conn.(*net.UnixConn).CloseWrite()
		conn.SetDeadline(time.Now().Add(patience))
		io.ReadAll(conn)
		conn.Close()
	}
	if got, err := j.echo("tcp", at(public4, echoPort), "x"); got != "x" || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
	c.Close()
}

// TestIdleMemory attaches many sandboxes that do nothing.
func TestIdleMemory(t *testing.T) {
	w := newWorld(t)
	pid := 0
	c, _ := w.connect(t.TempDir(), version(t), func(o *Options) { o.Place = func(p int) { pid = p } })
	defer c.Close()
	one := exec.Command("sleep", "1000")
	if err := one.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { one.Process.Kill(); one.Wait() }()
	const count = 100
	add := func(i int) {
		j := &jar{namespace: newNamespace(t)}
		w.attach(c, fmt.Sprint("s", i), j, one.Process.Pid)
	}
	add(count)
	before, begun := residentMemory(t, pid), time.Now()
	for i := range count {
		add(i)
	}
	each := (residentMemory(t, pid) - before) / count
	t.Logf("%d KiB for the first, %d more for each of %d; %v to make each", before>>10, each>>10, count, time.Since(begun)/count)
	if each > 512<<10 {
		t.Errorf("%d KiB for each sandbox", each>>10)
	}
}

// residentMemory reads what a process takes, in bytes, without its program.
func residentMemory(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, ok := strings.Cut(string(data), "RssAnon:")
	kib := 0
	if n, _ := fmt.Sscan(after, &kib); err != nil || !ok || n != 1 {
		t.Fatalf("reading the memory of process %d: %v", pid, err)
	}
	return kib << 10
}

func TestResolversOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	os.WriteFile(file, []byte("# nameserver 9.9.9.9\nsearch x\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver x\n nameserver\t1.1.1.1 \n"), 0o644)
	got := Resolvers(file)
	if len(got) != 3 || got[0] != netip.MustParseAddrPort("127.0.0.53:53") || got[2] != netip.MustParseAddrPort("1.1.1.1:53") {
		t.Errorf("resolvers: %v", got)
	}
	if got := Resolvers(file + ".absent"); len(got) != 1 || got[0].String() != "127.0.0.1:53" {
		t.Errorf("without a file: %v", got)
	}
}
