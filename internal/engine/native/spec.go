package native

import (
	"fmt"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// capabilities are Docker's defaults without NET_RAW and MKNOD.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER",
	"CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// maskedPaths and readonlyPaths are Docker's and containerd's.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore",
		"/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
	}
)

// container is what differs between the containers that the engine runs.
type container struct {
	rootfs  string
	ids     idRange
	group   string // cgroup
	argv    []string
	env     []string
	dir     string
	user    specs.User
	limits  engine.Limits // zero fields are not limited
	spare   bool          // as in engine.Spec
	mounts  []specs.Mount // beside the usual ones
	hostNet bool
	filter  string // a compiled system call filter, as filterAnnotation has it
}

// spec returns the OCI configuration of a container.
func (c container) spec(cg cgroups) (*specs.Spec, error) {
	s := &specs.Spec{
		Version:  "1.0.2", // what crun and runc of 2023 accept
		Hostname: "sandbox",
		Root:     &specs.Root{Path: c.rootfs},
		Process: &specs.Process{
			Args: c.argv, Env: c.env, Cwd: c.dir, User: c.user,
			NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			Rlimits: rlimits(),
		},
		Mounts: slices.Concat(c.baseMounts(cg), c.mounts),
		Linux: &specs.Linux{
			UIDMappings:   []specs.LinuxIDMapping{{ContainerID: 0, HostID: c.ids.base, Size: rangeSize}},
			GIDMappings:   []specs.LinuxIDMapping{{ContainerID: 0, HostID: c.ids.base, Size: rangeSize}},
			CgroupsPath:   c.group,
			Namespaces:    c.namespaces(),
			Resources:     c.resources(cg),
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
		},
	}
	if c.filter != "" {
		s.Annotations = map[string]string{filterAnnotation: c.filter}
		// Not used then, and short. Nothing starts where it is used after all.
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		return s, nil
	}
	var err error
	s.Linux.Seccomp, err = syscallFilter(s)
	return s, err
}

func (c container) namespaces() []specs.LinuxNamespace {
	kinds := []specs.LinuxNamespaceType{
		specs.UserNamespace, specs.MountNamespace, specs.PIDNamespace,
		specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace,
	}
	if !c.hostNet {
		kinds = append(kinds, specs.NetworkNamespace)
	}
	var ns []specs.LinuxNamespace
	for _, k := range kinds {
		ns = append(ns, specs.LinuxNamespace{Type: k})
	}
	return ns
}

func (c container) baseMounts(cg cgroups) []specs.Mount {
	safe := []string{"nosuid", "noexec", "nodev"}
	with := func(more ...string) []string { return slices.Concat(safe, more) }
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: safe},
		{Destination: "/dev", Type: "bind", Source: devices, Options: []string{"bind", "ro", "nosuid", "noexec"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: with("mode=1777", "size=64m")},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: safe},
	}
	if !c.hostNet {
		// The kernel gives a sysfs only to the owner of the network.
		m = append(m, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: with("ro")})
		if cg.v2() {
			// Programs size their heaps and pools by what they read there.
			m = append(m, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: with("ro", "relatime")})
		}
	}
	if c.limits.Tmp > 0 {
		m = append(m, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", c.limits.Tmp)}})
	}
	return m
}

func (c container) resources(cg cgroups) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if l := c.limits.Memory; l > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l}
		// Swap is the sum of memory and swap. Version 1 may lack the file.
		if cg.v2() || readNumber(cg.legacy["memory"].point, "memory.memsw.limit_in_bytes") > 0 {
			r.Memory.Swap = &l
		}
	}
	if l := c.limits.CPUs; l > 0 {
		period := uint64(100_000)
		quota := int64(l * float64(period))
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if c.spare {
		if r.CPU == nil {
			r.CPU = &specs.LinuxCPU{}
		}
		shares := spareShares
		r.CPU.Shares = &shares
	}
	if l := c.limits.PIDs; l > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l}
	}
	return r
}

// spareShares is the CPU weight of a spare sandbox, where others have 1024.
var spareShares uint64 = 32

// rlimits lower what a process may raise for itself, never above what this
// process has: that would need a privilege which a container may lack.
func rlimits() []specs.POSIXRlimit {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		files.Max = 1024
	}
	hard := min(files.Max, 65536)
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: min(hard, 1024), Hard: hard},
		{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
	}
}

// syscallFilter is Docker's profile, which denies AF_ALG and, without
// CAP_SYS_ADMIN, new user namespaces. It cannot see the address family in the
// 32-bit socketcall, so that one goes; 32-bit C libraries have used the
// direct calls since 2016.
//
// It depends on the capabilities, which are the same for all, and on the
// kernel, so it is made once; nobody may change what is returned.
func syscallFilter(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	defaultFilter.once.Do(func() { defaultFilter.filter, defaultFilter.err = makeFilter(s) })
	return defaultFilter.filter, defaultFilter.err
}

var defaultFilter struct {
	once   sync.Once
	filter *specs.LinuxSeccomp
	err    error
}

func makeFilter(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	filter, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, fmt.Errorf("making the system call filter: %w", err)
	}
	for i := range filter.Syscalls {
		names := filter.Syscalls[i].Names
		filter.Syscalls[i].Names = slices.DeleteFunc(names, func(n string) bool { return n == "socketcall" })
	}
	return filter, nil
}

// agentMount shows the sandbox its agent and the socket to the server.
func agentMount(dir string) specs.Mount {
	return specs.Mount{Destination: agent.Mount, Type: "bind", Source: dir,
		Options: []string{"bind", "ro", "nosuid", "nodev"}}
}
