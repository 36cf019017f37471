package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/egress"
	"belljar/internal/engine"
)

// netGroup is the cgroup of the process with the sandboxes' networks, beside
// theirs, so that it outlives a restart of the service. It is no sandbox's id.
const netGroup = ".net"

// networkUser is the user that the process runs as: one for each window, after
// all windows.
func (r *ranges) networkUser() int {
	return rangesBase + windows*windowSlots*rangeSize + r.window()
}

const resolvConfFile = "/etc/resolv.conf"

// resolversEvery is the time between two looks at the host's resolv.conf.
const resolversEvery = 10 * time.Second

// errNoNetworks is for an engine that was given no program for them.
var errNoNetworks = errors.New("this server runs no networks")

// networks is the engine's end of the process that has the sandboxes'
// networks. The process is started when the first sandbox needs it, and again
// when it has ended; sandboxes that run get theirs again then.
type networks struct {
	e       *Engine
	program []string // the command of the process; nil for none
	build   string
	closed  chan struct{}
	work    sync.WaitGroup

	mu        sync.Mutex // guards what follows; held while connecting
	client    *egress.Client
	has       []string // sandboxes that the process had when it was reached
	resolvers []netip.AddrPort
	ipv6      bool
	started   time.Time
	lacking   error // why this host has no networks, if that is known
}

// PrepareNetwork finds out whether sandboxes can have networks on this host,
// which otherwise the first one does that starts. It takes over the process that
// an earlier server has left; a new one is started when it is needed.
func (e *Engine) PrepareNetwork(ctx context.Context) error {
	if err := egress.Probe(); err != nil {
		e.net.mu.Lock()
		defer e.net.mu.Unlock()
		e.net.lacking = err
		return err
	}
	if !egress.Left(e.net.dir()) {
		return nil
	}
	_, err := e.net.connected(ctx)
	return err
}

// dir is the process's directory.
func (n *networks) dir() string { return filepath.Join(n.e.dir, "net") }

// connected returns a client of the process, which it starts if need be.
func (n *networks) connected(ctx context.Context) (*egress.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.program == nil {
		return nil, errNoNetworks
	}
	if n.lacking != nil {
		return nil, n.lacking
	}
	if n.client != nil {
		select {
		case <-n.client.Ended():
			n.client = nil
		default:
			return n.client, nil
		}
	}
	// One that ends as soon as it has begun is not to keep the machine busy.
	if wait := time.Second - time.Since(n.started); wait > 0 && !n.started.IsZero() {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	again := !n.started.IsZero()
	n.started = time.Now()
	client, has, err := egress.Connect(ctx, egress.Options{
		Dir: n.dir(), Program: n.program, User: n.e.ids.networkUser(),
		Place: n.place, Denied: n.denied, Log: n.e.log,
	}, n.build)
	if err != nil {
		return nil, err
	}
	n.resolvers = egress.Resolvers(resolvConfFile)
	if err := client.SetResolvers(n.resolvers); err != nil {
		client.Close()
		return nil, err
	}
	n.client, n.has, n.ipv6 = client, has, egress.HostIPv6()
	n.work.Go(func() { n.watch(client) })
	if again { // also those for which an earlier attempt has failed
		n.work.Go(n.reattach)
	}
	return client, nil
}

// place puts the process where sandboxes are, and not in the group of the
// service that starts it, with which it would end. Where a hierarchy does not
// take it, it stays.
func (n *networks) place(pid int) {
	group := n.e.group(netGroup)
	for _, point := range n.e.cg.points() {
		dir := filepath.Join(point, group)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendf(nil, "%d", pid), 0)
		}
		if err != nil {
			n.e.log.Debug("the network's process stays in its cgroup", "hierarchy", point, "err", err)
		}
	}
}

// denied logs what a sandbox was refused.
func (n *networks) denied(sandbox string, d engine.Denial) {
	n.e.log.Info("denied on the network", "sandbox", sandbox, "what", d.String())
}

// watch keeps a process informed, and starts another when it has ended.
func (n *networks) watch(client *egress.Client) {
	tick := time.NewTicker(resolversEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.closed:
			return
		case <-tick.C:
			n.refresh(client)
		case <-client.Ended():
			n.e.log.Warn("the network's process has ended; starting another")
			n.work.Go(n.reattach)
			return
		}
	}
}

// refresh passes on what has changed in the host's resolv.conf.
func (n *networks) refresh(client *egress.Client) {
	now := egress.Resolvers(resolvConfFile)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(now, n.resolvers) && client.SetResolvers(now) == nil {
		n.resolvers = now
	}
}

// reattach gives every sandbox that runs its network again.
func (n *networks) reattach() {
	n.e.mu.Lock()
	var boxes []*box
	for _, b := range n.e.boxes {
		boxes = append(boxes, b)
	}
	n.e.mu.Unlock()
	for _, b := range boxes {
		select {
		case <-n.closed:
			return
		default:
		}
		b.op.Lock()
		if !b.gone && b.running() && !b.record.Spec.Network.None() {
			words, missing := n.attach(b, b.process)
			b.update(func(*record) { b.receipt.Network, b.receipt.NetworkMissing = words, missing })
		}
		b.op.Unlock()
	}
}

// attach gives a sandbox its network, if it is to have one and has none. It
// returns what the sandbox can reach, and why not what it should.
func (n *networks) attach(b *box, p *process) (words, missing string) {
	spec := b.record.Spec
	if spec.Network.None() {
		return spec.Network.String(), ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := n.tryAttach(ctx, b, p)
	if err != nil && !errors.Is(err, egress.ErrNoDevice) && !errors.Is(err, errNoNetworks) && p.alive() {
		err = n.tryAttach(ctx, b, p) // the process may just have ended
	}
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, egress.ErrNoDevice) {
			level = slog.LevelDebug // which was said at the start
		}
		n.e.log.Log(ctx, level, "a sandbox has no network", "sandbox", spec.ID, "err", err)
		missing = "the server could not give it one"
		if errors.Is(err, egress.ErrNoDevice) {
			missing = "the server's host has no TUN devices (/dev/net/tun)"
		}
		return "none (loopback only): " + missing, missing
	}
	return spec.Network.String(), ""
}

// attach begins to give the sandbox its network, while its agent starts. The
// function returned waits for that; see networks.attach.
func (b *box) attach(p *process) func() (words, missing string) {
	var words, missing string
	done := make(chan struct{})
	go func() {
		defer close(done)
		words, missing = b.e.net.attach(b, p)
	}()
	return func() (string, string) {
		<-done
		return words, missing
	}
}

func (n *networks) tryAttach(ctx context.Context, b *box, p *process) error {
	client, err := n.connected(ctx)
	if err != nil {
		return err
	}
	id := b.record.Spec.ID
	n.mu.Lock()
	has, ipv6 := b.network != client && slices.Contains(n.has, id), n.ipv6
	n.mu.Unlock()
	if b.network == client || has && !b.ours.Load() {
		b.network = client
		return nil // an earlier server has attached it
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return err
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	if !p.alive() { // then these may be another process's
		return engine.ErrNotRunning
	}
	ids := slotRange(b.record.Slot)
	device := egress.Device{Namespace: namespace, IPv6: ipv6, FirstGroup: ids.base, LastGroup: ids.base + rangeSize - 1}
	tun, err := device.Open()
	if err != nil {
		return err
	}
	defer tun.Close()
	if err := client.Attach(id, b.record.Spec.Network, tun, pidfd); err != nil {
		return err
	}
	b.network = client
	return nil
}

// detach ends a sandbox's network.
func (n *networks) detach(b *box) {
	if b.record.Spec.Network.None() {
		return
	}
	n.mu.Lock()
	client := n.client
	n.mu.Unlock()
	b.network = nil
	if client == nil {
		return
	}
	use, err := client.Detach(b.record.Spec.ID, 0)
	if err == nil {
		n.e.log.Debug("a sandbox's network has ended", "sandbox", b.record.Spec.ID, "sent", use.Sent, "received", use.Received,
			"connections", use.Connections, "refused", use.Refused)
	}
}

// SetNetwork implements engine.NetworkSetter.
func (e *Engine) SetNetwork(_ context.Context, id string, network engine.Network) error {
	return e.with(id, "changing the network of", func(b *box) error {
		if b.record.Spec.Network.Equal(network) {
			return nil
		}
		e.net.detach(b)
		b.update(func(r *record) { r.Spec.Network = network })
		if b.running() {
			b.ours.Store(true) // what an earlier server has attached is of no use
			words, missing := e.net.attach(b, b.process)
			b.update(func(*record) { b.receipt.Network, b.receipt.NetworkMissing = words, missing })
		}
		return b.save()
	})
}

// NetworkUse implements engine.NetworkReporter.
func (e *Engine) NetworkUse(_ context.Context, id string, since uint64) (engine.NetworkUse, error) {
	b, err := e.find(id, "asking about the network of")
	if err != nil {
		return engine.NetworkUse{}, err
	}
	b.mu.Lock()
	ends, policy := b.process == nil, b.record.Spec.Network
	b.mu.Unlock()
	if ends {
		return engine.NetworkUse{}, fmt.Errorf("asking about the network of %s: %w", id, engine.ErrNotRunning)
	}
	e.net.mu.Lock()
	client := e.net.client
	e.net.mu.Unlock()
	if policy.None() || client == nil {
		return engine.NetworkUse{}, nil
	}
	use, err := client.Use(id, since)
	if errors.Is(err, egress.ErrUnknown) {
		return engine.NetworkUse{}, nil
	}
	return use, err
}

// close lets go of the process, and ends it if no sandbox is left.
func (n *networks) close(empty bool) {
	close(n.closed)
	n.mu.Lock()
	client := n.client
	n.client, n.program = nil, nil
	n.mu.Unlock()
	switch {
	case empty:
		if client != nil {
			client.Quit()
		}
		if n.e.server != "" { // also one that was never asked for anything
			n.e.logFailure("removing the network's cgroup", n.e.cg.end(n.e.group(netGroup)))
		}
	case client != nil:
		client.Close()
	}
	n.work.Wait()
}

// Files that say who is who on the network. A sandbox may change them.
const (
	sandboxResolvConf = "nameserver %s\n"
	sandboxHosts      = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tsandbox\n"
)

// writeNames gives a root filesystem in which nothing has run yet a resolver,
// in place of the image's, which was somebody else's, and names for loopback
// unless it has some. Without a network nothing is at the resolver's address,
// and programs hear so at once. What an image has made of /etc leads nowhere
// outside.
func writeNames(rootfs string, ids idRange) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	var errs []error
	const name = "etc/resolv.conf"
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, writeOwned(root, name, fmt.Sprintf(sandboxResolvConf, egress.Gateway4), ids))
	if info, err := root.Stat("etc/hosts"); errors.Is(err, os.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		errs = append(errs, writeOwned(root, "etc/hosts", sandboxHosts, ids))
	}
	return errors.Join(errs...)
}

func writeOwned(root *os.Root, name, text string, ids idRange) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(0o644), f.Chown(int(ids.base), int(ids.base)), f.Close())
}
