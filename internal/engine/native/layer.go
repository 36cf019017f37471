package native

import (
	"errors"
	"fmt"
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
// than writing the few blocks that a fresh filesystem consists of, so there
// is a template for each pair of size and inode count.
type layers struct {
	dir string // of the templates

	mu     sync.Mutex // held while a template is made
	blocks map[string][]extent
}

// extent is a run of a template's blocks.
type extent struct {
	at   int64
	data []byte
}

// blockSize is that of the filesystems, and of the loop devices below them.
const blockSize = 4096

// createLayer makes a layer file at path, without a filesystem.
func createLayer(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("making the writable layer: %w", err)
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return fmt.Errorf("making the writable layer: %w", err)
	}
	return nil
}

// format writes a fresh filesystem to a layer's device. The mount that follows
// finds the blocks in the device's cache. Were they written to the file, the
// kernel would flush them to the disk when it attaches the device, and read
// them again.
func (l *layers) format(dev *os.File, bytes, inodes int64) error {
	blocks, err := l.template(bytes, inodes)
	if err != nil {
		return err
	}
	for _, e := range blocks {
		if _, err := dev.WriteAt(e.data, e.at); err != nil {
			return fmt.Errorf("formatting the writable layer: %w", err)
		}
	}
	return nil
}

// template returns the blocks of a fresh filesystem.
func (l *layers) template(bytes, inodes int64) ([]extent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := fmt.Sprintf("layer-%d-%d", bytes, inodes)
	if blocks := l.blocks[name]; blocks != nil {
		return blocks, nil
	}
	path, err := l.makeTemplate(name, bytes, inodes)
	if err != nil {
		return nil, err
	}
	blocks, err := readSparse(path)
	if err != nil {
		return nil, fmt.Errorf("reading a template of writable layers: %w", err)
	}
	if l.blocks == nil {
		l.blocks = map[string][]extent{}
	}
	l.blocks[name] = blocks
	return blocks, nil
}

// makeTemplate makes the file of a template, unless it is there.
func (l *layers) makeTemplate(name string, bytes, inodes int64) (string, error) {
	path := filepath.Join(l.dir, name)
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
	// written has to be written to every layer.
	cmd := exec.Command(sbin("mkfs.ext4"), "-q", "-F", "-b", strconv.Itoa(blockSize), "-O", "^has_journal,^resize_inode,sparse_super2", "-m", "0",
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

// readSparse returns what is in a file beside holes.
func readSparse(path string) ([]extent, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []extent
	for at := int64(0); ; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if at, err = unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		e := extent{begin, make([]byte, at-begin)}
		if _, err := f.ReadAt(e.data, begin); err != nil {
			return nil, err
		}
		all = append(all, e)
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
	config := &unix.LoopConfig{Fd: uint32(back.Fd()), Size: blockSize, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
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
