package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Network is what a sandbox may reach beside itself. The zero value is
// nothing: its own loopback alone.
//
// Whatever it says, an engine lets nobody reach loopback and the addresses of
// the host, private, link-local and multicast addresses, metadata services and
// other sandboxes, in any spelling, but for what Except opens.
type Network struct {
	// Internet is every public address.
	Internet bool `json:"internet,omitempty"`
	// Destinations are what alone can be reached where Internet is not set.
	Destinations []Destination `json:"destinations,omitempty"`
	// Except are addresses that are not denied for what kind of address they
	// are. Internet or Destinations must still name them. One that is not a
	// single address opens no address of the host and no metadata service.
	Except []Destination `json:"except,omitempty"`
	// Flows bounds the connections open at a time, TCP and UDP; 0 is the
	// engine's default.
	Flows int `json:"flows,omitempty"`
	// BitRate bounds each direction, in bits per second; 0 does not.
	BitRate int64 `json:"bit_rate,omitempty"`
}

// A Destination is a place on a network: either a domain or a range of
// addresses, at one port or all.
type Destination struct {
	// Domain is in lower case. "*.example.org" is every name below
	// example.org, which is not one of them.
	Domain string
	Prefix netip.Prefix
	Port   uint16 // 0 is every port
}

// None is whether nothing but loopback can be reached.
func (n Network) None() bool { return !n.Internet && len(n.Destinations) == 0 }

// String says in words what can be reached.
func (n Network) String() string {
	text := "none (loopback only)"
	switch {
	case n.Internet:
		text = "the internet, without private addresses"
	case len(n.Destinations) > 0:
		text = "only " + joined(n.Destinations)
	}
	if len(n.Except) > 0 && !n.None() {
		text += "; of private addresses only " + joined(n.Except)
	}
	return text
}

func joined(all []Destination) string {
	var names []string
	for _, d := range all {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
}

// ParseNetwork reads a network from two lists: "internet", "none" or
// destinations, and the exceptions, which are ranges of addresses.
func ParseNetwork(reach, except string) (Network, error) {
	var n Network
	switch reach = strings.TrimSpace(reach); reach {
	case "internet":
		n.Internet = true
	case "none", "":
	default:
		var err error
		if n.Destinations, err = parseDestinations(reach); err != nil {
			return n, fmt.Errorf("%w; or internet, or none", err)
		}
	}
	var err error
	if n.Except, err = parseDestinations(except); err != nil {
		return n, err
	}
	for _, d := range n.Except {
		if d.Domain != "" {
			return n, fmt.Errorf("%q: an exception is a range of addresses, such as 10.1.2.0/24 or 10.1.2.3:443", d)
		}
	}
	return n, nil
}

// maxDestinations bounds each list: it is looked through for every connection.
const maxDestinations = 1000

func parseDestinations(list string) ([]Destination, error) {
	var all []Destination
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		d, err := ParseDestination(text)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	if len(all) > maxDestinations {
		return nil, fmt.Errorf("%d destinations: want at most %d", len(all), maxDestinations)
	}
	return all, nil
}

// ParseDestination reads "example.org", "*.example.org", "198.51.100.7",
// "198.51.100.0/24" or "2001:db8::/32", each with ":443" behind it if one port
// is meant. IPv6 with a port is in brackets: "[2001:db8::/32]:443".
func ParseDestination(text string) (Destination, error) {
	var d Destination
	bad := func(why string) (Destination, error) {
		return Destination{}, fmt.Errorf("destination %q: %s; want a domain (example.org, *.example.org) or addresses (198.51.100.0/24, 2001:db8::/32), with a port or without (example.org:443, [2001:db8::/32]:443)", clipped(text), why)
	}
	place, port := strings.TrimSpace(text), ""
	if inner, ok := strings.CutPrefix(place, "["); ok {
		var rest string
		if place, rest, ok = strings.Cut(inner, "]"); !ok {
			return bad("there is no closing bracket")
		}
		if port, ok = strings.CutPrefix(rest, ":"); !ok && rest != "" {
			return bad("what follows the bracket is no port")
		}
	} else if strings.Count(place, ":") == 1 {
		place, port, _ = strings.Cut(place, ":")
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return bad("the port is not 1 to 65535")
		}
		d.Port = uint16(n)
	} else if strings.HasSuffix(text, ":") && !strings.HasSuffix(place, "::") {
		return bad("the port is missing")
	}
	if prefix, ok := parsePrefix(place); ok {
		if prefix.Addr().Is4In6() {
			return bad("write an IPv4 address as such")
		}
		d.Prefix = prefix.Masked()
		return d, nil
	}
	d.Domain = strings.ToLower(strings.TrimSuffix(place, "."))
	if err := checkDomain(d.Domain); err != nil {
		return bad(err.Error())
	}
	return d, nil
}

func parsePrefix(text string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix, true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// checkDomain wants a name as it is on the wire: names in other scripts in
// their xn-- form.
func checkDomain(name string) error {
	name = strings.TrimPrefix(name, "*.")
	if name == "" || len(name) > 253 {
		return errors.New("a name has 1 to 253 characters")
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 {
			return errors.New("a part of a name has 1 to 63 characters")
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return fmt.Errorf("%q has no place in a name", c)
			}
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return errors.New("the last part of a name is no number")
	}
	return nil
}

// Names is whether the destination is a domain that covers name, which is in
// lower case and without a dot at its end.
func (d Destination) Names(name string) bool {
	if d.Domain == "" {
		return false
	}
	if suffix, ok := strings.CutPrefix(d.Domain, "*"); ok {
		return strings.HasSuffix(name, suffix) && len(name) > len(suffix)
	}
	return name == d.Domain
}

// Holds is whether the destination is a range with that address in it.
func (d Destination) Holds(addr netip.Addr) bool {
	return d.Domain == "" && d.Prefix.Contains(addr)
}

// At is whether the port is one of the destination's. 0, for protocols that
// have none, is only where all are.
func (d Destination) At(port uint16) bool { return d.Port == 0 || d.Port == port }

// String is what ParseDestination reads.
func (d Destination) String() string {
	place := d.Domain
	if place == "" {
		place = d.Prefix.String()
		if d.Prefix.IsSingleIP() {
			place = d.Prefix.Addr().String()
		}
		if d.Port != 0 && d.Prefix.Addr().Is6() {
			place = "[" + place + "]"
		}
	}
	if d.Port != 0 {
		place += ":" + strconv.Itoa(int(d.Port))
	}
	return place
}

// MarshalJSON writes the destination as a string.
func (d Destination) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (d *Destination) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := ParseDestination(text)
	if err == nil {
		*d = parsed
	}
	return err
}

func clipped(text string) string {
	const most = 100
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Equal is whether two networks are the same.
func (n Network) Equal(o Network) bool {
	return n.Internet == o.Internet && n.Flows == o.Flows && n.BitRate == o.BitRate &&
		slices.Equal(n.Destinations, o.Destinations) && slices.Equal(n.Except, o.Except)
}

// NetworkReporter is an engine that can say what sandboxes did on their
// network.
type NetworkReporter interface {
	// NetworkUse reports what a sandbox has used since it was started, and
	// what it was refused since an earlier report, whose Cursor it takes; 0
	// for all. It fails with ErrNotRunning if the sandbox does not run, and
	// is empty for one without a network.
	NetworkUse(ctx context.Context, id string, since uint64) (NetworkUse, error)
}

// NetworkSetter is an engine that can change what a sandbox may reach.
type NetworkSetter interface {
	// SetNetwork changes Spec.Network, for good. Of a sandbox that runs, open
	// connections end if it is a change; one that does not run has it when it
	// is started.
	SetNetwork(ctx context.Context, id string, n Network) error
}

// NetworkUse is what a sandbox did on its network.
type NetworkUse struct {
	Sent, Received int64 // bytes of TCP and UDP payload
	Connections    int64 // TCP connections and UDP flows that were made
	Open           int   // of those now
	Refused        int64 // attempts that were refused
	// Denied are the refused attempts after the report asked for, alike ones
	// together. Only the latest are kept.
	Denied []Denial
	// Cursor is for the next call.
	Cursor uint64
}

// Denial is an attempt that was refused, or several that are alike.
type Denial struct {
	Protocol string         `json:"protocol"` // tcp, udp, icmp or dns
	To       netip.AddrPort `json:"to"`       // invalid for a name that was not looked up
	Name     string         `json:"name"`     // by which it was looked up, if known
	Rule     string         `json:"rule"`     // why
	Count    int64          `json:"count"`
}

// String is "host:port rule", with the name that led there if it is known.
func (d Denial) String() string {
	place := d.Name
	if d.To.IsValid() {
		place = d.To.String()
		if d.To.Port() == 0 {
			place = d.To.Addr().String()
		}
		if d.Name != "" {
			place = d.Name + " (" + place + ")"
		}
	}
	text := place + " " + d.Protocol + ": " + d.Rule
	if d.Count > 1 {
		text += fmt.Sprintf(" (%d times)", d.Count)
	}
	return text
}
