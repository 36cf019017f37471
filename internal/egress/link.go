package egress

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link is the end of a sandbox's TUN device at which its stack is. It waits in
// Go's poller: an idle sandbox costs a goroutine, but no thread and no buffer,
// as it would with netstack's own link/fdbased, which has no offloads on a TUN
// either.
type link struct {
	file *os.File
	raw  syscall.RawConn
	to   stack.NetworkDispatcher
	done sync.WaitGroup
}

// vnetHeader is the size of struct virtio_net_hdr, which is before every
// packet with IFF_VNET_HDR. It is in the host's byte order.
const vnetHeader = 10

// Flags and kinds of a virtio_net_hdr, linux/virtio_net.h.
const (
	vnetNeedsChecksum = 1
	vnetTCPv4         = 1
	vnetTCPv6         = 4
)

// maxPacket is the largest packet that a TUN gives, with its header.
const maxPacket = vnetHeader + 65536

var packets = sync.Pool{New: func() any { b := make([]byte, maxPacket); return &b }}

// newLink takes over a TUN's descriptor, which does not block.
func newLink(tun *os.File) (*link, error) {
	raw, err := tun.SyscallConn()
	return &link{file: tun, raw: raw}, err
}

// readReady reads what is there, waiting until something is, into a buffer of
// the pool, which it holds no longer than it has to. The caller returns it.
func readReady(raw syscall.RawConn, pool *sync.Pool) (buf *[]byte, n int, err error) {
	waitErr := raw.Read(func(fd uintptr) bool {
		buf = pool.Get().(*[]byte)
		for {
			n, err = unix.Read(int(fd), *buf)
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN || err != nil {
			pool.Put(buf)
			buf = nil
		}
		return err != unix.EAGAIN
	})
	return buf, n, errors.Join(waitErr, err)
}

func (l *link) read() {
	defer l.done.Done()
	for {
		buf, n, err := readReady(l.raw, &packets)
		if err != nil {
			return // closed, or the device is gone
		}
		l.deliver((*buf)[:n])
		packets.Put(buf)
	}
}

func (l *link) deliver(b []byte) {
	if len(b) <= vnetHeader {
		return
	}
	b = b[vnetHeader:]
	var protocol tcpip.NetworkProtocolNumber
	switch b[0] >> 4 {
	case 4:
		protocol = header.IPv4ProtocolNumber
	case 6:
		protocol = header.IPv6ProtocolNumber
	default:
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	// The kernel leaves checksums out (TUN_F_CSUM). There is no wire on which
	// a packet could be damaged.
	pkt.RXChecksumValidated = true
	l.to.DeliverNetworkPacket(protocol, pkt)
	pkt.DecRef()
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	n := 0
	// Control keeps the descriptor from being closed and given to another
	// file meanwhile.
	err := l.raw.Control(func(fd uintptr) {
		for _, pkt := range list.AsSlice() {
			var space [8][]byte
			h := vnetHeaderOf(pkt)
			parts := append(append(space[:0], h[:]), pkt.AsSlices()...)
			// It never blocks: the packet goes into the kernel's stack. What
			// that has no room for, or does not like, is lost like on a wire.
			_, _ = unix.Writev(int(fd), parts)
			n++
		}
	})
	if err != nil {
		return n, &tcpip.ErrClosedForSend{}
	}
	return n, nil
}

// vnetHeaderOf asks the kernel for what the stack leaves to it: checksums, and
// the division of large TCP segments.
func vnetHeaderOf(pkt *stack.PacketBuffer) (h [vnetHeader]byte) {
	g := pkt.GSOOptions
	if g.Type == stack.GSONone {
		return h
	}
	put := func(at int, v uint16) { *(*[2]byte)(h[at:]) = nativeBytes(v) }
	put(2, uint16(pkt.HeaderSize()))
	if g.NeedsCsum {
		h[0] = vnetNeedsChecksum
		put(6, g.L3HdrLen) // there is no link header
		put(8, g.CsumOffset)
	}
	if pkt.Data().Size() > int(g.MSS) {
		h[1] = vnetTCPv4
		if g.Type == stack.GSOTCPv6 {
			h[1] = vnetTCPv6
		}
		put(4, g.MSS)
	}
	return h
}

// inject sends the sandbox a packet that is complete.
func (l *link) inject(packet []byte) {
	var h [vnetHeader]byte
	_ = l.raw.Control(func(fd uintptr) { _, _ = unix.Writev(int(fd), [][]byte{h[:], packet}) })
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *link) Attach(to stack.NetworkDispatcher) {
	if to == nil {
		l.file.Close()
		return
	}
	l.to = to
	l.done.Add(1)
	go l.read()
}

// The rest of stack.LinkEndpoint.

func (l *link) MTU() uint32                             { return MTU }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return 0 }
func (l *link) LinkAddress() tcpip.LinkAddress          { return "" }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) IsAttached() bool                        { return l.to != nil }
func (l *link) Wait()                                   { l.done.Wait() }
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *link) AddHeader(*stack.PacketBuffer)           {}
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) Close()                                  { l.file.Close() }
func (l *link) SetOnCloseAction(func())                 {}
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}
func (l *link) GSOMaxSize() uint32               { return 65535 }
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }
