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
// is a template for each kind.
type layers struct {
	dir string // of the templates

	mu     sync.Mutex // held while a template is made
	blocks map[string][]extent
}

// layerKind is what a fresh layer depends on.
type layerKind struct {
	bytes, inodes int64
	durable       bool
}

func (k layerKind) name() string {
	name := fmt.Sprintf("layer-%d-%d", k.bytes, k.inodes)
	if k.durable {
		name += "-journal"
	}
	return name
}

// options are those of mkfs.ext4. A fresh sparse file reads as zeros, so
// neither inode tables nor a journal need writing. No reserve: all of the
// limit is the sandbox's. What is written has to be written to every layer.
func (k layerKind) options() []string {
	all := []string{"-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0", "-N", strconv.FormatInt(k.inodes, 10)}
	extended := "lazy_itable_init=1,nodiscard"
	if k.durable {
		// A small journal: it counts in the sandbox's disk.
		all = append(all, "-O", "^resize_inode,sparse_super2", "-J", "size="+strconv.FormatInt(min(16, max(4, k.bytes>>20/64)), 10))
		extended += ",lazy_journal_init=1,num_backup_sb=1"
	} else {
		// No journal and no copies of the superblock: a layer of a run does not
		// outlive a crash.
		all = append(all, "-O", "^has_journal,^resize_inode,sparse_super2")
		extended += ",num_backup_sb=0"
	}
	return append(all, "-E", extended)
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
//
// Of a durable one the blocks are on the disk when format returns.
func (l *layers) format(dev *os.File, kind layerKind) error {
	blocks, err := l.template(kind)
	if err != nil {
		return err
	}
	for _, e := range blocks {
		if _, err := dev.WriteAt(e.data, e.at); err != nil {
			return fmt.Errorf("formatting the writable layer: %w", err)
		}
	}
	if kind.durable {
		return dev.Sync()
	}
	return nil
}

// template returns the blocks of a fresh filesystem.
func (l *layers) template(kind layerKind) ([]extent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := kind.name()
	if blocks := l.blocks[name]; blocks != nil {
		return blocks, nil
	}
	path, err := l.makeTemplate(kind)
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
func (l *layers) makeTemplate(kind layerKind) (string, error) {
	path := filepath.Join(l.dir, kind.name())
	if info, err := os.Stat(path); err == nil && info.Size() == kind.bytes {
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
	err = f.Truncate(kind.bytes)
	f.Close()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(sbin("mkfs.ext4"), append(kind.options(), part)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("formatting a layer of %d MiB with %d inodes: %w: %s", kind.bytes>>20, kind.inodes, err, strings.TrimSpace(string(out)))
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
