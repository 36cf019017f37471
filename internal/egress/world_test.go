package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/icmp"
	"golang.org/x/sys/unix"

	"belljar/internal/engine"
)

// patience is how long what must happen may take; machines are slow and busy.
const patience = 30 * time.Second

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	if err := Probe(); err != nil {
		t.Skipf("needs TUN devices: %v", err)
	}
}

// namespace is a network namespace of a test.
type namespace struct {
	t  testing.TB
	fd *os.File
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	made := make(chan *os.File)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_NEWNET)
		var f *os.File
		if err == nil {
			f, err = os.Open("/proc/thread-self/ns/net")
		}
		if err != nil {
			failed <- err
		}
		made <- f
	}()
	ns := &namespace{t, <-made}
	if ns.fd == nil {
		t.Fatal(<-failed)
	}
	t.Cleanup(func() { ns.fd.Close() })
	ns.run(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return ns
}

// run runs f in the namespace. What is opened there stays there.
func (ns *namespace) run(f func() error) {
	ns.t.Helper()
	if err := inNamespace(ns.fd, f); err != nil {
		ns.t.Error(err)
	}
}

func within[T any](ns *namespace, f func() (T, error)) (v T, err error) {
	err = inNamespace(ns.fd, func() (err error) {
		v, err = f()
		return err
	})
	return v, err
}

// Addresses of the world that tests see. None of them leaves the machine: the
// namespaces are connected to each other alone.
const (
	public4  = "93.184.215.14"
	other4   = "93.184.215.15"
	public6  = "2606:2800:21f:cb07::14"
	hostIP   = "45.76.10.20" // a public address of the host's own
	hostLink = "192.168.77.2"
	hostNet6 = "fd77::2"
)

// private are addresses that exist out there, each with servers: that they are
// not reached must be the policy's doing.
var private = []string{
	"10.9.9.9", "172.20.1.1", "192.168.99.1", "100.80.1.1", "100.100.100.200", "169.254.169.254", "168.63.129.16",
	"203.0.113.9", "198.18.5.5", "240.1.1.1", "fd00:ec2::254", "fd12:3456::1", "64:ff9b::a09:909", "2002:a09:909::1",
	"2001:0:a09:909::1", "2606:2800:21f:cb07:0:5efe:a09:909", "64:ff9b:1::a09:909",
}

// world is an internet with servers, and a host that is connected to it.
type world struct {
	t              testing.TB
	internet, home *namespace
	host           *host
	dns            *dnsServer
}

const (
	echoPort = 7
	webPort  = 80
)

func newWorld(t testing.TB) *world {
	t.Helper()
	needRoot(t)
	w := &world{t: t, internet: newNamespace(t), home: newNamespace(t)}
	w.internet.run(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1", PeerNamespace: netlink.NsFd(int(w.home.fd.Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := setUp("v0", "192.168.77.1/24", "fd77::1/64"); err != nil {
			return err
		}
		for _, a := range append([]string{public4, other4, public6}, private...) {
			addr := netip.MustParseAddr(a)
			if err := setUp("lo", netip.PrefixFrom(addr, addr.BitLen()).String()); err != nil {
				return err
			}
		}
		return nil
	})
	w.home.run(func() error {
		if err := setUp("v1", hostLink+"/24", hostNet6+"/64"); err != nil {
			return err
		}
		if err := setUp("lo", hostIP+"/32"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("v1")
		if err != nil {
			return err
		}
		for _, gw := range []string{"192.168.77.1", "fd77::1"} {
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gw)}); err != nil {
				return err
			}
		}
		return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
	})
	w.servers()
	w.host = w.newHost()
	return w
}

func setUp(link string, addresses ...string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

// newHost is newHost of the product, with sockets in the namespace.
func (w *world) newHost() *host {
	routes, err := within(w.home, func() (*netlink.Handle, error) { return netlink.NewHandle(unix.NETLINK_ROUTE) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(routes.Close)
	h := &host{
		dialTCP: func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
			c, err := within(w.home, func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", to.String()) })
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
		dialUDP: func(to netip.AddrPort) (*net.UDPConn, error) {
			return within(w.home, func() (*net.UDPConn, error) { return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) })
		},
		ping: func(v6 bool) (net.PacketConn, error) {
			return within(w.home, func() (net.PacketConn, error) {
				if v6 {
					return icmp.ListenPacket("udp6", "::")
				}
				return icmp.ListenPacket("udp4", "0.0.0.0")
			})
		},
		local: routesOf(routes),
		most:  1 << 20,
	}
	h.setResolvers([]netip.AddrPort{netip.MustParseAddrPort("192.168.77.1:53")})
	return h
}

// servers echo at echoPort, by TCP and UDP, and say hello at webPort, on every
// address out there and on the host itself.
func (w *world) servers() {
	for _, ns := range []*namespace{w.internet, w.home} {
		w.listen(ns, echoPort, func(c net.Conn) { io.Copy(c, c) })
		w.listen(ns, webPort, func(c net.Conn) { io.WriteString(c, "hello") })
	}
	for _, a := range append([]string{public4, other4, public6}, private...) {
		w.echoUDP(w.internet, a)
	}
	for _, a := range []string{hostIP, hostLink, "127.0.0.1"} {
		w.echoUDP(w.home, a)
	}
	w.dns = newDNS(w)
}

func (w *world) listen(ns *namespace, port int, serve func(net.Conn)) {
	w.t.Helper()
	l, err := within(ns, func() (net.Listener, error) { return net.Listen("tcp", fmt.Sprintf("[::]:%d", port)) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

func (w *world) echoUDP(ns *namespace, addr string) {
	w.t.Helper()
	c, err := within(ns, func() (net.PacketConn, error) {
		return net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr(addr), echoPort).String())
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(buf[:n], from)
		}
	}()
}

// jar is a sandbox as far as its network goes.
type jar struct {
	*namespace
	net *network
}

// sandbox makes one with a policy, "" for the internet.
func (w *world) sandbox(reach, except string) *jar {
	w.t.Helper()
	if reach == "" {
		reach = "internet"
	}
	policy, err := engine.ParseNetwork(reach, except)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.sandboxWith(policy)
}

func (w *world) sandboxWith(policy engine.Network) *jar {
	w.t.Helper()
	j := &jar{namespace: newNamespace(w.t)}
	tun, err := Device{Namespace: j.fd, IPv6: true, LastGroup: 1}.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	if j.net, err = newNetwork(policy, w.host, tun, nil); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(j.net.end)
	return j
}

func (j *jar) dial(network, addr string) (net.Conn, error) {
	return within(j.namespace, func() (net.Conn, error) { return net.DialTimeout(network, addr, patience) })
}

// echo sends a text to an echo server and returns what comes back.
func (j *jar) echo(network, addr, text string) (string, error) {
	c, err := j.dial(network, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	buf := make([]byte, len(text))
	_, err = io.ReadFull(c, buf)
	return string(buf), err
}

// denials are what the sandbox was refused since the last call.
func (j *jar) denials() []string {
	var all []string
	for _, d := range j.net.account.report(j.net.account.told, 0).Denied {
		all = append(all, d.String())
	}
	return all
}

func at(addr string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
}

// dnsServer is the host's resolver. It answers from a table, and counts.
type dnsServer struct {
	mu    sync.Mutex
	names map[string][]string // addresses, by turns
	asked map[string]int
}

func newDNS(w *world) *dnsServer {
	s := &dnsServer{names: map[string][]string{}, asked: map[string]int{}}
	c, err := within(w.internet, func() (net.PacketConn, error) { return net.ListenPacket("udp", "192.168.77.1:53") })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if a := s.answer(buf[:n]); a != nil {
				c.WriteTo(a, from)
			}
		}
	}()
	w.listen(w.internet, 53, func(c net.Conn) {
		for {
			q, err := readDNS(c)
			if err != nil || writeDNS(c, s.answer(q)) != nil {
				return
			}
		}
	})
	return s
}

func (s *dnsServer) set(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = addresses
}

func (s *dnsServer) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// answer gives the next address of the name's, or all of those with a comma
// between them.
func (s *dnsServer) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	s.asked[name]++
	m.Response, m.Additionals = true, nil
	all := s.names[name]
	if len(all) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	} else if q.Type == dnsmessage.TypeA {
		for a := range strings.SplitSeq(all[0], ",") {
			h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}})
		}
		s.names[name] = append(all[1:], all[0])
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// lookup resolves a name as a program in the sandbox does.
func (j *jar) lookup(network, name string) ([]netip.Addr, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return j.dial(network, netip.AddrPortFrom(Gateway4, 53).String())
	}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.LookupNetIP(ctx, "ip4", name+".")
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}
