package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/sys/unix"
)

// host is the network by which sandboxes' connections leave.
type host struct {
	dialTCP func(context.Context, netip.AddrPort) (*net.TCPConn, error)
	dialUDP func(netip.AddrPort) (*net.UDPConn, error)
	// ping opens a socket that sends and receives ICMP echoes.
	ping func(v6 bool) (net.PacketConn, error)
	// local is whether an address is the host's own, in whatever way.
	local func(netip.Addr) bool

	open atomic.Int64 // connections of all sandboxes
	most int64

	mu        sync.Mutex
	resolvers []netip.AddrPort
}

// newHost is the host that this process is on.
func newHost() (*host, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	return &host{
		dialTCP: func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
			c, err := dialer.DialContext(ctx, "tcp", to.String())
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
		dialUDP: func(to netip.AddrPort) (*net.UDPConn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		},
		ping: func(v6 bool) (net.PacketConn, error) {
			if v6 {
				return icmp.ListenPacket("udp6", "::")
			}
			return icmp.ListenPacket("udp4", "0.0.0.0")
		},
		local: routesOf(routes),
		most:  maxOpen(),
	}, nil
}

// routesOf asks the kernel for the route to an address. It knows every address
// of the host, public and floating ones too, at the time of asking.
func routesOf(h *netlink.Handle) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		routes, err := h.RouteGet(a.AsSlice())
		switch {
		case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
			return false // dialling will say so
		case err != nil || len(routes) == 0:
			return true // what cannot be told apart is not reached
		}
		for _, r := range routes {
			if r.Type != unix.RTN_UNICAST {
				return true // local, broadcast, anycast, multicast
			}
		}
		return false
	}
}

// maxOpen leaves some of the descriptors that the process may have for other
// things than connections.
func maxOpen() int64 {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 512
	}
	return int64(min(files.Cur, 1<<20)) * 3 / 4
}

func (h *host) setResolvers(all []netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resolvers = all
}

func (h *host) resolversNow() []netip.AddrPort {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resolvers
}
