// Package engine defines what makes sandboxes: the Engine contract that the
// native, Docker, Podman and Kubernetes engines fulfil alike.
//
// Identical behaviour on every engine is the product's promise. It is kept by
// the suite in enginetest; where engines cannot be alike, Properties says so.
package engine

import (
	"context"
	"fmt"
	"net"
	"time"
)

// An Engine makes sandboxes and gives access to the agent, process 1 of each.
//
// All methods are safe for concurrent use, also for the same sandbox. A
// method whose context ends returns early with the context's error; the
// sandbox is then in either the old or the new state, and List tells which.
// No method leaves anything behind that List does not report.
type Engine interface {
	// Properties says what this engine really enforces on this host. It does
	// not change while the engine is open.
	Properties() Properties

	// Create makes a sandbox that does not run yet. It fails with ErrExists
	// if the identifier is taken, ErrNoImage if the image is not present, and
	// a *HostFullError if the host has too little room for another sandbox,
	// or, if this one is spare, for one more beside it. A failed Create leaves
	// nothing.
	Create(ctx context.Context, spec Spec) error

	// Start runs the agent of a created or stopped sandbox. Starting a
	// running one is no error.
	Start(ctx context.Context, id string) error

	// Claim gives a running sandbox that was made with Spec.Spare to a caller:
	// its labels and expiry become those given, and it gets its full share of
	// the CPU. All that holds when Claim returns. It fails with ErrNotRunning
	// if the sandbox has ended meanwhile.
	Claim(ctx context.Context, id string, labels map[string]string, expires time.Time) error

	// Connect returns a byte stream on which the agent serves its HTTP/2 API,
	// waiting until the agent offers one. Each call returns a new stream; one
	// is open at a time, and a new one can be had after the old one is
	// closed. It fails with ErrNotRunning if the sandbox is not running or
	// ends while waiting. What comes out of the stream is hostile input.
	Connect(ctx context.Context, id string) (net.Conn, error)

	// Stop ends every process of a sandbox. Its files stay until Remove.
	// Stopping a stopped sandbox is no error.
	Stop(ctx context.Context, id string) error

	// Remove ends a sandbox and deletes all of it. It is idempotent: removing
	// what does not exist is no error, and what failed halfway is retried by
	// calling it again.
	Remove(ctx context.Context, id string) error

	// List reports every sandbox of this server, those included which an
	// earlier process of it made, in the order of their identifiers.
	List(ctx context.Context) ([]Status, error)

	// Inspect reads limits and usage of a sandbox back from where they are
	// enforced, not from what was asked. ErrNotRunning if it does not run.
	Inspect(ctx context.Context, id string) (Receipt, error)

	// Close lets go of the engine. Running sandboxes go on.
	Close() error
}

// Rebaser is an engine that can give a sandbox another image.
type Rebaser interface {
	// Rebase gives a stopped durable sandbox an image, which may be the one it
	// has. What is in /sandbox stays; what the sandbox has written elsewhere is
	// gone at its next start. It fails with ErrRunning if the sandbox runs, and
	// with ErrNoImage if the image is not present.
	Rebase(ctx context.Context, id, image string) error
}

// Spec describes a sandbox to make.
type Spec struct {
	// ID names the sandbox: 1 to 40 of [a-z0-9-], unique on this server.
	ID string
	// Labels are kept with the sandbox and reported by List.
	Labels map[string]string
	// Expires is when the sandbox should be removed by a sweep, whoever made
	// it; zero is never. Engines keep it durably and do not act on it.
	Expires time.Time
	// Image is an image's name or digest.
	Image string
	// Limits apply to the sandbox as a whole. Every field must be positive,
	// besides Limits.Tmp.
	Limits Limits
	// Durable is for a sandbox that is stopped and started again over days:
	// what is in it outlives a crash of the host as on any other disk, and
	// /sandbox is kept apart from the rest of the root filesystem. Of one that
	// is not, only a stop in good order leaves something.
	Durable bool
	// Spare is for a sandbox that is made before somebody needs it: until it
	// is claimed, it gets CPU time that others leave.
	Spare bool
	// Network is what it may reach.
	Network Network
}

// Limits bound one sandbox.
type Limits struct {
	// Memory is in bytes and covers memory, swap and tmpfs pages together.
	Memory int64
	// CPUs is in cores; 1.5 is one and a half.
	CPUs float64
	// PIDs bounds processes and threads together.
	PIDs int64
	// Tmp is the size of /tmp, in bytes. It is memory. With 0, /tmp is part of
	// the writable layer.
	Tmp int64
	// Disk is the size of the writable layer, in bytes.
	Disk int64
	// Inodes bounds the number of files in the writable layer.
	Inodes int64
}

// State is where a sandbox is in its life.
type State string

// The states of a sandbox. A sandbox whose processes ended by themselves is
// stopped.
const (
	Created State = "created"
	Running State = "running"
	Stopped State = "stopped"
)

// Status describes a sandbox as List reports it.
type Status struct {
	ID      string
	State   State
	Labels  map[string]string
	Image   string    // as in Spec
	Digest  string    // of that image when Create was called
	Created time.Time // when Create was called
	Expires time.Time // as in Spec
}

// Properties says what an engine enforces, and how it differs from others.
type Properties struct {
	// Engine names the engine and what it runs on, such as
	// "native (crun 1.8.1, cgroup v1)".
	Engine string
	// Isolated is whether code inside is kept from the host. Only engines
	// for tests are not.
	Isolated bool
	// Unenforced names each limit that this host cannot enforce (a key of
	// Receipt's JSON, such as "memory"), with the reason.
	Unenforced map[string]string
}

// Receipt is what a sandbox really got, read back from the kernel. Its JSON
// is what users see as `limits`.
type Receipt struct {
	Memory Limit `json:"memory" jsonschema:"in bytes"`
	CPUs   Limit `json:"cpus" jsonschema:"in cores"`
	PIDs   Limit `json:"pids" jsonschema:"number of processes and threads"`
	Tmp    Limit `json:"tmp" jsonschema:"size of /tmp in bytes"`
	Disk   Limit `json:"disk" jsonschema:"in bytes"`
	Inodes Limit `json:"inodes" jsonschema:"number of files"`
	// Network is what the sandbox can reach, in words.
	Network string `json:"network" jsonschema:"what the sandbox can reach"`

	// NetworkMissing is why there is not the network that was asked for, if so.
	NetworkMissing string `json:"-"`
	// OOMKills counts processes killed for want of memory.
	OOMKills int64 `json:"-"`
	// MemoryUsed is how much memory the sandbox uses now, in bytes, without
	// what the kernel would give up at need; 0 if that is not known.
	MemoryUsed int64 `json:"-"`
}

// Limit is one limit as the kernel holds it.
type Limit struct {
	// Value is in the unit of the field of the same name in Limits.
	Value float64 `json:"value"`
	// Enforced is whether the kernel holds the sandbox to it.
	Enforced bool `json:"enforced"`
	// Note says what counts, or why the limit is not enforced.
	Note string `json:"note,omitempty"`
}

// Unenforced names the limits that the kernel does not hold the sandbox to, and
// the network if it is not the one asked for, in the order of their fields,
// with the reason: "memory (no such cgroup)".
func (r Receipt) Unenforced() []string {
	var names []string
	for _, f := range []struct {
		name string
		l    Limit
	}{
		{"memory", r.Memory}, {"cpus", r.CPUs}, {"pids", r.PIDs},
		{"tmp", r.Tmp}, {"disk", r.Disk}, {"inodes", r.Inodes},
	} {
		if !f.l.Enforced {
			names = append(names, fmt.Sprintf("%s (%s)", f.name, f.l.Note))
		}
	}
	if r.NetworkMissing != "" {
		names = append(names, fmt.Sprintf("network (%s)", r.NetworkMissing))
	}
	return names
}
