package native

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A writable layer is a sparse file that holds an ext4 filesystem, whose size
// and inode count are the sandbox's disk limit. Formatting one takes longer
// than copying the few blocks that a fresh filesystem consists of, so there
// is a template for each pair of size and inode count.
type layers struct {
	dir string // of the templates

	mu sync.Mutex // held while a template is made
}

// create makes a layer file at path.
func (l *layers) create(path string, bytes, inodes int64) error {
	template, err := l.template(bytes, inodes)
	if err != nil {
		return err
	}
	if err := copySparse(path, template); err != nil {
		return fmt.Errorf("making the writable layer: %w", err)
	}
	return nil
}

func (l *layers) template(bytes, inodes int64) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(l.dir, fmt.Sprintf("ext4-%d-%d", bytes, inodes))
	if info, err := os.Stat(path); err == nil && info.Size() == bytes {
		return path, nil
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return "", err
	}
	part := path + ".part"
	defer os.Remove(part)
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	err = f.Truncate(bytes)
	f.Close()
	if err != nil {
		return "", err
	}
	// No journal and no copies of the superblock: a layer of a run does not
	// outlive a crash. No reserve: all of the limit is the sandbox's. A fresh
	// sparse file reads as zeros, so inode tables need no writing. What is
	// written is what every layer has to copy.
	cmd := exec.Command(sbin("mkfs.ext4"), "-q", "-F", "-O", "^has_journal,^resize_inode,sparse_super2", "-m", "0",
		"-N", strconv.FormatInt(inodes, 10), "-E", "lazy_itable_init=1,nodiscard,num_backup_sb=0", part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("formatting a layer of %d MiB with %d inodes: %w: %s", bytes>>20, inodes, err, strings.TrimSpace(string(out)))
	}
	// Every later layer is a copy of it: it must not come out of a power cut
	// under its name and without its content.
	if err := syncFile(part); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// copySparse copies src to a new file dst, holes as holes.
func copySparse(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if at, err = unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, at-data)); err != nil {
			return err
		}
	}
}

// attachLoop attaches file to a free loop device that detaches itself when
// the last user is gone. Close the device once it is mounted. A direct one
// passes by the cache of the host's file system, if that one can.
func attachLoop(file string, direct bool) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices are not to be had (modprobe loop): %w", err)
	}
	defer control.Close()
	config := &unix.LoopConfig{Fd: uint32(back.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	if direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	// Others on the host look for free devices too: whoever configures one
	// first has it, the other gets EBUSY and asks again.
	for range 1000 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("finding a free loop device: %w", err)
		}
		dev, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attaching a loop device: %w", err)
		}
	}
	return nil, errors.New("no free loop device after 1000 attempts")
}

// openLoop opens /dev/loop<n>, making the node where nothing else does, as in
// a container.
func openLoop(n int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("making %s: %w", path, err)
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	return f, err
}

// sbin finds a program that an ordinary PATH may lack.
func sbin(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return name // running it gives an error that names it
}
