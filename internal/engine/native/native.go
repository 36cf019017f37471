// Package native is the engine that needs nothing but an OCI runtime: image
// root filesystems on disk, an overlay and a writable layer per sandbox, and
// an OCI bundle that crun or runc runs.
//
// Its directory belongs to one process at a time, which the caller sees to by
// a lock; it holds
//
//	id               the server's id, part of cgroup names
//	window           the window of id ranges held last
//	agent/           the agent's program
//	templates/       empty filesystems to copy writable layers from
//	scratch-*/       the bundles of probes and build steps
//	net/             the socket of the process with the networks
//	sandboxes/<id>/  sandbox.json, the layer, the agent's directory
//
// What does not outlive a process is in a mount namespace of its own.
package native

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
	"belljar/internal/image"
)

// Images is where root filesystems come from; *image.Store is one.
type Images interface {
	// Acquire returns an image that stays until release is called.
	Acquire(ref string) (img image.Image, release func(), err error)
}

// Options configure the engine.
type Options struct {
	// Dir is the engine's directory, on a file system that can hold sparse
	// files. It is made if it does not exist.
	Dir string
	// Images must live on a file system that allows idmapped mounts.
	Images Images
	// Agent is the program of process 1.
	Agent []byte
	// Runtime names an OCI runtime; if empty, the first of crun and runc
	// that can run a container.
	Runtime string
	// Network is the command of the process with the sandboxes' networks, which
	// calls egress.Main, and Build tells builds of it apart. Without one, no
	// sandbox has a network.
	Network []string
	Build   string
	// MinFree is how much of the disk must stay free when every sandbox has
	// filled its own, in bytes. Default 1 GiB.
	MinFree int64
	// Log gets warnings and the choice of runtime. Default: discarded.
	Log *slog.Logger
}

// Engine is the native engine. It implements engine.Engine and image.Runner.
type Engine struct {
	dir     string
	log     *slog.Logger
	images  Images
	minFree int64
	server  string // the server's id
	agent   string // the agent's program on disk
	ns      *mountNamespace
	cg      cgroups
	ids     *ranges
	layers  layers
	runtime ociRuntime
	filter  filterCache
	net     *networks

	mu     sync.Mutex // guards what follows; never held while waiting
	boxes  map[string]*box
	closed bool
}

var (
	_ engine.Engine          = (*Engine)(nil)
	_ engine.NetworkReporter = (*Engine)(nil)
	_ engine.NetworkSetter   = (*Engine)(nil)
	_ image.Runner           = (*Engine)(nil)
)

// Open opens the engine: it chooses an OCI runtime, adopts the sandboxes that
// an earlier process left, and clears away what is left of those that are no
// more. It fails without root, and where no runtime can run a container.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the native engine runs as root: use sudo")
	}
	e := &Engine{
		dir: o.Dir, images: o.Images, log: o.Log, minFree: o.MinFree,
		layers: layers{dir: filepath.Join(o.Dir, "templates")},
		boxes:  map[string]*box{},
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.net = &networks{e: e, program: o.Network, build: o.Build, closed: make(chan struct{})}
	if e.minFree == 0 {
		e.minFree = 1 << 30
	}
	if err := e.open(ctx, o); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context, o Options) (err error) {
	if err = os.MkdirAll(filepath.Join(e.dir, "sandboxes"), 0o700); err != nil {
		return err
	}
	if e.server, err = serverID(filepath.Join(e.dir, "id")); err != nil {
		return err
	}
	if e.agent, err = installAgent(filepath.Join(e.dir, "agent"), o.Agent); err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	if e.cg, err = findCgroups(); err != nil {
		return fmt.Errorf("finding cgroups: %w", err)
	}
	e.logFailure("making room for cgroups", e.cg.vacate())
	if err = e.claimWindow(); err != nil {
		return err
	}
	if e.ns, err = newMountNamespace(e.cg.hybrid()); err != nil {
		return err
	}
	e.clearScratch()
	if e.runtime, err = e.chooseRuntime(ctx, o.Runtime); err != nil {
		return err
	}
	return e.adopt()
}

// Properties implements engine.Engine.
func (e *Engine) Properties() engine.Properties {
	return engine.Properties{
		Engine:   fmt.Sprintf("native (%s, %s)", e.runtime.version, e.cg),
		Isolated: true,
	}
}

// List implements engine.Engine.
func (e *Engine) List(context.Context) ([]engine.Status, error) {
	e.mu.Lock()
	boxes := make([]*box, 0, len(e.boxes))
	for _, b := range e.boxes {
		boxes = append(boxes, b)
	}
	e.mu.Unlock()
	all := make([]engine.Status, 0, len(boxes))
	for _, b := range boxes {
		if s, ok := b.status(); ok {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b engine.Status) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	boxes := e.boxes
	e.boxes = nil
	e.mu.Unlock()
	var errs []error
	for _, b := range boxes {
		errs = append(errs, b.letGo())
	}
	e.net.close(len(boxes) == 0)
	if len(boxes) == 0 && e.server != "" {
		for _, dir := range e.cg.dirs(e.group("")) {
			os.Remove(dir) // the server's own group, which is empty now
		}
	}
	if e.ns != nil {
		errs = append(errs, e.ns.close())
	}
	if e.ids != nil {
		errs = append(errs, e.ids.close())
	}
	return errors.Join(errs...)
}

// ServerID returns the id of this server, which stays with its directory.
func (e *Engine) ServerID() string { return e.server }

// scratch begins the names of bundles that are not a sandbox's, in the
// engine's directory.
const scratch = "scratch-"

// groups is the cgroup of all servers on a host, relative to each hierarchy's
// root.
const groups = "/belljar"

// group is the cgroup of a sandbox, that of the server for "".
func (e *Engine) group(id string) string {
	return filepath.Join(groups, e.server, id)
}

func (e *Engine) sandboxDir(id string) string {
	return filepath.Join(e.dir, "sandboxes", id)
}

// claimWindow takes a window of id ranges, the one held last if it is free.
func (e *Engine) claimWindow() error {
	file := filepath.Join(e.dir, "window")
	data, _ := os.ReadFile(file)
	preferred, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || preferred < 0 {
		preferred = 0
	}
	if e.ids, err = openRanges(preferred); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(e.ids.window())), 0o600)
}

// makeShare makes the directory that a sandbox sees as agent.Mount, or gives it
// the agent of this program in the place of an earlier one's.
func (e *Engine) makeShare(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, "agent")
	err := os.Link(e.agent, path)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := os.Stat(path)
	if err != nil {
		return err
	}
	if ours, err := os.Stat(e.agent); err != nil || os.SameFile(ours, there) {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Link(e.agent, path)
}

// room lets a sandbox in, or refuses it while the disk could not hold what
// all of them may still write. Only those count that were let in: of two that
// find room for one, one gets it. A spare one leaves room for another, and a
// durable one counts while it runs.
func (e *Engine) room(b *box) error {
	var st unix.Statfs_t
	if err := unix.Statfs(e.dir, &st); err != nil {
		return fmt.Errorf("looking at the disk: %w", err)
	}
	free, need := int64(st.Bavail)*st.Bsize, e.minFree+b.mayWrite()
	if b.record.Spec.Spare {
		need += b.disk()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.letIn {
		return nil
	}
	for _, o := range e.boxes {
		if o.letIn {
			need += o.mayWrite()
		}
	}
	if free < need {
		return &engine.HostFullError{What: "disk space at " + e.dir, Free: free, Need: need}
	}
	b.letIn = true
	return nil
}

// mayWrite is by how much its layer may still grow, in bytes.
func (b *box) mayWrite() int64 {
	var layer unix.Stat_t
	if err := unix.Stat(b.layer(), &layer); err != nil {
		return b.disk()
	}
	return b.disk() - min(b.disk(), layer.Blocks*512)
}

// serverID returns the id kept in file, making one at first.
func serverID(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err == nil && engine.CheckID(string(data)) == nil {
		return string(data), nil
	}
	id := strings.ToLower(rand.Text()[:10])
	return id, os.WriteFile(file, []byte(id), 0o600)
}

// installAgent writes the agent's program where sandboxes can link to it. An
// older one may still be running, so a new one gets a name of its own. One
// that is there is read: a power cut may have emptied it, and no sandbox would
// ever start again.
func installAgent(dir string, program []byte) (string, error) {
	if len(program) == 0 {
		return "", errors.New("this build has no agent in it: build with `make build`")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256(program)))
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, program) {
		return path, nil
	}
	part := path + ".part"
	if err := os.WriteFile(part, program, 0o755); err != nil {
		return "", err
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}
