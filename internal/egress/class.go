package egress

import (
	"encoding/binary"
	"net/netip"
)

// A class is a range of addresses that nobody reaches for what they are.
type class struct {
	prefix netip.Prefix
	name   string
	// narrow ones are opened by an exception for a single address alone.
	narrow bool
	// closed ones are not opened at all.
	closed bool
}

// classes are in the order of precedence. Sources: the IANA registries of
// special-purpose addresses (RFC 6890 and what came after), and the clouds'
// own documentation for the metadata services, of which Azure's is a public
// address.
var classes = func() []class {
	const (
		metadata = "metadata service"
		private  = "private address"
		docs     = "documentation address"
		reserved = "reserved address"
	)
	var all []class
	add := func(name string, narrow, closed bool, prefixes ...string) {
		for _, p := range prefixes {
			all = append(all, class{netip.MustParsePrefix(p), name, narrow, closed})
		}
	}
	add(metadata, true, false, "169.254.169.254/32", "169.254.169.253/32", "169.254.170.2/32", "169.254.170.23/32", "169.254.42.42/32",
		"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
		"fd00:ec2::/64", "fd20:ce::254/128", "fd00:42::42/128")
	add("unspecified address", false, true, "0.0.0.0/8", "::/128")
	add("loopback address", true, false, "127.0.0.0/8", "::1/128")
	add("multicast address", false, true, "224.0.0.0/4", "ff00::/8")
	add("broadcast address", false, true, "255.255.255.255/32")
	add("link-local address", false, false, "169.254.0.0/16", "fe80::/10")
	add(private, false, false, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")
	add("carrier-grade NAT address", false, false, "100.64.0.0/10")
	add("benchmarking address", false, false, "198.18.0.0/15", "2001:2::/48")
	add(docs, false, false, "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")
	add(reserved, false, false, "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001:10::/28", "2001:20::/28", "100::/64")
	// The prefix of a network's own translation to IPv4 (RFC 8215) leads to
	// wherever that network says.
	add("local NAT64 address", false, false, "64:ff9b:1::/48")
	return all
}()

// global is what of IPv6 is given out to networks, and nat64 the one range
// beside it that leads to the internet.
var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
)

// classOf returns the class that denies an address as it is spelled.
func classOf(a netip.Addr) (class, bool) {
	for _, c := range classes {
		if c.prefix.Contains(a) {
			return c, true
		}
	}
	if a.Is6() && !global.Contains(a) && !nat64.Contains(a) {
		return class{netip.PrefixFrom(a, 128), "reserved address", false, false}, true
	}
	return class{}, false
}

// spellings returns the addresses that an address leads to: IPv4 ones that it
// holds in one of the ways in which IPv6 spells them, and itself. An
// IPv4-mapped address is no address of its own.
func spellings(a netip.Addr) []netip.Addr {
	a = a.WithZone("").Unmap()
	if a.Is4() {
		return []netip.Addr{a}
	}
	var all []netip.Addr
	b := a.As16()
	high := binary.BigEndian.Uint64(b[:8])
	add := func(v4 []byte) { all = append(all, netip.AddrFrom4([4]byte(v4))) }
	switch {
	case nat64.Contains(a):
		add(b[12:16])
	case high>>16 == 0x0064ff9b0001: // RFC 8215
		add(b[12:16])
	case high>>48 == 0x2002: // 6to4, RFC 3056
		add(b[2:6])
	case high>>32 == 0x20010000: // Teredo, RFC 4380: its server, and its client, inverted
		add(b[4:8])
		add([]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	case high == 0 && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback():
		// IPv4-compatible (RFC 4291) and translated, ::ffff:0:a.b.c.d
		// (RFC 2765).
		add(b[12:16])
	}
	if v := binary.BigEndian.Uint32(b[8:12]); v == 0x00005efe || v == 0x02005efe { // ISATAP, RFC 5214
		add(b[12:16])
	}
	return append(all, a)
}
