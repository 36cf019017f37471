package egress

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"belljar/internal/engine"
)

func nobody(netip.Addr) bool { return false }

func parse(t testing.TB, reach, except string) engine.Network {
	t.Helper()
	n, err := engine.ParseNetwork(reach, except)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestClasses goes through both ends of every range that is denied, and what
// is next to it.
func TestClasses(t *testing.T) {
	internet := parse(t, "internet", "")
	for _, c := range []struct {
		addrs string
		rule  string // "" if it is reached
	}{
		{"0.0.0.0 0.255.255.255 ::", "unspecified address"},
		{"1.0.0.0 9.255.255.255 11.0.0.0 8.8.8.8", ""},
		{"10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 fc00:: fdff::1", "private address"},
		{"172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0", ""},
		{"100.64.0.0 100.127.255.255 100.127.255.1", "carrier-grade NAT address"},
		{"100.63.255.255 100.128.0.0", ""},
		{"127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:7f00:1::", "loopback address"},
		{"169.254.0.0 169.254.255.255 fe80::1 febf::1", "link-local address"},
		{"169.254.169.254 100.100.100.200 fd00:ec2::254 168.63.129.16 169.254.170.2 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe ::ffff:0:169.254.169.254 fd20:ce::254", "metadata service"},
		{"168.63.129.15 168.63.129.17", ""},
		{"224.0.0.1 239.255.255.255 ff02::1 ff0e::1", "multicast address"},
		{"240.0.0.1 255.255.255.254 192.0.0.1 192.88.99.1 100::1 4000::1 fe00::1 5f00::1", "reserved address"},
		{"255.255.255.255", "broadcast address"},
		{"198.18.0.0 198.19.255.255 2001:2::1", "benchmarking address"},
		{"198.17.255.255 198.20.0.0", ""},
		{"192.0.2.1 198.51.100.255 203.0.113.0 2001:db8::1 3fff:fff::1", "documentation address"},
		// Teredo's client is inverted; ISATAP has two forms.
		{"2001:0:0808:0808:0:0:f5ff:fffe", "private address"},
		{"2a00::5efe:a00:1 2a00::200:5efe:a00:1", "private address"},
		{"64:ff9b:1::8.8.8.8", "local NAT64 address"},
		{"64:ff9b::8.8.8.8 2002:808:808::1 2606:4700::1111 2a00::5efe:808:808 2001:0:0808:0808::f7f7:f7f7 2001:200::1", ""},
	} {
		for a := range strings.FieldsSeq(c.addrs) {
			rule, ok := decide(internet, netip.AddrPortFrom(netip.MustParseAddr(a), 443), nil, nobody)
			if rule != c.rule || ok != (c.rule == "") {
				t.Errorf("%s: %q, %v, want %q", a, rule, ok, c.rule)
			}
		}
	}
}

func TestDecideList(t *testing.T) {
	n := parse(t, "pypi.org:443, *.debian.org, 198.100.0.0/16:443, 2a00::/16, 10.0.0.1, internal.example", "10.0.0.0/8:443")
	for _, c := range []struct {
		to    string
		names string
		ok    bool
	}{
		{"1.2.3.4:443", "pypi.org", true},
		{"1.2.3.4:80", "pypi.org", false},
		{"1.2.3.4:443", "xpypi.org", false},
		{"1.2.3.4:443", "pypi.org.evil.example", false},
		{"1.2.3.4:443", "", false},
		{"1.2.3.4:80", "deb.debian.org", true},
		{"1.2.3.4:80", "a.b.debian.org", true},
		{"1.2.3.4:80", "debian.org", false},
		{"1.2.3.4:80", "evildebian.org", false},
		{"198.100.7.7:443", "", true},
		{"198.100.7.7:0", "", false}, // ICMP, where only a port is open
		{"198.100.7.7:80", "", false},
		{"[2a00::1]:0", "", true},
		{"[2a01::1]:443", "", false},
		{"10.0.0.1:443", "", true},
		{"10.0.0.1:80", "", false},  // no exception for this port
		{"10.0.0.2:443", "", false}, // an exception, and not on the list
		{"10.0.0.2:443", "internal.example", true},
		{"[::ffff:10.0.0.1]:443", "", true},
		{"[64:ff9b::a00:1]:443", "", false}, // the list has it in another spelling
	} {
		rule, ok := decide(n, netip.MustParseAddrPort(c.to), strings.Fields(c.names), nobody)
		if ok != c.ok {
			t.Errorf("%s %q: %v %q", c.to, c.names, ok, rule)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ reach, except, want string }{
		{"internet", "10.0.0.0/8", ""},
		{"10.1.0.0/16", "", "never reached"},
		{"10.1.0.0/16", "10.0.0.0/8", ""},
		{"0.0.0.0/0:443", "", ""},
		{"127.0.0.1:5000", "127.0.0.1", ""},
		{"internet", "224.0.0.0/4", "cannot be opened"},
		{"internet", "0.0.0.0/0", ""},
		{"internet", "example.org", "an exception is a range"},
		{"exa mple.org", "", "no place in a name"},
		{"*.*.org", "", "no place in a name"},
		{"example.org:0", "", "port"},
		{"example.org:", "", "port"},
		{"10.0.0.0/33", "", "no place in a name"},
		{"1.2.3.4.5", "", "no number"},
		{"[::1", "", "bracket"},
		{"::ffff:1.2.3.4", "", "IPv4"},
	} {
		n, err := engine.ParseNetwork(c.reach, c.except)
		if err == nil {
			err = Check(n)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %v, want %q", c.reach, c.except, err, c.want)
		}
	}
}

// FuzzDecide looks for an address that is let through although it, or an IPv4
// one in it, is what the standard library knows to be no public one.
func FuzzDecide(f *testing.F) {
	for _, a := range []string{"10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:a00:1::", "2a00::5efe:a00:1", "8.8.8.8"} {
		f.Add(netip.MustParseAddr(a).AsSlice(), uint16(80))
	}
	internet := parse(f, "internet", "")
	list := parse(f, "1.0.0.0/8,a.example", "")
	f.Fuzz(func(t *testing.T, b []byte, port uint16) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		to := netip.AddrPortFrom(a, port)
		bad := func(a netip.Addr) bool {
			return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()
		}
		for _, n := range []engine.Network{internet, list} {
			rule, ok := decide(n, to, []string{"a.example"}, nobody)
			if ok != (rule == "") {
				t.Fatalf("%v: %v with rule %q", a, ok, rule)
			}
			if !ok {
				continue
			}
			u := a.Unmap()
			s := u.AsSlice()
			inner := []netip.Addr{u}
			if u.Is6() {
				b := u.As16()
				if b[0] == 0x20 && b[1] == 2 {
					inner = append(inner, netip.AddrFrom4([4]byte(s[2:6])))
				}
				if netip.MustParsePrefix("64:ff9b::/96").Contains(u) {
					inner = append(inner, netip.AddrFrom4([4]byte(s[12:16])))
				}
			}
			for _, i := range inner {
				if bad(i) {
					t.Fatalf("%v is reached, which is %v", a, i)
				}
			}
			if _, ok := decide(n, to, []string{"a.example"}, func(l netip.Addr) bool { return l == u }); ok {
				t.Fatalf("%v is reached although it is the host's", a)
			}
		}
	})
}

// FuzzDestination wants what is read to be written and read the same.
func FuzzDestination(f *testing.F) {
	for _, s := range []string{"a.example", "*.a.example:443", "1.2.3.0/24:80", "[2001:db8::/32]:443", "::1", "[::1]", "1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := engine.ParseDestination(s)
		if err != nil {
			return
		}
		if (d.Domain == "") != d.Prefix.IsValid() {
			t.Fatalf("%q is %+v", s, d)
		}
		again, err := engine.ParseDestination(d.String())
		if err != nil || again != d {
			t.Fatalf("%q: %v, then %v, %v", s, d, again, err)
		}
	})
}

// FuzzResolve gives the resolver whatever a sandbox and a resolver outside may
// send.
func FuzzResolve(f *testing.F) {
	q := []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01")
	a := []byte("\x00\x01\x81\x80\x00\x01\x00\x02\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x00\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x08\x08\x08\x08")
	f.Add(q, a)
	f.Add(q, q)
	f.Fuzz(func(t *testing.T, query, answer []byte) {
		n := &network{policy: parse(t, "internet", ""), host: &host{local: nobody}}
		h, question, name, ok := parseQuery(query)
		if !ok {
			return
		}
		out := n.checkAnswer(answer, h, question, name)
		found, err := addresses(out)
		if err != nil {
			return // a program inside has to cope with it as with any resolver
		}
		for _, f := range found {
			if rule, ok := shown(n.policy, f.addr, nobody); !ok {
				t.Fatalf("%v went inside, a %s", f.addr, rule)
			}
		}
		for _, d := range n.account.report(0, 0).Denied {
			if strings.ContainsAny(d.String(), "\n\r\x1b") {
				t.Fatalf("a denial is told as %q", d)
			}
		}
	})
}

func TestPins(t *testing.T) {
	var p pins
	now := time.Now()
	a := netip.MustParseAddr("1.2.3.4")
	p.add(a, "a.example", time.Second, now)
	p.add(a, "b.example", time.Second, now)
	if got := p.names(a, now.Add(minPin-time.Second)); len(got) != 2 || got[1] != "b.example" {
		t.Errorf("names: %v", got)
	}
	if got := p.names(a, now.Add(minPin+time.Second)); got != nil {
		t.Errorf("after its time: %v", got)
	}
	p.add(a, "c.example", time.Second, now.Add(minPin+time.Second))
	if got := p.names(a, now.Add(minPin+2*time.Second)); len(got) != 1 {
		t.Errorf("an old name came back: %v", got)
	}
	for i := range uint32(2 * maxPins) {
		b := netip.AddrFrom4([4]byte{9, byte(i >> 16), byte(i >> 8), byte(i)})
		p.add(b, "x.example", time.Hour, now)
		if len(p.by) > maxPins {
			t.Fatalf("%d pins", len(p.by))
		}
	}
}

func TestDenialsAreBounded(t *testing.T) {
	var a account
	d := engine.Denial{Protocol: "tcp", Rule: "r"}
	for i := range 1000 {
		d.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		a.deny(d)
		a.deny(d)
	}
	u := a.report(0, 0)
	if len(u.Denied) != maxDenied || u.Refused != 2000 || u.Denied[maxDenied-1].Count != 2 {
		t.Errorf("%d denials, %d refused, %v", len(u.Denied), u.Refused, u.Denied[maxDenied-1])
	}
	// The same one again is in the next report.
	a.deny(d)
	if u = a.report(u.Cursor, 0); len(u.Denied) != 1 || u.Denied[0].Count != 1 {
		t.Errorf("after a report: %v", u.Denied)
	}
	if u = a.report(u.Cursor, 0); len(u.Denied) != 0 {
		t.Errorf("with nothing new: %v", u.Denied)
	}
}
