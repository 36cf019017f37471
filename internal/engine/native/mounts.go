package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"belljar/internal/agent"
)

// mountRootfs puts a root filesystem together at p: the read-only lower
// directories, topmost first, seen through the range's ids, under the
// writable upper directory. Call it inside the mount namespace.
//
// The lower ones are named relative to p, where the thread goes for it: the
// options of a mount are at most a page, and an image may have many layers.
// More options go to the overlay as they are.
func mountRootfs(p place, lower []string, upper, work string, userns *os.File, more ...string) error {
	if err := os.MkdirAll(p.rootfs(), 0o711); err != nil {
		return err
	}
	if err := unix.Chdir(p.dir()); err != nil {
		return err
	}
	var names []string
	for i, dir := range lower {
		name := fmt.Sprintf("l%d", i)
		if err := mountMapped(dir, filepath.Join(p.dir(), name), userns); err != nil {
			return err
		}
		names = append(names, name)
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,%s", strings.Join(names, ":"), upper, work, overlayOptions)
	opts = strings.Join(append([]string{opts}, more...), ",")
	if len(opts) >= unix.Getpagesize() {
		return fmt.Errorf("the image has too many layers (%d) for one mount", len(lower))
	}
	if err := unix.Mount("overlay", p.rootfs(), "overlay", unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mounting the root filesystem: %w", err)
	}
	return nil
}

// mountMapped mounts dir at target, read-only, with the ids on disk shifted
// into the range, so that one copy of an image serves every range.
func mountMapped(dir, target string, userns *os.File) error {
	if err := os.MkdirAll(target, 0o711); err != nil {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("opening image %s: %w", dir, err)
	}
	defer unix.Close(fd)
	return placeMapped(fd, dir, target, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV, userns)
}

// placeMapped puts a mount that is nowhere yet, of what source names, at
// target, with more attributes and its ids shifted.
func placeMapped(mount int, source, target string, attributes uint64, userns *os.File) error {
	err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | attributes,
		Userns_fd: uint64(userns.Fd()),
	})
	if err != nil {
		return fmt.Errorf("shifting the ids of %s (needs Linux 5.19 and a file system with idmapped mounts): %w", source, err)
	}
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s: %w", source, err)
	}
	return nil
}

// mountShare binds the directory that the sandbox sees as agent.Mount.
func mountShare(dir, target string) error {
	if err := os.MkdirAll(target, 0o711); err != nil {
		return err
	}
	if err := unix.Mount(dir, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting the agent's directory: %w", err)
	}
	return nil
}

// mountLayer mounts a layer file at target, seen through the range's ids. On
// disk, a layer has the sandbox's own ids.
//
// With cgroup v2 the kernel charges a loop device's work to the writer: pages
// of the layer file count in the sandbox's memory limit, beside those of the
// files in the layer, and dirty ones cannot be given up at need. A writer that
// is faster than the disk would be killed. Direct, there are no such pages.
func mountLayer(file, target string, userns *os.File, cg cgroups, options []string, format func(dev *os.File) error) error {
	dev, err := attachLoop(file, cg.v2())
	if err != nil {
		return err
	}
	defer dev.Close() // the mount keeps the device; the device goes with it
	if err := format(dev); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o711); err != nil {
		return err
	}
	if err := mountExt4(dev.Name(), target, userns, options); err != nil {
		return fmt.Errorf("mounting the writable layer: %w", err)
	}
	return nil
}

// Options of a layer's mount, which are flags or key=value. The kernel need not
// fill inode tables with zeros, which the file reads as anyway.
var (
	// A layer of a run does not outlive a crash. So nothing is flushed to the
	// disk when it is unmounted, which every run would wait for.
	runOptions     = []string{"discard", "noinit_itable", "nobarrier"}
	durableOptions = []string{"discard", "noinit_itable", "errors=remount-ro"}
)

func mountExt4(device, target string, userns *os.File, options []string) error {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", device)
	for _, option := range options {
		if key, value, ok := strings.Cut(option, "="); ok {
			err = errors.Join(err, unix.FsconfigSetString(fs, key, value))
		} else {
			err = errors.Join(err, unix.FsconfigSetFlag(fs, option))
		}
	}
	if err = errors.Join(err, unix.FsconfigCreate(fs)); err != nil {
		return err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return placeMapped(mount, device, target, 0, userns)
}

// Directories of a layer that overlays write to.
const (
	rootUpper, rootWork = "upper", "work"        // the root filesystem
	homeUpper, homeWork = "sandbox", "home-work" // /sandbox, of a durable sandbox
)

// makeUpper makes the two directories that an overlay writes to, if missing,
// owned by the range's root.
func makeUpper(upper, work string, ids idRange) error {
	for _, d := range []string{upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
		if err := os.Chown(d, int(ids.base), int(ids.base)); err != nil {
			return err
		}
	}
	return nil
}

// overlayOptions leave out what would tie the layers to each other or to a
// kernel, and what would answer to attributes that an image can carry.
const overlayOptions = "index=off,metacopy=off,redirect_dir=off,xino=off"

// mountHome puts /sandbox of a durable sandbox together: what the image has
// there, under the directory that the sandbox writes to. So it can be kept
// where the rest of the root filesystem is not. Call it inside the mount
// namespace.
func mountHome(p place, image, upper, work string, userns *os.File) error {
	lower := filepath.Join(p.dir(), "h0")
	from := filepath.Join(image, agent.Workdir)
	if st, err := os.Lstat(from); err == nil && st.IsDir() {
		if err := mountMapped(from, lower, userns); err != nil {
			return err
		}
	} else if err := os.MkdirAll(lower, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(p.home(), 0o711); err != nil {
		return err
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,%s", lower, upper, work, overlayOptions)
	if err := unix.Mount("overlay", p.home(), "overlay", unix.MS_NODEV|unix.MS_NOSUID, opts); err != nil {
		return fmt.Errorf("mounting /sandbox: %w", err)
	}
	return nil
}
