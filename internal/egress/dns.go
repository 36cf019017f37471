package egress

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"belljar/internal/engine"
)

const (
	// upstreamTime is how long one of the host's resolvers may take, queryTime
	// how long all may. A program's resolver waits 5 s by default.
	upstreamTime = 2 * time.Second
	queryTime    = 4 * time.Second
	// dnsIdle is how long a TCP connection to the resolver may be idle.
	dnsIdle = 10 * time.Second
	// maxUDPAnswer is more than programs ask for by EDNS.
	maxUDPAnswer = 4096
)

// answerUDP answers a query for which the stack needs no endpoint.
func (n *network) answerUDP(from, to netip.AddrPort, query []byte) {
	select {
	case n.queries <- struct{}{}:
	default:
		return // too many at a time; the program asks again
	}
	go func() {
		defer func() { <-n.queries }()
		if answer := n.resolve(query, "udp"); answer != nil {
			n.link.inject(udpPacket(to, from, answer))
		}
	}()
}

// serveDNS answers queries on a connection, one after another.
func (n *network) serveDNS(conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(n.ctx, func() { conn.Close() })
	defer stop()
	for {
		_ = conn.SetDeadline(time.Now().Add(dnsIdle))
		query, err := readDNS(conn)
		if err != nil {
			return
		}
		answer := n.resolve(query, "tcp")
		if answer == nil || writeDNS(conn, answer) != nil {
			return
		}
	}
}

// readDNS and writeDNS are the form of messages on TCP, RFC 1035.
func readDNS(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}

func writeDNS(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}

// resolve answers a query; nil if it is none. A name that the policy does not
// let through does not leave this process: it is said not to exist, which
// programs take for an answer, where they would ask again after a refusal.
func (n *network) resolve(query []byte, transport string) []byte {
	h, q, name, ok := parseQuery(query)
	if !ok {
		return nil
	}
	if !resolvable(n.policy, name) {
		n.account.deny(engine.Denial{Protocol: "dns", Name: clean(name), Rule: ruleUnlisted})
		return failure(h, q, dnsmessage.RCodeNameError)
	}
	answer, err := n.forward(query, q, transport)
	if err != nil {
		return failure(h, q, dnsmessage.RCodeServerFailure)
	}
	return n.checkAnswer(answer, h, q, name)
}

// parseQuery reads a query for one name. What is none is not answered.
func parseQuery(query []byte) (h dnsmessage.Header, q dnsmessage.Question, name string, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response || h.OpCode != 0 {
		return h, q, "", false
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 || all[0].Class != dnsmessage.ClassINET {
		return h, q, "", false
	}
	return h, all[0], strings.ToLower(strings.TrimSuffix(all[0].Name.String(), ".")), true
}

// clean keeps a name, which may hold any byte, fit for people to read.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, name)
}

// failure is an answer without records.
func failure(h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: code},
		Questions: []dnsmessage.Question{q},
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// checkAnswer takes note of the addresses in an answer, and takes out those
// that nobody may reach: names with such addresses are somebody's private ones,
// or made to deceive.
func (n *network) checkAnswer(answer []byte, h dnsmessage.Header, q dnsmessage.Question, name string) []byte {
	found, err := addresses(answer)
	if err != nil {
		return failure(h, q, dnsmessage.RCodeServerFailure)
	}
	now, hidden := time.Now(), map[netip.Addr]bool{}
	for _, a := range found {
		if rule, ok := shown(n.policy, a.addr, n.host.local); !ok {
			hidden[a.addr] = true
			n.account.deny(engine.Denial{Protocol: "dns", To: netip.AddrPortFrom(a.addr, 0), Name: clean(name), Rule: rule})
			continue
		}
		n.pins.add(a.addr, name, a.ttl, now)
	}
	if len(hidden) == 0 {
		return answer
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return failure(h, q, dnsmessage.RCodeServerFailure)
	}
	var kept []dnsmessage.Resource
	for _, r := range m.Answers {
		if a, ok := addressOf(r.Body); !ok || !hidden[a] {
			kept = append(kept, r)
		}
	}
	m.Answers, m.Authorities, m.Additionals = kept, nil, nil
	packed, err := m.Pack()
	if err != nil {
		return failure(h, q, dnsmessage.RCodeServerFailure)
	}
	return packed
}

// found is an address in an answer.
type found struct {
	addr netip.Addr
	ttl  time.Duration
}

// addresses returns those that an answer gives.
func addresses(answer []byte) ([]found, error) {
	var p dnsmessage.Parser
	if _, err := p.Start(answer); err != nil {
		return nil, err
	}
	if err := p.SkipAllQuestions(); err != nil {
		return nil, err
	}
	var all []found
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Type != dnsmessage.TypeA && h.Type != dnsmessage.TypeAAAA {
			if err := p.SkipAnswer(); err != nil {
				return nil, err
			}
			continue
		}
		r, err := p.Answer()
		if err != nil {
			return nil, err
		}
		if a, ok := addressOf(r.Body); ok {
			all = append(all, found{a, time.Duration(h.TTL) * time.Second})
		}
	}
}

func addressOf(body dnsmessage.ResourceBody) (netip.Addr, bool) {
	switch b := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A), true
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA).Unmap(), true
	}
	return netip.Addr{}, false
}

var errNoAnswer = errors.New("no resolver of the host has answered")

// forward asks the host's resolvers, one after another.
func (n *network) forward(query []byte, q dnsmessage.Question, transport string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(n.ctx, queryTime)
	defer cancel()
	for _, upstream := range n.host.resolversNow() {
		answer, err := n.ask(ctx, upstream, query, q, transport)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errNoAnswer
}

// ask asks one resolver, under an id that the sandbox does not know, so that
// nobody can help it to an answer that is not the resolver's.
func (n *network) ask(ctx context.Context, upstream netip.AddrPort, query []byte, q dnsmessage.Question, transport string) ([]byte, error) {
	conn, err := n.dialResolver(ctx, upstream, transport)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline := time.Now().Add(upstreamTime)
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var id [2]byte
	rand.Read(id[:])
	sent := append(id[:], query[2:]...)
	if transport == "tcp" {
		err = writeDNS(conn, sent)
	} else {
		_, err = conn.Write(sent)
	}
	buf := make([]byte, maxUDPAnswer)
	for err == nil {
		answer := buf
		if transport == "tcp" {
			answer, err = readDNS(conn)
		} else {
			var count int
			count, err = conn.Read(buf)
			answer = buf[:count]
		}
		if err == nil && answers(answer, id, q) {
			copy(answer, query[:2])
			return answer, nil
		}
	}
	return nil, err
}

func (n *network) dialResolver(ctx context.Context, upstream netip.AddrPort, transport string) (net.Conn, error) {
	if transport == "udp" {
		return n.host.dialUDP(upstream)
	}
	ctx, cancel := context.WithTimeout(ctx, upstreamTime)
	defer cancel()
	return n.host.dialTCP(ctx, upstream)
}

// answers is whether a message is the answer to a question.
func answers(message []byte, id [2]byte, q dnsmessage.Question) bool {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || !h.Response || h.ID != binary.BigEndian.Uint16(id[:]) {
		return false
	}
	got, err := p.Question()
	return err == nil && got.Type == q.Type && got.Class == q.Class && strings.EqualFold(got.Name.String(), q.Name.String())
}
