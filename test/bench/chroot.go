package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"belljar/internal/lang"
)

// chroot is an image's root filesystem under a writable layer in memory, with
// /dev and /proc, in a mount namespace of its own.
type chroot struct {
	ns   *os.File
	dir  string // of the mounts
	root string
	env  []string
}

// newChroot makes one, with the files of runtimes in it.
func newChroot(img image, runtimes []lang.Runtime) (*chroot, error) {
	dir, err := os.MkdirTemp("", "belljar-bench-")
	if err != nil {
		return nil, err
	}
	c := &chroot{dir: dir, root: filepath.Join(dir, "root")}
	c.env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}, img.Config.Env...)
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := c.mount(img.rootfs); err != nil {
			return err
		}
		for _, r := range runtimes {
			if err := c.install(r); err != nil {
				return err
			}
		}
		var err error
		c.ns, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		os.Remove(dir)
		return nil, fmt.Errorf("making a chroot of the image: %w", err)
	}
	return c, nil
}

func (c *chroot) close() error { return errors.Join(c.ns.Close(), os.Remove(c.dir)) }

// mount puts the root filesystem together, inside the mount namespace.
func (c *chroot) mount(rootfs string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("bench", c.dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, name := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(c.dir, name), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", rootfs, c.dir, c.dir)
	return errors.Join(
		unix.Mount("overlay", c.root, "overlay", 0, layers),
		unix.Mount("proc", filepath.Join(c.root, "proc"), "proc", 0, ""),
		unix.Mount("/dev", filepath.Join(c.root, "dev"), "", unix.MS_BIND|unix.MS_REC, ""),
	)
}

// install puts a runtime's files where its command looks for them.
func (c *chroot) install(r lang.Runtime) error {
	for _, f := range r.Files {
		path := filepath.Join(c.root, r.Dir(), f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// workdir is where scripts run, as in a sandbox.
const workdir = "/sandbox"

// prepare leaves nothing but the script in the working directory.
func (c *chroot) prepare(_ context.Context, w workload) error {
	dir := filepath.Join(c.root, workdir)
	return c.do(func() error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, "output"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, w.runtime.Script()), []byte(w.script), 0o644)
	})
}

func (c *chroot) run(ctx context.Context, w workload) error {
	cmd := exec.CommandContext(ctx, w.file[0], w.file[1:]...)
	cmd.Env, cmd.Dir = c.env, workdir
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root}
	return c.do(func() error { return w.finish(cmd) })
}

// check looks for the file that the script makes.
func (c *chroot) check(_ context.Context, w workload) error {
	if w.makes == "" {
		return nil
	}
	return c.do(func() error {
		for _, dir := range []string{workdir, workdir + "/output"} {
			if info, err := os.Stat(filepath.Join(c.root, dir, w.makes)); err == nil && info.Size() > 0 {
				return nil
			}
		}
		return fmt.Errorf("%s made no %s", w.name, w.makes)
	})
}

// version runs a command in the chroot and returns the first line of what it
// prints.
func (c *chroot) version(argv ...string) string {
	cmd := exec.Command("/usr/bin/env", argv...)
	cmd.Env, cmd.Dir = c.env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root}
	var out []byte
	err := c.do(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return "not there"
	}
	return line
}

func (c *chroot) do(f func() error) error { return inNamespace(c.ns, f) }

// inNamespace runs f on a thread inside a mount namespace.
func inNamespace(ns *os.File, f func() error) error {
	return onOwnThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
			return err
		}
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}
