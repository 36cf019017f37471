// Package egress is the network of sandboxes: a user-space TCP/IP stack per
// sandbox, gVisor's netstack, behind a TUN device in the sandbox's network
// namespace. What a sandbox sends ends in this process, which decides what may
// go out and dials itself. The host's firewall and routes are left alone.
//
// The stacks run in a process of their own, without privileges, since they
// parse hostile packets: Serve is its one end, Client the other. What needs
// privileges, the making of the device, is the server's: Device.
//
// Every sandbox sees the same: itself at Address4 and Address6, and at
// Gateway4 and Gateway6 a resolver, port 53, and nothing else.
package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"belljar/internal/engine"
)

// The addresses on every sandbox's link. They are of the end of the range for
// carrier-grade NAT (RFC 6598), which hardly any network has, and of a random
// unique local prefix (RFC 4193). As a source, such an IPv6 address comes after
// IPv4 for programs that follow RFC 6724.
var (
	Gateway4 = netip.MustParseAddr("100.127.255.1")
	Address4 = netip.MustParsePrefix("100.127.255.2/30")
	Gateway6 = netip.MustParseAddr("fd5b:e77a:3c19::1")
	Address6 = netip.MustParsePrefix("fd5b:e77a:3c19::2/64")
)

// MTU is that of the link, in bytes: what programs expect. Large segments pass
// undivided all the same.
const MTU = 1500

// Bounds of one sandbox.
const (
	defaultFlows = 1024
	maxHalfOpen  = 256
	maxEchoes    = 32
	maxQueries   = 64
)

// network is one sandbox's network.
type network struct {
	policy engine.Network
	host   *host
	link   *link
	stack  *stack.Stack

	ctx   context.Context // ends with the network
	close context.CancelFunc
	ended sync.Once

	account  account
	pins     pins
	half     halfOpen
	udp      flows
	buffers  budget
	echoes   chan struct{} // a place each
	queries  chan struct{}
	open     atomic.Int64 // TCP connections and UDP flows
	most     int64
	up, down *rate.Limiter // nil without a limit; in bytes
}

const nic tcpip.NICID = 1

// newNetwork builds a network on a TUN's descriptor, which it takes over.
// heard is told of what is denied, and may be nil.
func newNetwork(policy engine.Network, h *host, tun *os.File, heard func(engine.Denial)) (*network, error) {
	l, err := newLink(tun)
	if err != nil {
		return nil, err
	}
	n := &network{
		policy: policy, host: h, link: l, account: newAccount(heard),
		echoes: make(chan struct{}, maxEchoes), queries: make(chan struct{}, maxQueries),
		most: defaultFlows,
	}
	if policy.Flows > 0 {
		n.most = int64(policy.Flows)
	}
	if bytes := policy.BitRate / 8; bytes > 0 {
		// A burst holds what one read of a relay gives.
		burst := int(max(bytes/10, largeBuffer))
		n.up, n.down = rate.NewLimiter(rate.Limit(bytes), burst), rate.NewLimiter(rate.Limit(bytes), burst)
	}
	n.ctx, n.close = context.WithCancel(context.Background())
	if n.stack, err = newStack(); err != nil {
		return nil, err
	}
	n.install()
	if err := n.addNIC(); err != nil {
		n.end()
		return nil, err
	}
	return n, nil
}

// end closes every connection and the device. Only the first call does anything.
func (n *network) end() { n.ended.Do(n.endNow) }

func (n *network) endNow() {
	n.stack.Close() // while the sandbox can still hear of it
	n.close()
	n.link.Close()
	go func() {
		// The stack waits for its link while it holds a lock that the link's
		// reader may want for a packet, so that one must have ended before.
		n.link.Wait()
		n.stack.Wait() // until all that the stack has started is gone
	}()
}

func newStack() (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: smallBuffer, Default: largeBuffer, Max: largeBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: smallBuffer, Default: largeBuffer, Max: largeBuffer}
	// netstack ignores a SYN for a port in TIME_WAIT, and a client that is busy
	// enough would hang for the 60 s that this takes by default. On a link
	// that neither delays nor reorders there is nothing to wait for.
	timeWait := tcpip.TCPTimeWaitTimeoutOption(10 * time.Millisecond)
	cubic := tcpip.CongestionControlOption("cubic")
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &receive, &send, &timeWait, &cubic} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("setting up TCP: %s", err)
		}
	}
	return s, nil
}

// install gives the stack what handles packets that no connection has.
func (n *network) install() {
	forwarder := tcp.NewForwarder(n.stack, largeBuffer, 3*maxHalfOpen, n.forwardTCP) // some are just ending
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return n.admitTCP(id, pkt) && forwarder.HandlePacket(id, pkt)
	})
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, n.handleUDP)
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, n.handleICMP)
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, n.handleICMP)
}

func (n *network) addNIC() error {
	if err := n.stack.CreateNIC(nic, n.link); err != nil {
		return fmt.Errorf("attaching the link: %s", err)
	}
	for _, gateway := range []netip.Addr{Gateway4, Gateway6} {
		address := tcpip.AddrFromSlice(gateway.AsSlice())
		protocol := ipv4.ProtocolNumber
		if gateway.Is6() {
			protocol = ipv6.ProtocolNumber
		}
		err := n.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: protocol, AddressWithPrefix: address.WithPrefix()}, stack.AddressProperties{})
		if err != nil {
			return fmt.Errorf("setting the gateway's address: %s", err)
		}
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	// It takes packets to any address, and answers as any.
	if err := n.stack.SetPromiscuousMode(nic, true); err != nil {
		return errors.New(err.String())
	}
	if err := n.stack.SetSpoofing(nic, true); err != nil {
		return errors.New(err.String())
	}
	return nil
}

// admit says whether the sandbox may reach an address, and notes if not.
func (n *network) admit(protocol string, to netip.AddrPort) bool {
	names := n.pins.names(to.Addr(), time.Now())
	rule, ok := decide(n.policy, to, names, n.host.local)
	if ok {
		return true
	}
	n.refuse(protocol, to, names, rule)
	return false
}

func (n *network) refuse(protocol string, to netip.AddrPort, names []string, rule string) {
	d := engine.Denial{Protocol: protocol, To: to, Rule: rule}
	if len(names) > 0 {
		d.Name = names[len(names)-1]
	}
	n.account.deny(d)
}

// reserve takes a place for a connection; release gives it back.
func (n *network) reserve() bool {
	if n.open.Add(1) > n.most || n.host.open.Add(1) > n.host.most {
		n.open.Add(-1)
		return false
	}
	n.account.made.Add(1)
	return true
}

func (n *network) release() {
	n.open.Add(-1)
	n.host.open.Add(-1)
}

// isResolver is whether a connection is to the gateway's resolver.
func isResolver(to netip.AddrPort) bool {
	return to.Port() == 53 && (to.Addr() == Gateway4 || to.Addr() == Gateway6)
}

// destination is where a packet of the sandbox wants to, source where it comes
// from: to the stack, the destination is local.
func destination(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
}

func source(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(address(id.RemoteAddress), id.RemotePort)
}

// address keeps an IPv4-mapped address as it is: the sandbox has sent it in
// IPv6.
func address(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}

func nativeBytes(v uint16) (b [2]byte) {
	binary.NativeEndian.PutUint16(b[:], v)
	return b
}
