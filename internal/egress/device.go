package egress

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deviceName is what a sandbox calls its interface.
const deviceName = "eth0"

// ErrNoDevice says that this host has no TUN devices, or lets nobody have one.
var ErrNoDevice = errors.New("no TUN device can be made here")

// A Device says how a sandbox's interface is to be made.
type Device struct {
	// Namespace is the network namespace to make it in.
	Namespace *os.File
	// IPv6 is whether it gets an address and a route of that version.
	IPv6 bool
	// Groups are the group ids, as this process sees them, that may ping; none
	// if both are 0.
	FirstGroup, LastGroup uint32
}

// Open makes the interface, or takes hold of one again whose last holder has
// ended, and returns the descriptor to give to Client.Attach. It fails with
// ErrNoDevice where there are no such devices. It needs CAP_NET_ADMIN and
// CAP_SYS_ADMIN.
func (d Device) Open() (*os.File, error) {
	var tun *os.File
	err := inNamespace(d.Namespace, func() (err error) {
		if tun, err = openTUN(); err != nil {
			return err
		}
		if err := d.configure(); err != nil {
			tun.Close()
			return fmt.Errorf("configuring the interface: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tun, nil
}

// Probe finds out whether interfaces can be made here, by making one in a
// namespace that goes with it.
func Probe() error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		failed <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("making a network namespace: %w", err)
			}
			ns, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer ns.Close()
			tun, err := Device{Namespace: ns}.Open()
			if err == nil {
				tun.Close()
			}
			return err
		}()
	}()
	return <-failed
}

// HostIPv6 is whether the host has a route to the internet by IPv6, and a public
// address to go by: with a private one it may be a route to nowhere, which
// programs would wait for.
func HostIPv6() bool {
	routes, err := netlink.RouteGet(netip.MustParseAddr("2000::1").AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return false
	}
	from, ok := netip.AddrFromSlice(routes[0].Src)
	return ok && global.Contains(from)
}

// inNamespace runs f on a thread that is in a network namespace.
func inNamespace(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			// Back afterwards; a thread that cannot go back stays locked and
			// ends with the goroutine.
			home, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer home.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering a network namespace: %w", err)
			}
			defer func() {
				if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
					runtime.UnlockOSThread()
				}
			}()
			return f()
		}()
	}()
	return <-done
}

// openTUN opens the device in the namespace of this thread. It stays when its
// holder ends, so that another can take over, and goes with the namespace.
func openTUN() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			err = fmt.Errorf("%w: /dev/net/tun: %w", ErrNoDevice, err)
		}
		return nil, err
	}
	request, err := unix.NewIfreq(deviceName)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
		}
		return nil, fmt.Errorf("setting up the TUN device: %w", err)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// configure gives the interface its addresses and routes, in the namespace of
// this thread. It may have them already.
func (d Device) configure() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if lo, err := h.LinkByName("lo"); err == nil {
		_ = h.LinkSetUp(lo) // the OCI runtime has done so
	}
	link, err := h.LinkByName(deviceName)
	if err != nil {
		return err
	}
	if err := h.LinkSetMTU(link, MTU); err != nil {
		return err
	}
	if err := d.place(h, link, Address4, Gateway4); err != nil {
		return err
	}
	if d.IPv6 {
		_ = d.place(h, link, Address6, Gateway6) // not where the kernel has it switched off
	}
	if d.LastGroup > 0 {
		// Pings without privilege. Not every kernel has it.
		_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", fmt.Appendf(nil, "%d %d", d.FirstGroup, d.LastGroup), 0)
	}
	return nil
}

func (d Device) place(h *netlink.Handle, link netlink.Link, address netip.Prefix, gateway netip.Addr) error {
	addr, err := netlink.ParseAddr(address.String())
	if err != nil {
		return err
	}
	if address.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // there is nobody to ask
	}
	if err := h.AddrReplace(link, addr); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	return h.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()})
}
