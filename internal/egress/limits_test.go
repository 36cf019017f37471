package egress

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"belljar/internal/engine"
)

// heap returns the memory in use after a collection, in bytes: heap and stacks.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// await waits for what must come to be.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// flood sends SYNs from addresses that are nobody's, so that nobody answers
// what comes back.
func (j *jar) flood(t *testing.T, to netip.AddrPort, count int) {
	t.Helper()
	fd, err := within(j.namespace, func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range count {
		from := netip.AddrFrom4([4]byte{100, 127, 200, byte(i)})
		segment := make([]byte, header.TCPMinimumSize)
		h := header.TCP(segment)
		h.Encode(&header.TCPFields{SrcPort: uint16(1024 + i), DstPort: to.Port(), SeqNum: uint32(i), DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
		sum := header.PseudoHeaderChecksum(tcp.ProtocolNumber, netstackAddr(from), netstackAddr(to.Addr()), uint16(len(segment)))
		h.SetChecksum(^checksum.Checksum(segment, sum))
		packet := ipPacket(from, to.Addr(), tcp.ProtocolNumber, segment)
		binary.BigEndian.PutUint16(packet[4:], uint16(i)) // the kernel fills in an id of 0
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil && err != unix.ENOBUFS {
			t.Fatal(err)
		}
	}
}

// TestHalfOpen floods a stack with connections that nobody completes.
func TestHalfOpen(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "")
	before := heap()
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	flooding.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // some 20,000 a second
				j.flood(t, netip.MustParseAddrPort(at(public4, echoPort)), 400)
			}
		}
	})
	await(t, "the flood fills the table", func() bool {
		j.net.half.mu.Lock()
		defer j.net.half.mu.Unlock()
		return j.net.half.all.Len() >= maxHalfOpen
	})
	// Meanwhile, and afterwards, connections are made.
	for range 5 {
		if got, err := j.echo("tcp", at(other4, echoPort), "x"); got != "x" || err != nil {
			t.Errorf("during the flood: %q, %v", got, err)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 64<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	close(stop)
	flooding.Wait()
	await(t, "what nobody completes goes", func() bool { return j.net.open.Load() == 0 })
	if got, err := j.echo("tcp", at(public4, echoPort), "x"); got != "x" || err != nil {
		t.Errorf("after the flood: %q, %v", got, err)
	}
}

// TestManyConnections opens 10,000 connections and leaves them idle.
func TestManyConnections(t *testing.T) {
	w := newWorld(t)
	w.listen(w.internet, 9100, func(c net.Conn) { c.Read(make([]byte, 1)) })
	j, other := w.sandbox("", ""), w.sandbox("", "")
	before := heap()
	var mu sync.Mutex
	var held []net.Conn
	refused := 0
	var workers sync.WaitGroup
	for range 50 {
		workers.Go(func() {
			for range 200 {
				c, err := j.dial("tcp", at(public4, 9100))
				mu.Lock()
				if err == nil {
					held = append(held, c)
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Logf("%d connections held, %d refused, %d MiB more in use", len(held), refused, (int64(heap())-int64(before))>>20)
	if len(held) > defaultFlows || len(held) < defaultFlows/2 || len(held)+refused != 10000 {
		t.Errorf("%d connections, %d refused", len(held), refused)
	}
	if grown := int64(heap()) - int64(before); grown > 128<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	if d := strings.Join(j.denials(), "\n"); !strings.Contains(d, ruleFlows) {
		t.Errorf("denials: %s", d)
	}
	if got, err := other.echo("tcp", at(public4, echoPort), "x"); got != "x" || err != nil {
		t.Errorf("another sandbox: %q, %v", got, err)
	}
	for _, c := range held {
		c.Close()
	}
	wantIdle(t, j)
	if got, err := j.echo("tcp", at(public4, echoPort), "x"); got != "x" || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// TestUnreadData fills every buffer of many connections.
func TestUnreadData(t *testing.T) {
	w := newWorld(t)
	done := make(chan struct{})
	w.listen(w.internet, 9200, func(c net.Conn) { <-done })
	j := w.sandbox("", "")
	before := heap()
	var held sync.WaitGroup
	block := make([]byte, 1<<20)
	for range 300 {
		c, err := j.dial("tcp", at(public4, 9200))
		if err != nil {
			t.Fatal(err)
		}
		held.Go(func() {
			defer c.Close()
			// Until nobody has taken anything for a while.
			for {
				c.SetWriteDeadline(time.Now().Add(2 * time.Second))
				if _, err := c.Write(block); err != nil {
					break
				}
			}
			<-done
		})
	}
	await(t, "connections are open", func() bool { return j.net.open.Load() == 300 })
	time.Sleep(3 * time.Second) // what is awaited is that nothing moves any more
	grown := int64(heap()) - int64(before)
	t.Logf("%d MiB more are in use", grown>>20)
	if grown > 160<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	close(done)
	held.Wait()
	j.net.end()
}

func TestUDPFlows(t *testing.T) {
	w := newWorld(t)
	j := w.sandbox("", "")
	for i := range 3 * maxUDP {
		c, err := j.dial("udp", at(public4, echoPort))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write([]byte("x"))
		if i%100 == 99 {
			c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatalf("flow %d: %v", i, err)
			}
		}
	}
	await(t, "old flows go", func() bool { return j.net.open.Load() <= maxUDP })
}

func TestRate(t *testing.T) {
	w := newWorld(t)
	w.listen(w.internet, 9300, func(c net.Conn) { io.Copy(io.Discard, c) })
	j := w.sandboxWith(engine.Network{Internet: true, BitRate: 80e6})
	c, err := j.dial("tcp", at(public4, 9300))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	const size = 16e6 // a second and a half, less what buffers and the burst hold
	if _, err := io.CopyN(c, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	c.Close()
	wantIdle(t, j)
	if took := time.Since(begun); took < 1200*time.Millisecond {
		t.Errorf("%v for %d bytes at 10 MB/s", took, int(size))
	}
}

func BenchmarkConnect(b *testing.B) {
	w := newWorld(b)
	j := w.sandbox("", "")
	j.run(func() error {
		for b.Loop() {
			c, err := net.Dial("tcp", at(public4, webPort))
			if err != nil {
				return err
			}
			if _, err := io.ReadAll(c); err != nil {
				return fmt.Errorf("reading: %w", err)
			}
			c.Close()
		}
		return nil
	})
}
