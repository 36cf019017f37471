// Prober tries, from inside a sandbox, what a sandbox must not be able to do,
// and prints a line for each: its name and the error, or "allowed". Run as
// "euid", it prints its effective user; as "prober ping ADDRESS" it pings once,
// without privilege.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

func main() {
	if filepath.Base(os.Args[0]) == "euid" {
		fmt.Println(os.Geteuid())
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "ping" {
		if err := ping(os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	for _, try := range []struct {
		name string
		f    func() error
	}{
		{"socket AF_ALG", socket(unix.AF_ALG, unix.SOCK_SEQPACKET)},
		{"socket AF_VSOCK", socket(unix.AF_VSOCK, unix.SOCK_STREAM)},
		{"socket AF_PACKET", socket(unix.AF_PACKET, unix.SOCK_RAW)},
		{"socket raw", socket(unix.AF_INET, unix.SOCK_RAW)},
		{"unshare user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
		{"unshare mount namespace", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
		{"clone user namespace", call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))},
		{"clone3 user namespace", clone3},
		{"mount", func() error { return unix.Mount("x", "/mnt", "tmpfs", 0, "") }},
		{"umount", func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) }},
		{"remount read-write", func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		{"mknod", func() error { return unix.Mknod("/root/sda", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))) }},
		{"bpf", call(unix.SYS_BPF, 0)},
		{"perf_event_open", call(unix.SYS_PERF_EVENT_OPEN, 0)},
		{"io_uring_setup", call(unix.SYS_IO_URING_SETUP, 8)},
		{"userfaultfd", call(unix.SYS_USERFAULTFD, 0)},
		{"keyctl", call(unix.SYS_KEYCTL, 0)},
		{"add_key", call(unix.SYS_ADD_KEY, 0)},
		{"open_by_handle_at", call(unix.SYS_OPEN_BY_HANDLE_AT, 0)},
		{"init_module", call(unix.SYS_INIT_MODULE, 0)},
		{"kexec_load", call(unix.SYS_KEXEC_LOAD, 0)},
		{"reboot", call(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1)},
		{"swapon", call(unix.SYS_SWAPON, 0)},
		{"settimeofday", call(unix.SYS_SETTIMEOFDAY, 0)},
		{"setns", call(unix.SYS_SETNS, 0)},
		{"pivot_root", call(unix.SYS_PIVOT_ROOT, 0)},
		{"write the agent", write("/belljar/run/agent")},
		{"write beside the agent", write("/belljar/run/more")},
		{"remove the socket", func() error { return os.Remove("/belljar/run/agent.sock") }},
		{"write core_pattern", write("/proc/sys/kernel/core_pattern")},
		{"write sysrq-trigger", write("/proc/sysrq-trigger")},
		{"write oom_score_adj of process 1 down", func() error { return os.WriteFile("/proc/1/oom_score_adj", []byte("-1000"), 0) }},
		{"read kcore", read("/proc/kcore")},
		{"read keys", read("/proc/keys")},
		{"read firmware", read("/sys/firmware/memmap")},
		{"write sysfs", write("/sys/kernel/uevent_helper")},
		{"write memory.max", write("/sys/fs/cgroup/memory.max")},
		{"make a cgroup", func() error { return os.Mkdir("/sys/fs/cgroup/more", 0o755) }},
		{"mount cgroup2", func() error { return unix.Mount("x", "/mnt", "cgroup2", 0, "") }},
	} {
		result := "allowed"
		if err := try.f(); err != nil {
			result = err.Error()
			if errno := unix.Errno(0); errors.As(err, &errno) {
				result = unix.ErrnoName(errno)
			}
		}
		fmt.Printf("%s: %s\n", try.name, result)
	}
}

func ping(addr string) error {
	c, err := icmp.ListenPacket("udp4", "0.0.0.0")
	if err != nil {
		return err
	}
	m, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Data: []byte("ping")}}).Marshal(nil)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.WriteTo(m, &net.UDPAddr{IP: net.ParseIP(addr)}); err != nil {
		return err
	}
	_, _, err = c.ReadFrom(make([]byte, 1500))
	return err
}

func socket(family, kind int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// call makes a system call with one argument and zeros.
func call(number, arg uintptr) func() error {
	return func() error {
		r, _, errno := unix.RawSyscall6(number, arg, 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if number == unix.SYS_CLONE && r == 0 {
			os.Exit(0) // the child that should not be
		}
		return nil
	}
}

func clone3() error {
	args := [11]uint64{unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)}
	r, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return errno
	}
	if r == 0 {
		os.Exit(0)
	}
	return nil
}

func write(path string) func() error {
	return func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
}

// read fails where there is nothing to read, which is how a path is masked.
func read(path string) func() error {
	return func() error {
		data := make([]byte, 16)
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Read(data)
		return err
	}
}
