package egress

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

func TestInternet(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "")
	for _, addr := range []string{public4, public6} {
		for _, network := range []string{"tcp", "udp"} {
			if got, err := j.echo(network, at(addr, echoPort), "ping"); got != "ping" || err != nil {
				t.Errorf("%s %s: %q, %v", network, addr, got, err)
			}
		}
	}
	// What refuses out there refuses inside, at once.
	begun := time.Now()
	if _, err := j.dial("tcp", at(public4, 9)); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) > 5*time.Second {
		t.Errorf("a closed port: %v after %v", err, time.Since(begun))
	}
	if _, err := j.echo("udp", at(public4, 9), "ping"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed UDP port: %v", err)
	}
	if d := j.denials(); len(d) > 0 {
		t.Errorf("denied: %q", d)
	}
	use := j.net.account.report(0, 0)
	if use.Sent < 16 || use.Received < 16 || use.Connections < 4 {
		t.Errorf("account: %+v", use)
	}
}

// TestTransfer moves more than all buffers hold, each way, and half-closes.
func TestTransfer(t *testing.T) {
	w := newWorld(t)
	const size = 64 << 20
	w.listen(w.internet, 9000, func(c net.Conn) {
		h := sha256.New()
		n, _ := io.Copy(h, c) // until the sandbox has half-closed
		fmt.Fprintf(c, "%d %x", n, h.Sum(nil))
	})
	w.listen(w.internet, 9001, func(c net.Conn) { io.CopyN(c, zeros{}, size) })
	j := w.sandbox("", "")
	for _, addr := range []string{public4, public6} {
		c, err := j.dial("tcp", at(addr, 9000))
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		if _, err := io.CopyN(io.MultiWriter(c, h), zeros{}, size); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if want := fmt.Sprintf("%d %x", size, h.Sum(nil)); string(got) != want || err != nil {
			t.Errorf("up: %q, %v, want %q", got, err, want)
		}
		c.Close()
		if c, err = j.dial("tcp", at(addr, 9001)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, c); n != size || err != nil {
			t.Errorf("down: %d bytes, %v", n, err)
		}
		c.Close()
	}
	wantIdle(t, j)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// wantIdle waits until no connection is open.
func wantIdle(t *testing.T, j *jar) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for j.net.open.Load() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are still open", j.net.open.Load())
		}
		time.Sleep(5 * time.Millisecond)
	}
	if used := j.net.buffers.used.Load(); used != 0 {
		t.Errorf("%d bytes of buffers are not given back", used)
	}
}

// TestDenied tries what must not be reached, although it is there.
func TestDenied(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "")
	tries := map[string]string{
		hostIP: ruleHost, hostLink: "private address", hostNet6: "private address", "0.0.0.7": "unspecified", "240.1.1.1": "reserved",
		"::ffff:10.9.9.9": "private address", "255.255.255.255": "broadcast", Gateway4.String(): "carrier-grade",
		"192.168.77.1": "private address", "169.254.169.254": "metadata service", "100.100.100.200": "metadata service",
		"168.63.129.16": "metadata service", "fd00:ec2::254": "metadata service",
	}
	for _, addr := range private {
		if _, ok := tries[addr]; !ok {
			tries[addr] = ""
		}
	}
	for addr, rule := range tries {
		if addr == "0.0.0.7" || addr == "255.255.255.255" {
			continue // the sandbox's own kernel does not even send
		}
		begun := time.Now()
		_, err := j.echo("tcp", at(addr, echoPort), "x")
		if err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("tcp %s: %v after %v", addr, err, time.Since(begun))
		}
		if d := j.denials(); len(d) != 1 || !strings.Contains(d[0], rule) || !strings.HasPrefix(d[0], netip.MustParseAddrPort(at(addr, echoPort)).String()) && !strings.Contains(addr, "ffff") {
			t.Errorf("tcp %s: denials %q, want rule %q", addr, d, rule)
		}
		if _, err := j.echo("udp", at(addr, echoPort), "x"); err == nil || time.Since(begun) > 10*time.Second {
			t.Errorf("udp %s: %v after %v", addr, err, time.Since(begun))
		}
		if d := j.denials(); len(d) != 1 || !strings.Contains(d[0], "udp: "+rule) {
			t.Errorf("udp %s: denials %q, want rule %q", addr, d, rule)
		}
	}
	// The resolver's port, and no other, at the gateway alone.
	if _, err := j.dial("tcp", at(Gateway4.String(), webPort)); err == nil {
		t.Error("the gateway serves more than names")
	}
}

// ping sends an echo request from the sandbox and waits for the reply.
func (j *jar) ping(addr string, wait time.Duration) error {
	to := netip.MustParseAddr(addr)
	network, listen, kind, protocol := "udp4", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), 1
	if to.Is6() {
		network, listen, kind, protocol = "udp6", "::", ipv6.ICMPTypeEchoRequest, 58
	}
	c, err := within(j.namespace, func() (*icmp.PacketConn, error) { return icmp.ListenPacket(network, listen) })
	if err != nil {
		return err
	}
	defer c.Close()
	data := bytes.Repeat([]byte("x"), 56)
	m := icmp.Message{Type: kind, Body: &icmp.Echo{ID: 1, Seq: 1, Data: data}}
	b, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(b, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(wait))
	buf := make([]byte, 1500)
	n, from, err := c.ReadFrom(buf)
	if err != nil {
		return err
	}
	reply, err := icmp.ParseMessage(protocol, buf[:n])
	if err != nil {
		return err
	}
	echo, ok := reply.Body.(*icmp.Echo)
	if !ok || !bytes.Equal(echo.Data, data) || from.(*net.UDPAddr).AddrPort().Addr().Unmap() != to {
		return fmt.Errorf("the reply from %v is %+v", from, reply)
	}
	return nil
}

func TestPing(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "")
	for _, addr := range []string{public4, public6, Gateway4.String(), Gateway6.String()} {
		// The first one may be lost while neighbours find each other.
		await(t, "an answer from "+addr, func() bool { return j.ping(addr, 2*time.Second) == nil })
	}
	for _, addr := range []string{"10.9.9.9", hostIP, "169.254.169.254", "fd12:3456::1"} {
		if err := j.ping(addr, time.Second); err == nil {
			t.Errorf("%s answers", addr)
		}
		if d := j.denials(); len(d) != 1 || !strings.Contains(d[0], " icmp: ") {
			t.Errorf("%s: denials %q", addr, d)
		}
	}
}

func TestExceptions(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "10.9.0.0/16:7, 169.254.0.0/16, 45.76.0.0/16, fd12:3456::1")
	for addr, ok := range map[string]bool{
		at("10.9.9.9", echoPort): true, at("10.9.9.9", webPort): false, at("172.20.1.1", echoPort): false,
		at("fd12:3456::1", echoPort): true,
		// Metadata services and the host need to be named one by one.
		at("169.254.169.254", echoPort): false, at(hostIP, echoPort): false,
		// The spellings of what is open are open.
		at("64:ff9b::a09:909", echoPort): true,
	} {
		if _, err := j.echo("tcp", addr, "x"); (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
	}
	one := w.sandbox("", hostIP+":7,169.254.169.254")
	for _, addr := range []string{at(hostIP, echoPort), at("169.254.169.254", echoPort)} {
		if _, err := one.echo("tcp", addr, "x"); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := one.dial("tcp", at(hostIP, webPort)); err == nil {
		t.Error("another port of the host's address is open")
	}
}

func TestAllowList(t *testing.T) {
	w := newWorld(t)
	w.dns.set("good.example.org", public4)
	w.dns.set("a.wild.example.org", other4)
	w.dns.set("wild.example.org", other4)
	w.dns.set("bad.example.org", other4)
	j := w.sandbox("good.example.org:7, *.wild.example.org, ["+public6+"]:80", "")
	// An address is not reached before its name was looked up.
	if _, err := j.dial("tcp", at(public4, echoPort)); err == nil {
		t.Error("an address is reached that nobody has looked up")
	}
	if got, err := j.lookup("udp", "good.example.org"); err != nil || got[0].String() != public4 {
		t.Fatalf("looking up: %v, %v", got, err)
	}
	if _, err := j.echo("tcp", at(public4, echoPort), "x"); err != nil {
		t.Errorf("an allowed name: %v", err)
	}
	j.denials()
	if _, err := j.dial("tcp", at(public4, webPort)); err == nil {
		t.Error("another port of an allowed name is reached")
	}
	if d := j.denials(); len(d) != 1 || d[0] != "good.example.org ("+at(public4, webPort)+") tcp: "+ruleUnlisted {
		t.Errorf("denials: %q", d)
	}
	// Others are said not to exist, and nobody outside hears of them.
	for _, name := range []string{"bad.example.org", "wild.example.org", "secret.attacker.example"} {
		if got, err := j.lookup("udp", name); !notFound(err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if n := w.dns.count(name); n != 0 {
			t.Errorf("%s was asked for %d times outside", name, n)
		}
		if d := j.denials(); len(d) != 1 || !strings.HasPrefix(d[0], name+" dns: "+ruleUnlisted) {
			t.Errorf("%s: denials %q", name, d)
		}
	}
	if _, err := j.dial("tcp", at(other4, webPort)); err == nil {
		t.Error("a co-hosted address is reached without its name")
	}
	if _, err := j.lookup("tcp", "a.wild.example.org"); err != nil {
		t.Error(err)
	}
	if _, err := j.echo("tcp", at(other4, echoPort), "x"); err != nil {
		t.Errorf("a name below a wildcard: %v", err)
	}
	if c, err := j.dial("tcp", at(public6, webPort)); err != nil {
		t.Errorf("an address of the list: %v", err)
	} else {
		c.Close()
	}
	// Nor by another resolver, or a relay's address.
	if _, err := j.dial("udp", "8.8.8.8:53"); err == nil {
		if _, err := j.echo("udp", "8.8.8.8:53", "x"); err == nil {
			t.Error("another resolver is reached")
		}
	}
}

// TestRebinding has names whose answers change to what must not be reached.
func TestRebinding(t *testing.T) {
	w := newWorld(t)
	w.dns.set("flip.example.org", public4, "10.9.9.9", "169.254.169.254", hostIP)
	w.dns.set("mixed.example.org", "10.9.9.9,"+public4+",127.0.0.1")
	for _, policy := range []string{"internet", "flip.example.org,mixed.example.org"} {
		j := w.sandbox(policy, "")
		seen := false
		for range 8 {
			got, _ := j.lookup("udp", "flip.example.org") // Go asks again after an empty answer
			for _, a := range got {
				seen = seen || a.String() == public4
				if a.String() != public4 {
					t.Errorf("%s: the answer %v went inside", policy, got)
				}
			}
		}
		if !seen {
			t.Errorf("%s: the public address did not go inside", policy)
		}
		got, err := j.lookup("udp", "mixed.example.org")
		if err != nil || len(got) != 1 || got[0].String() != public4 {
			t.Errorf("%s: %v, %v, want the public address alone", policy, got, err)
		}
		d := strings.Join(j.denials(), "\n")
		for _, want := range []string{"flip.example.org (10.9.9.9) dns: private address", "(169.254.169.254) dns: metadata service", hostIP + ") dns: " + ruleHost} {
			if !strings.Contains(d, want) {
				t.Errorf("%s: denials %s, want %q", policy, d, want)
			}
		}
		// Whatever the answer was, what is dialled is what counts.
		for _, addr := range []string{"10.9.9.9", "169.254.169.254", hostIP} {
			if _, err := j.dial("tcp", at(addr, echoPort)); err == nil {
				t.Errorf("%s: %s is reached", policy, addr)
			}
		}
	}
}

func TestResolver(t *testing.T) {
	w := newWorld(t)
	w.dns.set("Mixed.Case.example", public4)
	j := w.sandbox("", "")
	for _, network := range []string{"udp", "tcp"} {
		if got, err := j.lookup(network, "Mixed.Case.example"); err != nil || len(got) != 1 {
			t.Errorf("%s: %v, %v", network, got, err)
		}
		if got, err := j.lookup(network, "absent.example"); !notFound(err) {
			t.Errorf("%s: %v, %v", network, got, err)
		}
	}
	// With no resolver that answers there is an answer all the same.
	w.host.setResolvers([]netip.AddrPort{netip.MustParseAddrPort("192.168.77.1:5353")})
	begun := time.Now()
	if got, err := j.lookup("udp", "other.example"); err == nil || notFound(err) || time.Since(begun) > 20*time.Second {
		t.Errorf("without a resolver: %v, %v after %v", got, err, time.Since(begun))
	}
}

// TestEnd wants nothing left of networks that have ended, in the middle of
// what they did.
func TestEnd(t *testing.T) {
	w := newWorld(t)
	w.sandbox("", "").net.end() // what is made once is made
	before := runtime.NumGoroutine()
	for range 20 {
		j := w.sandbox("", "")
		c, err := j.dial("tcp", at(public4, echoPort))
		if err != nil {
			t.Fatal(err)
		}
		u, err := j.dial("udp", at(public4, echoPort))
		if err != nil {
			t.Fatal(err)
		}
		u.Write([]byte("x"))
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "x")
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		j.net.end()
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection: %v", err)
		}
		c.Close()
		u.Close()
	}
	await(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
}
