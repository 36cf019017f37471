package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// overlayPrefixes are where an overlay file system keeps its own attributes;
// the second is for overlays that were mounted in a user namespace.
var overlayPrefixes = []string{"trusted.overlay.", "user.overlay."}

// overlayAttr reads an overlay's attribute of a file in an upper directory.
func overlayAttr(path, name string) string {
	for _, prefix := range overlayPrefixes {
		var buf [16]byte
		if n, err := unix.Lgetxattr(path, prefix+name, buf[:]); err == nil {
			return string(buf[:n])
		}
	}
	return ""
}

// isOpaque is whether a directory of an upper one hides those below it.
func isOpaque(path string) bool { return overlayAttr(path, "opaque") == "y" }

// isWhiteout is whether a file of an upper directory stands for the absence
// of one: a character device 0:0, or an empty file that is marked.
func isWhiteout(path string, fi fs.FileInfo) bool {
	switch {
	case fi.Mode()&fs.ModeCharDevice != 0:
		return fi.Sys().(*syscall.Stat_t).Rdev == 0
	case fi.Mode().IsRegular() && fi.Size() == 0:
		var buf [16]byte
		for _, prefix := range overlayPrefixes {
			if _, err := unix.Lgetxattr(path, prefix+"whiteout", buf[:]); err == nil {
				return true
			}
		}
	}
	return false
}

// copyMeta gives dst owner, mode, extended attributes and modification time
// of src. Both exist; neither is a symbolic link.
func copyMeta(dst, src string) error {
	fi, err := os.Lstat(src)
	if err != nil {
		return err
	}
	st := fi.Sys().(*syscall.Stat_t)
	if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(dst, src); err != nil {
		return err
	}
	if err := os.Chmod(dst, fi.Mode()); err != nil {
		return err
	}
	return os.Chtimes(dst, fi.ModTime(), fi.ModTime())
}

func copyXattrs(dst, src string) error {
	names := make([]byte, 64<<10) // the kernel's bound for a list, and a value
	n, err := unix.Llistxattr(src, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "listxattr", Path: src, Err: err}
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.Trim(string(names[:n]), "\x00"), "\x00") {
		if !keepXattr(name) && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		n, err := unix.Lgetxattr(src, name, value)
		if err == nil {
			err = unix.Lsetxattr(dst, name, value[:n], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return &fs.PathError{Op: "setxattr", Path: dst, Err: err}
		}
	}
	return nil
}

// view is a root filesystem in directories, the topmost first, as an overlay
// of them would show it.
type view []string

// node is what stands at a path of a view.
type node struct {
	info fs.FileInfo // nil if there is nothing
	host string      // where the topmost of it is on the host
	dirs []string    // of a directory: those merged, the topmost first
}

func (n node) exists() bool { return n.info != nil }
func (n node) isDir() bool  { return n.info != nil && n.info.IsDir() }

// child looks one name up in a directory; it does not follow links.
func (n node) child(name string) (node, error) {
	var c node
	for _, dir := range n.dirs {
		host := filepath.Join(dir, name)
		fi, err := os.Lstat(host)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return node{}, err
		}
		if isWhiteout(host, fi) || c.exists() && !fi.IsDir() {
			break
		}
		if !c.exists() {
			c.info, c.host = fi, host
		}
		if !fi.IsDir() {
			break
		}
		c.dirs = append(c.dirs, host)
		if isOpaque(host) {
			break
		}
	}
	return c, nil
}

// resolve follows a path as a process whose root is the view would, links
// included, and returns it without links, relative to the root ("" for the
// root), with what stands there. A path may lead to what does not exist; it
// can lead nowhere outside of the view.
func (v view) resolve(path string) (string, node, error) {
	fi, err := os.Lstat(v[0])
	if err != nil {
		return "", node{}, err
	}
	nodes := []node{{info: fi, host: v[0], dirs: v}}
	var names []string
	links := 0
	for todo := strings.Split(path, "/"); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(names) > 0 {
				names, nodes = names[:len(names)-1], nodes[:len(nodes)-1]
			}
			continue
		}
		cur := nodes[len(nodes)-1]
		if cur.exists() && !cur.isDir() {
			return "", node{}, &fs.PathError{Op: "resolve", Path: path, Err: syscall.ENOTDIR}
		}
		next, err := cur.child(name)
		if err != nil {
			return "", node{}, err
		}
		if !next.exists() || next.info.Mode()&fs.ModeSymlink == 0 {
			names, nodes = append(names, name), append(nodes, next)
			continue
		}
		if links++; links > 255 {
			return "", node{}, &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next.host)
		if err != nil {
			return "", node{}, err
		}
		if strings.HasPrefix(target, "/") {
			names, nodes = nil, nodes[:1]
		}
		todo = slices.Concat(strings.Split(target, "/"), todo)
	}
	return strings.Join(names, "/"), nodes[len(nodes)-1], nil
}

// open opens a regular file of the view.
func (v view) open(path string) (*os.File, error) {
	_, n, err := v.resolve(path)
	if err != nil {
		return nil, err
	}
	if !n.exists() || !n.info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return os.Open(n.host)
}

// makeDirs makes a directory with its parents in an upper directory, resolving
// links in what lies over lower, and returns its path without links. Those
// that exist in lower get the same attributes above; owned is called with new
// ones.
func makeDirs(upper string, lower view, dir string, owned func(host string) error) (string, error) {
	over := append(view{upper}, lower...)
	rel, at, err := over.resolve(dir)
	if err != nil {
		return "", err
	}
	if at.exists() && !at.isDir() {
		return "", &fs.PathError{Op: "mkdir", Path: "/" + rel, Err: errors.New("is not a directory")}
	}
	done := ""
	for name := range strings.SplitSeq(rel, "/") {
		if name == "" {
			continue
		}
		_, old, err := over.resolve(done + "/" + name)
		if err != nil {
			return "", err
		}
		done += "/" + name
		host := filepath.Join(upper, done)
		if old.exists() && old.host == host {
			continue
		}
		if err := os.Mkdir(host, 0o700); err != nil {
			return "", err
		}
		if old.exists() {
			err = copyMeta(host, old.host)
		} else {
			err = owned(host)
		}
		if err != nil {
			return "", err
		}
	}
	return rel, nil
}
