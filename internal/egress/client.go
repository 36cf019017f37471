package egress

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar/internal/engine"
)

// Options are for starting the process.
type Options struct {
	// Dir is a directory of the process's own, for its socket and its empty
	// root. It is made if it does not exist.
	Dir string
	// Program is the command whose program calls Main, with a name of its own
	// for what it is to do, such as "/proc/self/exe", "net".
	Program []string
	// User is the user and group id that it runs as, nobody else's.
	User int
	// Idle is how long it stays with nothing to do; 3 min if zero.
	Idle time.Duration
	// Place is told the process's number as soon as it runs.
	Place func(pid int)
	// Denied is told of what sandboxes are refused, alike attempts once, and
	// not too often. It may be called until the client has ended.
	Denied func(sandbox string, d engine.Denial)
	Log    *slog.Logger
}

// Client is the server's end of the process. Its methods are safe for
// concurrent use.
//
// The process outlives the server, and goes on for the sandboxes that it has
// when the program is upgraded: one that has none is replaced by one of the
// new program. The socket's name has the protocol's version, so a server never
// talks to a process that it does not understand; such a one goes on until its
// sandboxes have ended, and then ends by itself.
type Client struct {
	conn  *net.UnixConn
	watch *net.UnixConn
	ended chan struct{}
	dir   string
	// program is which build the process is of.
	program string

	mu sync.Mutex // one exchange at a time
}

// answerTime bounds one exchange.
const (
	answerTime = 10 * time.Second
)

// ErrUnknown says that the process has no such sandbox.
var ErrUnknown = errors.New("the sandbox has no network")

func socketName() string { return fmt.Sprintf("net-%d.sock", protocolVersion) }

// Connect returns a client of the process that runs, or of a new one, and the
// sandboxes that it has.
func Connect(ctx context.Context, o Options, program string) (*Client, []string, error) {
	if err := os.MkdirAll(filepath.Join(o.Dir, "root"), 0o755); err != nil {
		return nil, nil, err
	}
	if c, boxes, err := dial(o); err == nil {
		if c.program == program || len(boxes) > 0 {
			return c, boxes, nil
		}
		c.Quit()
	}
	if err := start(o); err != nil {
		return nil, nil, fmt.Errorf("starting the network's process: %w", err)
	}
	c, boxes, err := dial(o)
	if err != nil {
		return nil, nil, fmt.Errorf("reaching the network's process: %w", err)
	}
	return c, boxes, nil
}

// dial connects to the process that listens there, and greets it.
func dial(o Options) (*Client, []string, error) {
	path, release, err := shortPath(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	c := &Client{ended: make(chan struct{}), dir: o.Dir}
	for _, conn := range []**net.UnixConn{&c.conn, &c.watch} {
		if *conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			c.Close()
			return nil, nil, err
		}
	}
	hello, err := c.ask(request{Op: opHello})
	if err == nil {
		err = send(c.watch, request{Op: opWatch})
	}
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	c.program = hello.Program
	go c.listen(o.Denied)
	return c, hello.Sandboxes, nil
}

// listen hears of denials until the process ends.
func (c *Client) listen(denied func(string, engine.Denial)) {
	defer close(c.ended)
	for {
		var e event
		files, err := receive(c.watch, &e)
		closeAll(files)
		if err != nil {
			c.watch.Close()
			return
		}
		if denied != nil {
			denied(e.Sandbox, e.Denial)
		}
	}
}

// shortPath returns a path to the socket that is short enough for one.
func shortPath(dir string) (path string, release func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName()), func() { d.Close() }, nil
}

// start starts the process, detached from this one, on a socket that this one
// makes: connections wait there until it is ready.
func start(o Options) error {
	path, release, err := shortPath(o.Dir)
	if err != nil {
		return err
	}
	defer release()
	if err := os.Remove(filepath.Join(o.Dir, socketName())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	args := append(append([]string{}, o.Program[1:]...), fmt.Sprintf("--user=%d", o.User), fmt.Sprintf("--owner=%d", os.Geteuid()))
	if o.Idle > 0 {
		args = append(args, "--idle="+o.Idle.String())
	}
	cmd := exec.Command(o.Program[0], args...)
	cmd.Dir = filepath.Join(o.Dir, "root")
	cmd.Env = []string{} // no secret of ours; nil would be all of it
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if o.Place != nil {
		o.Place(cmd.Process.Pid)
	}
	go func() {
		err := cmd.Wait() // so that it does not stay as a zombie
		if o.Log != nil {
			o.Log.Debug("the network's process has ended", "pid", cmd.Process.Pid, "err", err)
		}
	}()
	return nil
}

// ask makes one exchange.
func (c *Client) ask(r request, files ...*os.File) (response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetDeadline(time.Now().Add(answerTime))
	var answer response
	err := send(c.conn, r, files...)
	if err == nil {
		var more []*os.File
		more, err = receive(c.conn, &answer)
		closeAll(more)
	}
	if err != nil {
		c.conn.Close() // what comes next would be taken for another's answer
		return answer, fmt.Errorf("asking the network's process: %w", err)
	}
	if answer.Unknown {
		return answer, ErrUnknown
	}
	if answer.Error != "" {
		return answer, fmt.Errorf("the network's process: %.200s", answer.Error)
	}
	return answer, nil
}

// Attach gives a sandbox a network on a device, which stays the caller's to
// close, until its process 1 ends.
func (c *Client) Attach(id string, policy engine.Network, tun, pidfd *os.File) error {
	_, err := c.ask(request{Op: opAttach, Sandbox: id, Policy: &policy}, tun, pidfd)
	return err
}

// Detach ends a sandbox's network and returns what was not reported yet since
// an earlier report. ErrUnknown if it has none.
func (c *Client) Detach(id string, since uint64) (engine.NetworkUse, error) {
	return used(c.ask(request{Op: opDetach, Sandbox: id, Since: since}))
}

// Use reports as engine.NetworkReporter does. ErrUnknown if the sandbox has no
// network.
func (c *Client) Use(id string, since uint64) (engine.NetworkUse, error) {
	return used(c.ask(request{Op: opUse, Sandbox: id, Since: since}))
}

func used(r response, err error) (engine.NetworkUse, error) {
	if err != nil {
		return engine.NetworkUse{}, err
	}
	if r.Use == nil {
		return engine.NetworkUse{}, errors.New("the network's process reported nothing")
	}
	return *r.Use, nil
}

// SetResolvers tells which resolvers queries are passed on to.
func (c *Client) SetResolvers(all []netip.AddrPort) error {
	_, err := c.ask(request{Op: opResolvers, Resolvers: all})
	return err
}

// Quit ends the process if it has no sandbox, and waits for that.
func (c *Client) Quit() {
	if _, err := c.ask(request{Op: opQuit}); err == nil {
		select {
		case <-c.ended:
			_ = os.Remove(filepath.Join(c.dir, socketName()))
		case <-time.After(answerTime):
		}
	}
	c.Close()
}

// Left is whether there may be a process that an earlier server has left.
func Left(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, socketName()))
	return err == nil
}

// Ended is closed when the process has ended, or the client was closed.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Close lets go of the process, which goes on.
func (c *Client) Close() {
	for _, conn := range []*net.UnixConn{c.conn, c.watch} {
		if conn != nil {
			conn.Close()
		}
	}
}

// Resolvers reads those of a host from a file like /etc/resolv.conf,
// resolv.conf(5). Without any it is the one on the host itself.
func Resolvers(file string) []netip.AddrPort {
	data, _ := os.ReadFile(file)
	var all []netip.AddrPort
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil && len(all) < 8 {
			all = append(all, netip.AddrPortFrom(addr, 53))
		}
	}
	if len(all) == 0 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 53))
	}
	return all
}
