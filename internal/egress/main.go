package egress

import (
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// socketFD is the descriptor of the socket that the process gets from the
// server, its only one beside the standard streams.
const socketFD = 3

// maxProcs bounds the threads that run stacks: netstack starts as many
// goroutines for every sandbox.
const maxProcs = 4

// defaultIdle is how long the process stays with neither a sandbox nor a
// server.
const defaultIdle = 3 * time.Minute

// Main is the process that has the networks, started by Start. It first gives
// up all privileges, by running its program again as nobody in particular.
// program tells builds apart.
func Main(program string, args []string) error {
	flags := flag.NewFlagSet("net", flag.ContinueOnError)
	user := flags.Int("user", 0, "user and group id to become")
	owner := flags.Int("owner", 0, "user id whose orders count")
	confined := flags.Bool("confined", false, "privileges are given up already")
	idle := flags.Duration("idle", defaultIdle, "how long to stay with nothing to do")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*confined {
		if *user <= 0 {
			return fmt.Errorf("the network's process is started by the server")
		}
		return confine(*user, append([]string{os.Args[0], "net", "--confined"}, args...))
	}
	if err := finishConfinement(); err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(runtime.NumCPU(), maxProcs))
	debug.SetGCPercent(100)
	socket := os.NewFile(socketFD, "socket")
	generic, err := net.FileListener(socket)
	socket.Close()
	if err != nil {
		return fmt.Errorf("listening on descriptor %d: %w", socketFD, err)
	}
	l, ok := generic.(*net.UnixListener)
	if !ok {
		return fmt.Errorf("descriptor %d is no Unix socket", socketFD)
	}
	l.SetUnlinkOnClose(false)
	h, err := newHost()
	if err != nil {
		return err
	}
	p := &process{host: h, program: program, owner: *owner, idle: *idle}
	return p.serve(l)
}

// confine runs the program again without privileges, in an empty directory as
// its root, which is the working directory. What it changes is this thread's,
// and holds for the whole process from the execve(2) on, which only this
// thread survives.
func confine(user int, argv []string) error {
	runtime.LockOSThread()
	exe, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Whatever else the server's own starter has left open ends here.
	if err := unix.CloseRange(socketFD+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing descriptors: %w", err)
	}
	raiseFiles()
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering an empty root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	for c := range uintptr(64) {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // EINVAL for those the kernel does not know
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, uintptr(user), uintptr(user), uintptr(user)},
		{unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return fmt.Errorf("becoming user %d: %w", user, errno)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return execFile(exe, argv)
}

// raiseFiles lets the process have many connections.
func raiseFiles() {
	const want = 1 << 17
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return
	}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) != nil {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files.Max, Max: files.Max})
	}
}

// finishConfinement checks that nothing was kept, and closes the process to
// others of its user.
func finishConfinement() error {
	if os.Geteuid() == 0 || os.Getegid() == 0 {
		return fmt.Errorf("the network's process does not run as root")
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
