package egress

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// dialTime is how long the other side may take to answer. A sandbox's own
	// patience is some 130 s, during which it asks again.
	dialTime = 30 * time.Second
	// handshakeTime is how long the sandbox may take then; netstack would give
	// it 127 s.
	handshakeTime = 10 * time.Second
)

// halfOpen holds the connections that are being opened. When there are too
// many, the oldest to the address with the most goes: a flood or a scan takes
// the room from itself, and whoever means to connect is done long before.
type halfOpen struct {
	mu  sync.Mutex
	all list.List // of *opening, the oldest first
	to  map[netip.Addr]int
}

// opening is a connection that is being opened. abort ends whatever it waits
// for.
type opening struct {
	to      netip.Addr
	mu      sync.Mutex
	abort   func()
	aborted bool
}

func (h *halfOpen) add(to netip.Addr, abort func()) (o *opening, done func()) {
	o = &opening{to: to, abort: abort}
	h.mu.Lock()
	if h.to == nil {
		h.to = map[netip.Addr]int{}
	}
	e := h.all.PushBack(o)
	h.to[to]++
	var victim *opening
	if h.all.Len() > maxHalfOpen {
		v := h.victim()
		victim = v.Value.(*opening)
		h.remove(v)
	}
	h.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return o, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(e)
	})
}

// victim is the one to go. Call it locked.
func (h *halfOpen) victim() *list.Element {
	most := 0
	for _, count := range h.to {
		most = max(most, count)
	}
	for e := h.all.Front(); e != nil; e = e.Next() {
		if h.to[e.Value.(*opening).to] == most {
			return e
		}
	}
	return h.all.Front()
}

// remove takes one out that may have been taken out before. Call it locked.
func (h *halfOpen) remove(e *list.Element) {
	before := h.all.Len()
	o := h.all.Remove(e).(*opening)
	if h.all.Len() == before {
		return
	}
	if h.to[o.to]--; h.to[o.to] == 0 {
		delete(h.to, o.to)
	}
}

func (o *opening) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.aborted = true
	o.abort()
}

// next changes what ends the opening, and reports whether it goes on.
func (o *opening) next(abort func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.abort = abort
	return !o.aborted
}

// admitTCP decides on a segment that belongs to no connection. After false the
// stack answers with a reset.
func (n *network) admitTCP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	flags := header.TCP(pkt.TransportHeader().Slice()).Flags()
	if flags&(header.TCPFlagSyn|header.TCPFlagAck|header.TCPFlagRst) != header.TCPFlagSyn {
		return false
	}
	to := destination(id)
	if !isResolver(to) && !n.admit("tcp", to) {
		return false
	}
	if n.open.Load() >= n.most {
		n.refuse("tcp", to, nil, ruleFlows)
		return false
	}
	return true
}

// forwardTCP opens a connection to where the sandbox wants to, and only then
// accepts the sandbox's, so that both see the same.
func (n *network) forwardTCP(r *tcp.ForwarderRequest) {
	if !n.reserve() {
		r.Complete(true)
		return
	}
	defer n.release()
	ctx, cancel := context.WithTimeout(n.ctx, dialTime)
	defer cancel()
	to := destination(r.ID())
	o, opened := n.half.add(to.Addr(), cancel)
	defer opened()
	if isResolver(to) {
		if ep, wq := n.accept(r, o); ep != nil {
			opened()
			n.serveDNS(gonet.NewTCPConn(wq, ep))
		}
		return
	}
	conn, err := n.host.dialTCP(ctx, to)
	if err != nil {
		// Nothing is answered where nothing was: the sandbox's kernel asks
		// again until it gives up, as it would without us.
		silent := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
		r.Complete(!silent)
		return
	}
	ep, wq := n.accept(r, o)
	if ep == nil {
		conn.Close()
		return
	}
	opened()
	n.relay(ep, wq, conn)
}

// accept completes the sandbox's handshake; nil if it does not.
func (n *network) accept(r *tcp.ForwarderRequest, o *opening) (tcpip.Endpoint, *waiter.Queue) {
	id, wq := r.ID(), new(waiter.Queue)
	protocol := header.IPv4ProtocolNumber
	if id.LocalAddress.Len() == 16 {
		protocol = header.IPv6ProtocolNumber
	}
	ended := make(chan struct{})
	defer close(ended)
	// netstack does not let a handshake be given up, but the endpoint that it
	// has registered can be aborted.
	abort := func() {
		go func() {
			for {
				if ep := n.stack.FindTransportEndpoint(protocol, tcp.ProtocolNumber, id, nic); ep != nil {
					ep.Abort()
				}
				select {
				case <-ended:
					return
				case <-time.After(20 * time.Millisecond): // it may not be registered yet
				}
			}
		}()
	}
	if !o.next(abort) {
		r.Complete(true)
		return nil, nil
	}
	timer := time.AfterFunc(handshakeTime, abort)
	defer timer.Stop()
	stop := context.AfterFunc(n.ctx, abort)
	defer stop()
	ep, err := r.CreateEndpoint(wq)
	r.Complete(false)
	if err != nil || !o.next(func() {}) {
		if ep != nil {
			ep.Abort()
		}
		return nil, nil
	}
	ep.SocketOptions().SetDelayOption(false)
	return ep, wq
}

// flow is a connection between a sandbox and the world.
type flow struct {
	n     *network
	ep    tcpip.Endpoint
	conn  *net.TCPConn
	raw   syscall.RawConn
	pool  *sync.Pool
	in    chan struct{} // tokens: the endpoint may be readable
	space chan struct{} // it may be writable
}

var (
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeRelay); return &b }}
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
)

// relay copies both ways until both sides are done. It holds buffers only
// while data moves.
func (n *network) relay(ep tcpip.Endpoint, wq *waiter.Queue, conn *net.TCPConn) {
	defer ep.Close()
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		ep.Abort()
		return
	}
	size := n.buffers.take()
	defer n.buffers.give(size)
	f := &flow{n: n, ep: ep, conn: conn, raw: raw, pool: &largeBuffers}
	if size < largeBuffer {
		f.pool = &smallBuffers
		ep.SocketOptions().SetReceiveBufferSize(size, true)
		ep.SocketOptions().SetSendBufferSize(size, true)
		_ = conn.SetReadBuffer(int(size))
		_ = conn.SetWriteBuffer(int(size))
	}
	var in, out waiter.Entry
	in, f.in = waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	out, f.space = waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&in)
	defer wq.EventUnregister(&in)
	wq.EventRegister(&out)
	defer wq.EventUnregister(&out)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.send()
	}()
	f.receive()
	<-done
}

// send copies from the sandbox to the world.
func (f *flow) send() {
	for {
		buf := f.pool.Get().(*[]byte)
		w := tcpip.SliceWriter(*buf)
		// Read holds the endpoint's lock, so nothing is written to meanwhile
		// that may block.
		res, err := f.ep.Read(&w, tcpip.ReadOptions{})
		if err != nil {
			f.pool.Put(buf)
			switch err.(type) {
			case *tcpip.ErrWouldBlock:
				select {
				case <-f.in:
					continue
				case <-f.n.ctx.Done():
				}
			case *tcpip.ErrClosedForReceive:
				f.conn.CloseWrite()
				return
			}
			f.reset()
			return
		}
		f.n.account.sent.Add(int64(res.Count))
		wait(f.n.ctx, f.n.up, res.Count)
		_, werr := f.conn.Write((*buf)[:res.Count])
		f.pool.Put(buf)
		if werr != nil {
			f.ep.Abort()
			return
		}
	}
}

// receive copies from the world to the sandbox.
func (f *flow) receive() {
	for {
		buf, count, err := readReady(f.raw, f.pool)
		if err != nil {
			f.ep.Abort()
			f.conn.Close()
			return
		}
		if count == 0 {
			f.pool.Put(buf)
			f.ep.Shutdown(tcpip.ShutdownWrite)
			return
		}
		f.n.account.received.Add(int64(count))
		wait(f.n.ctx, f.n.down, count)
		ok := f.deliver((*buf)[:count])
		f.pool.Put(buf)
		if !ok {
			f.reset()
			return
		}
	}
}

// deliver writes all of data to the endpoint.
func (f *flow) deliver(data []byte) bool {
	for r := bytes.NewReader(data); r.Len() > 0; {
		_, err := f.ep.Write(r, tcpip.WriteOptions{})
		if err == nil {
			continue
		}
		if _, full := err.(*tcpip.ErrWouldBlock); !full {
			return false
		}
		select {
		case <-f.space:
		case <-f.n.ctx.Done():
			return false
		}
	}
	return true
}

// reset closes the world's side as abruptly as the sandbox has its own.
func (f *flow) reset() {
	_ = f.conn.SetLinger(0)
	f.conn.Close()
}

// wait delays by what the rate limit says. Its burst holds every count.
func wait(ctx context.Context, l *rate.Limiter, count int) {
	if l != nil {
		_ = l.WaitN(ctx, count)
	}
}
