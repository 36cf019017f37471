package egress

import (
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// reason is why a datagram cannot be delivered.
type reason int

const (
	prohibited reason = iota // by the policy
	noRoute
	noPort // nobody listens
)

// codes are those of ICMP and ICMPv6 "destination unreachable".
var codes = map[reason]struct {
	v4 header.ICMPv4Code
	v6 header.ICMPv6Code
}{
	prohibited: {header.ICMPv4AdminProhibited, header.ICMPv6Prohibited},
	noRoute:    {header.ICMPv4HostUnreachable, header.ICMPv6NetworkUnreachable},
	noPort:     {header.ICMPv4PortUnreachable, header.ICMPv6PortUnreachable},
}

// unreachable tells the sandbox that what it sent went nowhere. Of the packet
// it quotes what the sandbox's kernel looks at: the addresses and ports.
func (n *network) unreachable(protocol tcpip.TransportProtocolNumber, from, to netip.AddrPort, why reason) {
	quoted := make([]byte, header.UDPMinimumSize)
	header.UDP(quoted).Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: header.UDPMinimumSize})
	quoted = ipPacket(from.Addr(), to.Addr(), protocol, quoted)
	n.link.inject(icmpPacket(to.Addr(), from.Addr(), quoted, codes[why].v4, codes[why].v6))
}

// icmpPacket is a "destination unreachable" with a quoted packet.
func icmpPacket(from, to netip.Addr, quoted []byte, v4 header.ICMPv4Code, v6 header.ICMPv6Code) []byte {
	message := append(make([]byte, header.ICMPv4MinimumSize), quoted...)
	if from.Is4() {
		h := header.ICMPv4(message)
		h.SetType(header.ICMPv4DstUnreachable)
		h.SetCode(v4)
	} else {
		h := header.ICMPv6(message)
		h.SetType(header.ICMPv6DstUnreachable)
		h.SetCode(v6)
	}
	return icmpMessage(from, to, message)
}

// icmpMessage puts an ICMP message with its checksum into a packet.
func icmpMessage(from, to netip.Addr, message []byte) []byte {
	if from.Is4() {
		h := header.ICMPv4(message)
		h.SetChecksum(0)
		h.SetChecksum(^checksum.Checksum(message, 0))
		return ipPacket(from, to, header.ICMPv4ProtocolNumber, message)
	}
	h := header.ICMPv6(message)
	h.SetChecksum(0)
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, netstackAddr(from), netstackAddr(to), uint16(len(message)))
	h.SetChecksum(^checksum.Checksum(message, sum))
	return ipPacket(from, to, header.ICMPv6ProtocolNumber, message)
}

// udpPacket is a datagram with its checksum.
func udpPacket(from, to netip.AddrPort, payload []byte) []byte {
	datagram := append(make([]byte, header.UDPMinimumSize), payload...)
	h := header.UDP(datagram)
	h.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: uint16(len(datagram))})
	sum := header.PseudoHeaderChecksum(udp.ProtocolNumber, netstackAddr(from.Addr()), netstackAddr(to.Addr()), uint16(len(datagram)))
	h.SetChecksum(^checksum.Checksum(datagram, sum))
	return ipPacket(from.Addr(), to.Addr(), udp.ProtocolNumber, datagram)
}

func ipPacket(from, to netip.Addr, protocol tcpip.TransportProtocolNumber, payload []byte) []byte {
	const hops = 64
	if from.Is4() {
		packet := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(payload))
		h := header.IPv4(packet)
		h.Encode(&header.IPv4Fields{
			TotalLength: uint16(header.IPv4MinimumSize + len(payload)), TTL: hops, Protocol: uint8(protocol),
			SrcAddr: netstackAddr(from), DstAddr: netstackAddr(to),
		})
		h.SetChecksum(^h.CalculateChecksum())
		return append(packet, payload...)
	}
	packet := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(payload))
	header.IPv6(packet).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(payload)), TransportProtocol: protocol, HopLimit: hops,
		SrcAddr: netstackAddr(from), DstAddr: netstackAddr(to),
	})
	return append(packet, payload...)
}

func netstackAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// echoTime is how long an answer to a ping is waited for.
const echoTime = 10 * time.Second

// handleICMP passes echo requests on by a socket of the host that needs no
// privilege. The gateway answers by itself. Where the host allows no such
// sockets (net.ipv4.ping_group_range), pings are not answered.
func (n *network) handleICMP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	network := pkt.Network()
	to, from := address(network.DestinationAddress()), address(network.SourceAddress())
	message := append(pkt.TransportHeader().View().ToSlice(), pkt.Data().AsRange().ToSlice()...)
	if len(message) < header.ICMPv4MinimumSize || to == Gateway4 || to == Gateway6 {
		return false
	}
	if to.Is4() && header.ICMPv4(message).Type() != header.ICMPv4Echo || to.Is6() && header.ICMPv6(message).Type() != header.ICMPv6EchoRequest {
		return false
	}
	if !n.admit("icmp", netip.AddrPortFrom(to, 0)) {
		quoted := ipPacket(from, to, pkt.TransportProtocolNumber, message[:header.ICMPv4MinimumSize])
		n.link.inject(icmpPacket(to, from, quoted, codes[prohibited].v4, codes[prohibited].v6))
		return true
	}
	select {
	case n.echoes <- struct{}{}:
		go func() {
			defer func() { <-n.echoes }()
			n.echo(from, to, message)
		}()
	default: // too many at a time; a ping may be lost
	}
	return true
}

func (n *network) echo(from, to netip.Addr, message []byte) {
	conn, err := n.host.ping(to.Is6())
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(echoTime))
	if _, err := conn.WriteTo(message, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
		return
	}
	n.account.sent.Add(int64(len(message)))
	buf := packets.Get().(*[]byte)
	defer packets.Put(buf)
	count, _, err := conn.ReadFrom(*buf)
	if err != nil || count < header.ICMPv4MinimumSize {
		return
	}
	reply := (*buf)[:count]
	if to.Is4() && header.ICMPv4(reply).Type() != header.ICMPv4EchoReply || to.Is6() && header.ICMPv6(reply).Type() != header.ICMPv6EchoReply {
		return
	}
	n.account.received.Add(int64(count))
	copy(reply[4:6], message[4:6]) // the identifier; the host's kernel has its own
	if len(reply)+header.IPv6MinimumSize > 65535 {
		return
	}
	n.link.inject(icmpMessage(to, from, reply))
}
