package egress

import (
	"bytes"
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// udpIdle is how long a UDP flow lasts without a packet, as with the NAT
	// of Linux for flows that were answered.
	udpIdle = 2 * time.Minute
	maxUDP  = 512
)

// flows are a sandbox's UDP flows. When there are too many, the one goes that
// is idle for longest: UDP has no end that could be waited for.
type flows struct {
	mu  sync.Mutex
	all list.List // of *udpFlow
}

// udpFlow is a UDP flow. Its ends are closed once.
type udpFlow struct {
	last  atomic.Int64 // when a packet passed, in Unix nanoseconds
	ended chan struct{}
	end   func()
}

func (s *flows) add(f *udpFlow) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Len() >= maxUDP {
		idlest := s.all.Front()
		for e := idlest.Next(); e != nil; e = e.Next() {
			if e.Value.(*udpFlow).last.Load() < idlest.Value.(*udpFlow).last.Load() {
				idlest = e
			}
		}
		s.all.Remove(idlest).(*udpFlow).end()
	}
	e := s.all.PushBack(f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all.Remove(e) // no error if it is gone
	}
}

// handleUDP takes a datagram that belongs to no flow. It runs on the path of
// packets, so it does not wait.
func (n *network) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	to, from := destination(id), source(id)
	if isResolver(to) {
		n.answerUDP(from, to, pkt.Data().AsRange().ToSlice())
		return true
	}
	if !n.admit("udp", to) {
		n.unreachable(udp.ProtocolNumber, from, to, prohibited)
		return true
	}
	if !n.reserve() {
		n.refuse("udp", to, nil, ruleFlows)
		n.unreachable(udp.ProtocolNumber, from, to, prohibited)
		return true
	}
	clone := pkt.Clone()
	defer clone.DecRef()
	wq := new(waiter.Queue)
	ep, err := udp.NewForwarderRequest(n.stack, id, clone).CreateEndpoint(wq)
	if err != nil {
		n.release()
		return true
	}
	go func() {
		defer n.release()
		n.relayUDP(ep, wq, from, to)
	}()
	return true
}

// relayUDP passes datagrams both ways until the flow is idle for too long.
func (n *network) relayUDP(ep tcpip.Endpoint, wq *waiter.Queue, from, to netip.AddrPort) {
	defer ep.Close()
	conn, err := n.host.dialUDP(to)
	if err != nil {
		n.unreachable(udp.ProtocolNumber, from, to, noRoute)
		return
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return
	}
	ended := make(chan struct{})
	f := &udpFlow{ended: ended, end: sync.OnceFunc(func() { close(ended); conn.Close() })}
	defer f.end()
	f.touch()
	defer n.udp.add(f)()
	defer f.endWhenIdle()()
	in, readable := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&in)
	defer wq.EventUnregister(&in)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer f.end()
		n.receiveUDP(f, ep, raw, from, to)
	}()
	n.sendUDP(f, ep, readable, func(b []byte) { _, _ = conn.Write(b) })
	f.end()
	<-done
}

// endWhenIdle ends the flow when no packet has passed for long enough.
func (f *udpFlow) endWhenIdle() (stop func()) {
	var timer *time.Timer
	var mu sync.Mutex // the timer may run before it is assigned
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(udpIdle, func() {
		mu.Lock()
		defer mu.Unlock()
		idle := time.Since(time.Unix(0, f.last.Load()))
		if idle >= udpIdle {
			f.end()
			return
		}
		timer.Reset(udpIdle - idle)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

func (f *udpFlow) touch() { f.last.Store(time.Now().UnixNano()) }

func (n *network) sendUDP(f *udpFlow, ep tcpip.Endpoint, readable chan struct{}, write func([]byte)) {
	for {
		buf := packets.Get().(*[]byte)
		w := tcpip.SliceWriter(*buf)
		res, err := ep.Read(&w, tcpip.ReadOptions{})
		if err == nil {
			f.touch()
			if n.up == nil || n.up.AllowN(time.Now(), res.Count) {
				n.account.sent.Add(int64(res.Count))
				write((*buf)[:res.Count])
			}
			packets.Put(buf)
			continue
		}
		packets.Put(buf)
		if _, empty := err.(*tcpip.ErrWouldBlock); !empty {
			return
		}
		select {
		case <-readable:
		case <-f.ended:
			return
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *network) receiveUDP(f *udpFlow, ep tcpip.Endpoint, raw syscall.RawConn, from, to netip.AddrPort) {
	for {
		buf, count, err := readReady(raw, &packets)
		if errors.Is(err, syscall.ECONNREFUSED) {
			n.unreachable(udp.ProtocolNumber, from, to, noPort)
			continue
		}
		if err != nil {
			return
		}
		f.touch()
		if n.down == nil || n.down.AllowN(time.Now(), count) {
			n.account.received.Add(int64(count))
			_, _ = ep.Write(bytes.NewReader((*buf)[:count]), tcpip.WriteOptions{})
		}
		packets.Put(buf)
	}
}
