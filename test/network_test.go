package test

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// tryAll connects to every argument, "host port", and prints which answered,
// and how long the slowest took to fail.
const tryAll = `
import socket, time
slowest = 0
for target in %q.split('\n'):
    host, port = target.rsplit(' ', 1)
    begun = time.monotonic()
    try:
        socket.create_connection((host, int(port)), timeout=8).close()
        print('reached', target)
    except OSError as e:
        slowest = max(slowest, time.monotonic() - begun)
print('slowest', slowest < 4)
`

// TestOutOfReach tries from inside what a sandbox must not reach (attacks 16
// to 18): metadata services, the host and this very server, in many spellings.
func TestOutOfReach(t *testing.T) {
	s := sharedServer(t)
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
		"fd00:ec2::254", "100.100.100.200", "168.63.129.16", "100.127.255.1", "10.0.0.1", "192.168.1.1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
	}
	// The host listens everywhere, as some programs do.
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var targets []string
	for _, h := range hosts {
		targets = append(targets, h+" 80", h+" "+u.Port())
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue // the sandbox's own
		}
		targets = append(targets, fmt.Sprint(ip, " ", port), fmt.Sprint(ip, " ", u.Port()))
		if ip.To4() != nil {
			targets = append(targets, fmt.Sprintf("::ffff:%v %s", ip, port))
		}
	}
	r := s.succeed(t, "python", fmt.Sprintf(tryAll, strings.Join(targets, "\n")), args{"timeout": 120, "wait": 120})
	if strings.TrimSpace(r.Stdout) != "slowest True" {
		t.Errorf("from inside: %s", r.Stdout)
	}
	select {
	case from := <-reached:
		t.Errorf("the host was reached, from %s", from)
	default:
	}
	denied := strings.Join(r.Denied, "\n")
	for _, want := range []string{"169.254.169.254:80 tcp: metadata service", "168.63.129.16:80 tcp: metadata service", "10.0.0.1:80 tcp: private address"} {
		if !strings.Contains(denied, want) {
			t.Errorf("denied: %s, want %q", denied, want)
		}
	}
	if !strings.Contains(r.text(), "denied on the network:\n- 169.254.169.254:80 tcp: metadata service") {
		t.Errorf("the text: %s", r.text())
	}
	if !strings.Contains(s.log.String(), "denied on the network") {
		t.Error("the log does not tell")
	}
}

// TestRawPackets tries what needs more than sockets for programs (attack 19).
func TestRawPackets(t *testing.T) {
	r := sharedServer(t).succeed(t, "python", `
import socket
for family, kind, protocol in [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 255), (socket.AF_INET6, socket.SOCK_RAW, 58), (socket.AF_PACKET, socket.SOCK_RAW, 0)]:
    try:
        socket.socket(family, kind, protocol)
        print('allowed', family, kind, protocol)
    except OSError:
        pass
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(4)
s.connect(('10.1.2.3', 53))
try:
    s.send(b'x')
    s.recv(1)
    print('answered')
except TimeoutError:
    print('hangs')
except OSError:
    pass
for line in open('/proc/self/status'):
    if line.startswith('CapEff'):
        print(int(line.split()[1], 16) >> 12 & 3)  # NET_ADMIN, NET_RAW
`)
	if r.Stdout != "0\n" || len(r.Denied) != 1 || r.Denied[0] != "10.1.2.3:53 udp: private address" {
		t.Errorf("stdout %q, denied %q", r.Stdout, r.Denied)
	}
}

// TestNoNetwork has the network off (attack 20).
func TestNoNetwork(t *testing.T) {
	s := startServer(t, "BELLJAR_NETWORK=none")
	r := s.succeed(t, "bash", "ls /sys/class/net; cat /proc/net/route | wc -l; getent hosts localhost >/dev/null && echo localhost")
	if r.Stdout != "lo\n1\nlocalhost\n" || r.Limits["network"] != "none (loopback only)" {
		t.Errorf("%s", r)
	}
	r = s.run(t, "python", "import urllib.request as r; r.urlopen('http://192.0.2.1/', timeout=9)")
	if r.Success || !strings.Contains(r.Error, "a sandbox has no network") || len(r.Denied) > 0 {
		t.Errorf("%s", r)
	}
}

// TestPackages installs from Debian's mirror, for real, with nothing else
// within reach. Where the mirror has a private address, it is an exception.
func TestPackages(t *testing.T) {
	const mirror = "deb.debian.org"
	found, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", mirror)
	if err != nil {
		t.Fatal(err)
	}
	var allow []string
	for _, a := range found {
		allow = append(allow, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()).String())
	}
	s := startServer(t, "BELLJAR_NETWORK="+mirror+":80,*."+mirror+":80", "BELLJAR_NETWORK_ALLOW="+strings.Join(allow, ","))
	r := s.succeed(t, "bash", `set -e
		apt-get -o APT::Update::Error-Mode=any update >/dev/null
		apt-get install -y --no-install-recommends tree >/dev/null
		mkdir -p a/b; tree --noreport a
		getent hosts example.org || echo unknown
		(exec 3<>/dev/tcp/9.9.9.9/53) 2>/dev/null || echo refused`, args{"timeout": 200, "wait": 200})
	if !strings.HasPrefix(r.Stdout, "a\n") || !strings.HasSuffix(r.Stdout, "b\nunknown\nrefused\n") {
		t.Errorf("%s", r)
	}
	denied := strings.Join(r.Denied, "\n")
	if !strings.Contains(denied, "example.org dns: not on the allow-list") || !strings.Contains(denied, "9.9.9.9:53 tcp: not on the allow-list") {
		t.Errorf("denied: %s", denied)
	}
	if r.Limits["network"] == nil || !strings.HasPrefix(r.Limits["network"].(string), "only "+mirror+":80, ") {
		t.Errorf("network: %v", r.Limits["network"])
	}
}
