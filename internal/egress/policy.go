package egress

import (
	"fmt"
	"net/netip"

	"belljar/internal/engine"
)

// Rules by which an attempt is refused, beside the names of classes.
const (
	ruleHost     = "address of the host"
	ruleUnlisted = "not on the allow-list"
	ruleFlows    = "too many connections at a time"
)

// decide says whether a sandbox may reach an address at a port, 0 where there
// are no ports; if not, by which rule. names are those by which our resolver
// handed the address out. local tells addresses of the host.
//
// It is to be asked for the address that is really dialled.
func decide(n engine.Network, to netip.AddrPort, names []string, local func(netip.Addr) bool) (rule string, ok bool) {
	addr := to.Addr().WithZone("").Unmap()
	if !addr.IsValid() {
		return "no address", false
	}
	for _, a := range spellings(addr) {
		if c, denied := classOf(a); denied && !excepted(n, a, to.Port(), c) {
			return c.name, false
		}
		// The kernel knows them best: they may be public, and they change.
		host := class{narrow: true}
		if local(a) && !excepted(n, a, to.Port(), host) {
			return ruleHost, false
		}
	}
	if n.Internet {
		return "", true
	}
	for _, d := range n.Destinations {
		if !d.At(to.Port()) {
			continue
		}
		if d.Holds(addr) {
			return "", true
		}
		for _, name := range names {
			if d.Names(name) {
				return "", true
			}
		}
	}
	return ruleUnlisted, false
}

// excepted is whether the operator has opened an address of a class.
func excepted(n engine.Network, a netip.Addr, port uint16, c class) bool {
	if c.closed {
		return false
	}
	for _, d := range n.Except {
		if d.Holds(a) && d.At(port) && (!c.narrow || d.Prefix.IsSingleIP()) {
			return true
		}
	}
	return false
}

// resolvable is whether a name, in lower case and without a dot at its end,
// may be looked up.
func resolvable(n engine.Network, name string) bool {
	if n.Internet {
		return true
	}
	for _, d := range n.Destinations {
		if d.Names(name) {
			return true
		}
	}
	return false
}

// shown is whether an address may stand in an answer of our resolver: not one
// that is denied for what it is. It may still be denied when it is dialled.
func shown(n engine.Network, a netip.Addr, local func(netip.Addr) bool) (rule string, ok bool) {
	for _, s := range spellings(a) {
		c, denied := classOf(s)
		if !denied && local(s) {
			c, denied = class{name: ruleHost, narrow: true}, true
		}
		if denied && !exceptedAtAll(n, s, c) {
			return c.name, false
		}
	}
	return "", true
}

func exceptedAtAll(n engine.Network, a netip.Addr, c class) bool {
	for _, d := range n.Except {
		if excepted(n, a, d.Port, c) {
			return true
		}
	}
	return false
}

// Check refuses a network that cannot be what somebody meant.
func Check(n engine.Network) error {
	for _, d := range n.Destinations {
		if d.Domain != "" {
			continue
		}
		c, denied := classOf(d.Prefix.Addr())
		if denied && c.prefix.Bits() <= d.Prefix.Bits() && c.prefix.Overlaps(d.Prefix) && !exceptedAtAll(n, d.Prefix.Addr(), c) {
			return fmt.Errorf("%s is never reached, being a %s, unless an exception opens it", d, c.name)
		}
	}
	for _, d := range n.Except {
		if c, denied := classOf(d.Prefix.Addr()); denied && c.closed && c.prefix.Bits() <= d.Prefix.Bits() {
			return fmt.Errorf("%s cannot be opened, being a %s", d, c.name)
		}
	}
	return nil
}
