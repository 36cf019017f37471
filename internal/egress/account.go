package egress

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"belljar/internal/engine"
)

// maxDenied is how many different denials of a sandbox are kept.
const maxDenied = 64

// account is what a sandbox has used and what it was refused.
type account struct {
	sent, received, made, refused atomic.Int64
	// heard is told of denials, alike ones once. It does not wait.
	heard func(engine.Denial)

	mu     sync.Mutex // guards what follows
	denied []numbered // the oldest first
	last   uint64     // number of the latest
	told   uint64     // up to which they were reported
}

// newAccount numbers denials by the clock from its beginning on: who has asked
// a process that was killed goes on with the one that took its place.
func newAccount(heard func(engine.Denial)) account {
	begin := uint64(time.Now().UnixMicro())
	return account{heard: heard, last: begin, told: begin}
}

type numbered struct {
	engine.Denial
	number uint64
}

// deny notes a denial. It is one with another that is the same, unless that
// has been reported, so that every report has those after the one before.
func (a *account) deny(d engine.Denial) {
	a.refused.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	d.Count = 1
	for i := len(a.denied) - 1; i >= 0 && a.denied[i].number > a.told; i-- {
		if o := a.denied[i]; o.Protocol == d.Protocol && o.To == d.To && o.Name == d.Name && o.Rule == d.Rule {
			d.Count = o.Count + 1
			a.denied = slices.Delete(a.denied, i, i+1)
			break
		}
	}
	a.denied = append(a.denied, numbered{d, a.last})
	if d.Count == 1 && a.heard != nil {
		a.heard(d)
	}
	if len(a.denied) > maxDenied {
		a.denied = slices.Delete(a.denied, 0, 1)
	}
}

// report returns what was used, and denials after an earlier report.
func (a *account) report(since uint64, open int) engine.NetworkUse {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := engine.NetworkUse{
		Sent: a.sent.Load(), Received: a.received.Load(), Connections: a.made.Load(),
		Open: open, Refused: a.refused.Load(), Cursor: a.last,
	}
	for _, d := range a.denied {
		if d.number > since {
			u.Denied = append(u.Denied, d.Denial)
		}
	}
	a.told = a.last
	return u
}

// Sizes of a connection's buffers, in bytes: those in the stack, one each way,
// and those that relay. A connection has the large ones while there are few.
const (
	largeBuffer = 1 << 20
	smallBuffer = 16 << 10
	largeRelay  = 256 << 10
	// bufferBudget is what the connections of a sandbox may have beyond small
	// ones, each way.
	bufferBudget = 32 << 20
)

// budget deals out buffer space, so that many connections that nobody reads
// hold little.
type budget struct{ used atomic.Int64 }

// take returns the size of a new connection's buffers.
func (b *budget) take() int64 {
	if b.used.Add(largeBuffer) <= bufferBudget {
		return largeBuffer
	}
	b.used.Add(-largeBuffer)
	return smallBuffer
}

func (b *budget) give(size int64) {
	if size == largeBuffer {
		b.used.Add(-largeBuffer)
	}
}

// pins are the addresses that our resolver handed out, with the names that
// led there. Its zero value is empty.
type pins struct {
	mu sync.Mutex
	by map[netip.Addr]*pin
}

type pin struct {
	names   []string // the latest last
	expires time.Time
}

const (
	maxPins  = 4096
	maxNames = 8 // of one address
	// An address is good for as long as its record says, and a little longer:
	// programs look up first and connect later, some once for all.
	minPin = 5 * time.Minute
	maxPin = 24 * time.Hour
)

// add notes that a name led to an address.
func (p *pins) add(addr netip.Addr, name string, ttl time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = map[netip.Addr]*pin{}
	}
	have := p.by[addr]
	if have == nil {
		if len(p.by) >= maxPins {
			p.makeRoom(now)
		}
		have = &pin{}
		p.by[addr] = have
	} else if now.After(have.expires) {
		have.names = nil
	}
	have.names = slices.DeleteFunc(have.names, func(n string) bool { return n == name })
	have.names = append(have.names, name)
	if len(have.names) > maxNames {
		have.names = have.names[1:]
	}
	if until := now.Add(min(max(ttl, minPin), maxPin)); until.After(have.expires) {
		have.expires = until
	}
}

// makeRoom drops what has expired or, if nothing has, what expires first.
func (p *pins) makeRoom(now time.Time) {
	var first netip.Addr
	for addr, have := range p.by {
		if now.After(have.expires) {
			delete(p.by, addr)
		} else if !first.IsValid() || have.expires.Before(p.by[first].expires) {
			first = addr
		}
	}
	if len(p.by) >= maxPins {
		delete(p.by, first)
	}
}

// names returns the names that led to an address.
func (p *pins) names(addr netip.Addr, now time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.by[addr.Unmap()]
	if have == nil || now.After(have.expires) {
		return nil
	}
	return slices.Clone(have.names)
}
