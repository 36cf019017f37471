package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// runDir holds, in the private mount namespace alone, a tmpfs with a directory
// per sandbox: its OCI bundle, and its mounts. On the host it is an empty
// directory beside the range locks.
const runDir = "/run/belljar"

// ociState is where the OCI runtime keeps its state, in the same tmpfs. It may
// go with the namespace: what it is needed for is over when a container runs.
const ociState = runDir + "/.oci"

// devices is a tmpfs with the device files of all sandboxes, which see it
// read-only. Were it theirs, the runtime would mount each file by itself, since
// in a user namespace none can be made.
const devices = runDir + "/.dev"

// makeDevices mounts a file system with the devices that the OCI runtime
// specification asks for, and the links.
func makeDevices(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("belljar", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return err
	}
	for name, dev := range map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
		"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
	} {
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, unix.S_IFCHR, int(dev)); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"core": "/proc/kcore", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// mountNamespace is a mount namespace of the engine's own, in which all its
// mounts are made and the OCI runtime is run. Nothing of it shows on the
// host, so no user of the host can reach a setuid file of an image; and it
// goes away with the process that holds it, however that ends, so a crash
// leaves no mount behind. Running sandboxes have copies of what they need.
type mountNamespace struct {
	fd      *os.File
	standIn string      // what stands in for the unified hierarchy, or ""
	tasks   chan func() // to a thread in the namespace that has nothing to do
	ended   chan struct{}
}

// newMountNamespace makes the namespace. It follows the host's mounts and
// passes nothing back. On a hybrid host an empty file system stands in for the
// unified cgroup hierarchy: crun refuses to run while it sees one with a
// controller beside the version 1 ones. It makes groups there all the same.
func newMountNamespace(unified string) (*mountNamespace, error) {
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, err
	}
	n := &mountNamespace{standIn: unified, tasks: make(chan func()), ended: make(chan struct{})}
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("making a mount namespace (the native engine runs as root): %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("detaching the mount namespace (/ must be a mount, which in a bare chroot it is not): %w", err)
		}
		if unified != "" {
			if err := unix.Mount("belljar", unified, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
				return fmt.Errorf("hiding %s: %w", unified, err)
			}
		}
		// The runtime looks up paths as the sandbox's root, who is no one
		// here: the directories must let everyone pass.
		if err := unix.Mount("belljar", runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
			return fmt.Errorf("mounting %s: %w", runDir, err)
		}
		if err := makeDevices(devices); err != nil {
			return fmt.Errorf("making device files: %w", err)
		}
		var err error
		n.fd, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	return n, err
}

// do runs f on a thread inside the namespace, in a working directory that f
// may change. Programs started by f run in it as well. Goroutines that f
// starts do not.
func (n *mountNamespace) do(f func() error) error {
	done := make(chan error, 1)
	task := func() { done <- f() }
	select {
	case n.tasks <- task:
	default:
		go func() {
			if err := onOwnThread(func() error { return n.serve(task) }); err != nil {
				done <- fmt.Errorf("entering the mount namespace: %w", err)
			}
		}()
	}
	return <-done
}

// idleThread is how long a thread stays in the namespace with nothing to do. A
// start needs a few, and making one takes longer than most of what they do.
const idleThread = 10 * time.Second

// serve enters the namespace and works there, first on the given task. It
// fails if it has not begun with that.
func (n *mountNamespace) serve(task func()) error {
	// setns refuses a thread that shares its root and working directory.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(n.fd.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	idle := time.NewTimer(idleThread)
	defer idle.Stop()
	for {
		task()
		if err := unix.Chdir("/"); err != nil {
			return nil // this thread is of no more use
		}
		idle.Reset(idleThread)
		select {
		case task = <-n.tasks:
		case <-idle.C:
			return nil
		case <-n.ended:
			return nil
		}
	}
}

// close lets the threads go that have nothing to do. Call it once.
func (n *mountNamespace) close() error {
	close(n.ended)
	return n.fd.Close()
}

// clear takes away what was made in the namespace for a sandbox: its mounts,
// and its group where that is none. It is idempotent.
func (n *mountNamespace) clear(p place, group string) error {
	return n.do(func() error { return n.clearInside(p, group) })
}

// clearInside is clear for who is inside the namespace.
func (n *mountNamespace) clearInside(p place, group string) error {
	err := p.clear()
	if n.standIn != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(n.standIn, group)))
	}
	return err
}

// onOwnThread runs f on a thread that ends with it, so that what f does to
// the thread's namespaces stays there.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		// The main thread never ends, and shows as the whole process under
		// /proc/self. While it is held here, f gets another one.
		done <- onOwnThread(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}

// place is where a sandbox's mounts are in the namespace.
type place struct{ id string }

func (p place) dir() string    { return filepath.Join(runDir, p.id) }
func (p place) layer() string  { return filepath.Join(p.dir(), "layer") }
func (p place) rootfs() string { return filepath.Join(p.dir(), "rootfs") }
func (p place) home() string   { return filepath.Join(p.dir(), "home") }
func (p place) share() string  { return filepath.Join(p.dir(), "share") }

// clear takes the mounts of a place away. Call it inside the namespace. It is
// idempotent.
func (p place) clear() error {
	entries, err := os.ReadDir(p.dir())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// The overlay first: it stands on the others.
	targets := []string{p.rootfs(), p.home()}
	for _, e := range entries {
		targets = append(targets, filepath.Join(p.dir(), e.Name()))
	}
	for _, t := range targets {
		for {
			err := unix.Unmount(t, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err == unix.EINVAL || err == unix.ENOENT {
				break // no mount (left) there
			}
			if err != nil {
				return fmt.Errorf("unmounting %s: %w", t, err)
			}
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(p.dir(), e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(p.dir())
}
