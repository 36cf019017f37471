package egress

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"belljar/internal/engine"
)

// process is the one that has the networks.
type process struct {
	host    *host
	program string
	owner   int // the user id that may give orders
	idle    time.Duration
	quit    chan struct{}

	mu       sync.Mutex // guards what follows
	boxes    map[string]*box
	servers  int         // connections
	timer    *time.Timer // ends the process when it has nothing to do
	ended    bool
	watchers map[*net.UnixConn]bool

	events chan event
}

// What is heard of a sandbox's denials at once, and per second. All of them
// are counted, and the latest are kept.
const (
	eventBurst = 20
	eventRate  = 1
)

// box is a sandbox with its network.
type box struct {
	*network
	pidfd *os.File
	ended bool // the sandbox has; what it used is still to be reported
}

// serve takes orders from connections to l, until it is told to end, or has
// had neither a sandbox nor a server for the idle time.
func (p *process) serve(l *net.UnixListener) error {
	p.boxes = map[string]*box{}
	p.watchers = map[*net.UnixConn]bool{}
	p.events = make(chan event, 256)
	p.quit = make(chan struct{})
	go p.tell()
	p.timer = time.AfterFunc(p.idle, func() { p.end(true) })
	go func() {
		<-p.quit
		l.Close()
	}()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-p.quit:
				return nil
			default:
				return err
			}
		}
		if !p.owns(conn) {
			conn.Close()
			continue
		}
		p.count(+1)
		go func() {
			defer p.count(-1)
			defer conn.Close()
			p.obey(conn)
		}()
	}
}

// owns is whether the server's user is at the other end.
func (p *process) owns(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && int(peer.Uid) == p.owner
	})
	return ok && err == nil
}

// count changes the number of connections.
func (p *process) count(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers += by
	p.rest()
}

// rest lets the process end in a while if it has nothing to do. Call it
// locked.
func (p *process) rest() {
	if p.servers > 0 || p.live() > 0 {
		p.timer.Stop()
	} else {
		p.timer.Reset(p.idle)
	}
}

// live counts the sandboxes that have not ended. Call it locked.
func (p *process) live() int {
	n := 0
	for _, b := range p.boxes {
		if !b.ended {
			n++
		}
	}
	return n
}

// end ends the process if it has no sandbox and, if idle, no server.
func (p *process) end(idle bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live() > 0 || idle && p.servers > 0 {
		return false
	}
	if !p.ended {
		p.ended = true
		close(p.quit)
	}
	return true
}

// obey carries out what one connection asks for.
func (p *process) obey(conn *net.UnixConn) {
	for {
		var r request
		files, err := receive(conn, &r)
		if err != nil {
			closeAll(files)
			return
		}
		if r.Op == opWatch {
			closeAll(files)
			p.watch(conn)
			return
		}
		if send(conn, p.carryOut(r, files)) != nil {
			return
		}
	}
}

// watch has a connection hear of denials until it ends.
func (p *process) watch(conn *net.UnixConn) {
	p.mu.Lock()
	p.watchers[conn] = true
	p.mu.Unlock()
	var one [1]byte
	_, _ = conn.Read(one[:]) // nothing more is said; the end is what is awaited
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, conn)
}

// tell passes events on to those who watch. Who does not listen misses some.
func (p *process) tell() {
	for e := range p.events {
		p.mu.Lock()
		conns := slices.Collect(maps.Keys(p.watchers))
		p.mu.Unlock()
		for _, conn := range conns {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			if send(conn, e) != nil {
				conn.Close() // a part of an event may have gone out
			}
		}
	}
}

// listener returns what passes a sandbox's denials on, not too many.
func (p *process) listener(id string) func(engine.Denial) {
	limit := rate.NewLimiter(eventRate, eventBurst)
	return func(d engine.Denial) {
		if !limit.Allow() {
			return
		}
		select {
		case p.events <- event{id, d}:
		default:
		}
	}
}

var errUnknown = errors.New("no such sandbox")

// carryOut takes the files over.
func (p *process) carryOut(r request, files []*os.File) response {
	if r.Op == opAttach {
		return failed(p.attach(r, files))
	}
	closeAll(files)
	switch r.Op {
	case opHello:
		p.mu.Lock()
		defer p.mu.Unlock()
		answer := response{Program: p.program}
		for id, b := range p.boxes {
			if !b.ended {
				answer.Sandboxes = append(answer.Sandboxes, id)
			}
		}
		slices.Sort(answer.Sandboxes)
		return answer
	case opUse, opDetach:
		use, err := p.use(r.Sandbox, r.Since, r.Op == opDetach)
		if err != nil {
			return failed(err)
		}
		return response{Use: &use}
	case opResolvers:
		p.host.setResolvers(r.Resolvers)
		return response{}
	case opQuit:
		if !p.end(false) {
			return response{Error: "there are sandboxes"}
		}
		return response{}
	}
	return response{Error: fmt.Sprintf("unknown operation %.20q", r.Op)}
}

func failed(err error) response {
	if err == nil {
		return response{}
	}
	return response{Error: err.Error(), Unknown: errors.Is(err, errUnknown)}
}

// attach builds a sandbox's network on the device that came along. It ends
// with the sandbox's process 1, whose descriptor came too: nobody may be there
// to tell, and the device would keep the sandbox's namespace.
func (p *process) attach(r request, files []*os.File) error {
	if len(files) != 2 || r.Policy == nil {
		closeAll(files)
		return errors.New("an attachment needs a policy, a device and a process")
	}
	tun, pidfd := files[0], files[1]
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.boxes[r.Sandbox]; old != nil {
		old.close() // of a process 1 before
		p.drop(r.Sandbox)
	}
	n, err := newNetwork(*r.Policy, p.host, tun, p.listener(r.Sandbox))
	if err != nil {
		closeAll(files)
		return err
	}
	b := &box{network: n, pidfd: pidfd}
	p.boxes[r.Sandbox] = b
	p.rest()
	go p.await(b)
	return nil
}

// await ends a network when its sandbox has ended.
func (p *process) await(b *box) {
	if raw, err := b.pidfd.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err != nil && err != unix.EINTR || n == 1
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop(b)
	p.rest()
}

// stop closes what a box holds. Call it locked; it may be called again.
func (p *process) stop(b *box) {
	if b.ended {
		return
	}
	b.ended = true
	b.pidfd.Close()
	b.end()
}

// drop forgets a sandbox. Call it locked.
func (p *process) drop(id string) {
	p.stop(p.boxes[id])
	delete(p.boxes, id)
	p.rest()
}

func (p *process) use(id string, since uint64, last bool) (engine.NetworkUse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.boxes[id]
	if b == nil {
		return engine.NetworkUse{}, errUnknown
	}
	use := b.account.report(since, int(b.open.Load()))
	if last {
		p.drop(id)
	}
	return use, nil
}
