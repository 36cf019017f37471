package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what a name in a file system stands for.
type Kind string

// The kinds. Devices, sockets and FIFOs are other.
const (
	KindFile  Kind = "file"
	KindDir   Kind = "dir"
	KindLink  Kind = "link"
	KindOther Kind = "other"
)

// FileStat describes what a path leads to.
type FileStat struct {
	// Kind is KindLink only for a symbolic link that leads nowhere.
	Kind Kind `json:"kind"`
	// Size is a regular file's, in bytes; 0 for all else.
	Size int64 `json:"size"`
	// Mode is the permission bits.
	Mode    uint32    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
	// Target is what the symbolic link says, if the path is one.
	Target []byte `json:"target,omitempty"`
	// Real is the path without symbolic links, if it has any. Only Stat of
	// something that exists says it.
	Real []byte `json:"real,omitempty"`
	// Identity tells a file from another one that takes its name. Version
	// differs after each change of the file, as far as the kernel's clock
	// tells. Both are up to 100 of [0-9a-f.] and mean nothing else.
	Identity string `json:"identity"`
	Version  string `json:"version"`
}

// check reports what cannot be the answer for a file.
func (st *FileStat) check() error {
	switch st.Kind {
	case KindFile, KindDir, KindLink, KindOther:
	default:
		return nonsense("kind %.100q", st.Kind)
	}
	if st.Size < 0 || st.Kind != KindFile && st.Size != 0 || st.Mode > 0o777 || len(st.Target) > maxPath {
		return nonsense("%s of size %d, mode %o, target of %d bytes", st.Kind, st.Size, st.Mode, len(st.Target))
	}
	if real := string(st.Real); real != "" && (real[0] != '/' || len(real) > maxPath || strings.IndexByte(real, 0) >= 0) {
		return nonsense("real path %.100q", real)
	}
	for _, s := range []string{st.Identity, st.Version} {
		if s == "" || len(s) > 100 || strings.Trim(s, "0123456789abcdef.") != "" {
			return nonsense("identity or version %.100q", s)
		}
	}
	return nil
}

// Stat describes what path leads to; symbolic links are followed. ErrNoFile if
// there is nothing.
func (c *Client) Stat(ctx context.Context, path string) (FileStat, error) {
	var st FileStat
	err := c.call(ctx, "GET", "stat", url.Values{"path": {path}}, nil, maxHeader, &st)
	if err == nil {
		err = st.check()
	}
	if err != nil {
		return FileStat{}, fmt.Errorf("looking at %q: %w", path, err)
	}
	return st, nil
}

// ReadRange opens a regular file at offset; symbolic links are followed. The
// reader yields length bytes, or as many as there are before the end of the
// file, or an error; a negative length is all of them. The caller closes it,
// and it ends with ctx. ErrNoFile if there is nothing, ErrIsDir if it is a
// directory.
func (c *Client) ReadRange(ctx context.Context, path string, offset, length int64) (io.ReadCloser, FileStat, error) {
	fail := func(err error) (io.ReadCloser, FileStat, error) {
		return nil, FileStat{}, fmt.Errorf("reading %q: %w", path, err)
	}
	if offset < 0 {
		return fail(fmt.Errorf("offset %d", offset))
	}
	query := url.Values{
		"path": {path}, "offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.FormatInt(length, 10)},
	}
	res, err := c.do(ctx, "GET", "range", query, nil)
	if err != nil {
		return fail(err)
	}
	var st FileStat
	err = json.Unmarshal([]byte(res.Header.Get(fileHeader)), &st)
	if err != nil {
		err = nonsense("file header %.100q", res.Header.Get(fileHeader))
	} else if err = st.check(); err == nil && (st.Kind != KindFile || res.ContentLength != part(st.Size, offset, length)) {
		err = nonsense("%d bytes from %d of a %s of %d", res.ContentLength, offset, st.Kind, st.Size)
	}
	if err != nil {
		res.Body.Close()
		return fail(err)
	}
	return res.Body, st, nil
}

// part is how many bytes a range of a file of that size has.
func part(size, offset, length int64) int64 {
	left := max(size-offset, 0)
	if length < 0 {
		return left
	}
	return min(left, length)
}

// Put is a file to write by PutFile.
type Put struct {
	// Path is an absolute one. A symbolic link is followed, also one that
	// leads nowhere yet. Missing parents are made with mode 0755.
	Path string
	// Mode is the permission bits; nil keeps those of the file that is
	// there, and is 0644 for a new one.
	Mode *fs.FileMode
	// Version refuses with ErrChanged unless the file that is there has that
	// FileStat.Version; "" takes any, and none.
	Version string
}

// PutFile writes what r holds. The file appears at once when all is written,
// in the place of the regular file that had its name before, with its owner;
// what is there and is no regular file is refused, ErrIsDir if it is a
// directory. If r fails, nothing is left.
func (c *Client) PutFile(ctx context.Context, p Put, r io.Reader) (FileStat, error) {
	query := url.Values{"path": {p.Path}, "version": {p.Version}}
	if p.Mode != nil {
		query.Set("mode", strconv.FormatUint(uint64(p.Mode.Perm()), 8))
	}
	var st FileStat
	err := c.call(ctx, "PUT", "put", query, r, maxHeader, &st)
	if err == nil {
		err = st.check()
	}
	if err != nil {
		return FileStat{}, fmt.Errorf("writing %q: %w", p.Path, err)
	}
	return st, nil
}

func (s *Server) serveStat(w http.ResponseWriter, r *http.Request) error {
	path := s.path(r.FormValue("path"))
	st, err := statAt(unix.AT_FDCWD, path, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		st, err = statAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return fileError(err)
	}
	if target, err := os.Readlink(path); err == nil {
		st.Target = []byte(target)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		// The root of a test may have links in its own path.
		st.Real = []byte(strings.TrimPrefix(real, s.opts.Root))
	}
	return json.NewEncoder(w).Encode(st)
}

// statAt describes a file by statx(2), which alone tells when it was made: an
// inode's number is soon taken by another file.
func statAt(dir int, path string, flags int) (FileStat, error) {
	var x unix.Statx_t
	if err := unix.Statx(dir, path, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &x); err != nil {
		return FileStat{}, err
	}
	st := FileStat{Kind: kindOf(uint32(x.Mode)), Mode: uint32(x.Mode) & 0o777}
	if st.Kind == KindFile {
		st.Size = int64(x.Size)
	}
	st.ModTime = fileInfo(nil, 0, 0, time.Unix(x.Mtime.Sec, int64(x.Mtime.Nsec))).ModTime
	hex := func(t unix.StatxTimestamp) string { return fmt.Sprintf("%x.%x", uint64(t.Sec), t.Nsec) }
	st.Identity = fmt.Sprintf("%x.%s", x.Ino, hex(x.Btime))
	st.Version = fmt.Sprintf("%x.%x.%s.%s", x.Ino, x.Size, hex(x.Mtime), hex(x.Ctime))
	return st, nil
}

func kindOf(mode uint32) Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return KindFile
	case unix.S_IFDIR:
		return KindDir
	case unix.S_IFLNK:
		return KindLink
	}
	return KindOther
}

// maxUnsized bounds what is read of a file that says to be empty: those of
// /proc are not, and hold less.
const maxUnsized = 1 << 20

func (s *Server) serveRange(w http.ResponseWriter, r *http.Request) error {
	offset, err1 := strconv.ParseInt(r.FormValue("offset"), 10, 64)
	length, err2 := strconv.ParseInt(r.FormValue("length"), 10, 64)
	if err1 != nil || err2 != nil || offset < 0 {
		return fmt.Errorf("offset %q, length %q", r.FormValue("offset"), r.FormValue("length"))
	}
	f, st, err := openFollowed(s.path(r.FormValue("path")))
	if err != nil {
		return err
	}
	defer f.Close()
	var content io.ReaderAt = f
	if st.Size == 0 {
		data, err := io.ReadAll(io.LimitReader(f, maxUnsized))
		if err != nil {
			return err
		}
		content, st.Size = bytes.NewReader(data), int64(len(data))
	}
	header, err := json.Marshal(st)
	if err != nil {
		return err
	}
	n := part(st.Size, offset, length)
	w.Header().Set(fileHeader, string(header))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	buf := make([]byte, min(n, 256<<10)+1)
	sent, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.NewSectionReader(content, offset, n)}, buf)
	if err != nil || sent < n {
		panic(http.ErrAbortHandler) // the size is announced; a cut is all that is left to say
	}
	return nil
}

// openFollowed opens what a path leads to if it is a regular file, without
// being held up by a FIFO.
func openFollowed(path string) (*os.File, FileStat, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, FileStat{}, fileError(err)
	}
	st, err := statAt(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if err == nil {
		err = st.regular()
	}
	if err != nil {
		f.Close()
		return nil, FileStat{}, err
	}
	return f, st, nil
}

func (st *FileStat) regular() error {
	switch st.Kind {
	case KindFile:
		return nil
	case KindDir:
		return ErrIsDir
	}
	return errors.New("not a regular file")
}

func (s *Server) servePut(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query() // the body is the file
	path, err := s.followLinks(query.Get("path"))
	if err != nil {
		return err
	}
	p := put{path: path, version: query.Get("version"), mode: 0o644}
	if m := query.Get("mode"); m != "" {
		mode, err := strconv.ParseUint(m, 8, 32)
		if err != nil || mode > 0o777 {
			return fmt.Errorf("mode %q", m)
		}
		p.mode, p.modeSet = fs.FileMode(mode), true
	}
	st, err := s.put(p, r.Body)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(st)
}

// followLinks returns the path at the end of a chain of symbolic links.
func (s *Server) followLinks(p string) (string, error) {
	p = s.path(p)
	for range 40 { // as the kernel
		if dir, err := filepath.EvalSymlinks(filepath.Dir(p)); err == nil {
			p = filepath.Join(dir, filepath.Base(p))
		}
		target, err := os.Readlink(p)
		switch {
		case err != nil:
			return p, nil // no link, or nothing
		case filepath.IsAbs(target):
			p = s.path(target)
		default:
			p = filepath.Join(filepath.Dir(p), target)
		}
	}
	return "", errors.New("too many symbolic links")
}

// put is a Put with its links followed.
type put struct {
	path    string
	mode    fs.FileMode
	modeSet bool
	version string
}

// put writes a file beside its place, and gives it its name when it is whole.
func (s *Server) put(p put, r io.Reader) (FileStat, error) {
	if err := p.inPlace(nil); err != nil {
		return FileStat{}, err // before all of it was sent
	}
	// Parents are made when the file is there, so that a broken one leaves
	// none; those that are missing will be in the file system of those that
	// are not.
	dir := filepath.Dir(p.path)
	near := dir
	for near != "/" {
		if _, err := os.Stat(near); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		near = filepath.Dir(near)
	}
	f, err := os.CreateTemp(near, ".belljar-*")
	if err != nil {
		return FileStat{}, fileError(err)
	}
	whole := false
	defer func() {
		if !whole {
			os.Remove(f.Name())
		}
	}()
	if err := errors.Join(pour(f, r), f.Chmod(p.mode)); err != nil {
		f.Close()
		return FileStat{}, err
	}
	s.putting.Lock() // so that of two who replace the same version, one does
	defer s.putting.Unlock()
	if err := errors.Join(p.inPlace(f), f.Close()); err != nil {
		return FileStat{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return FileStat{}, err
	}
	if err := os.Rename(f.Name(), p.path); err != nil {
		return FileStat{}, err
	}
	whole = true
	return statAt(unix.AT_FDCWD, p.path, unix.AT_SYMLINK_NOFOLLOW)
}

// inPlace refuses what may not be replaced, and gives f the owner and, unless
// one is set, the mode of what it replaces.
func (p put) inPlace(f *os.File) error {
	st, err := statAt(unix.AT_FDCWD, p.path, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return ErrNotDir // one of the parents
	case errors.Is(err, unix.ENOENT):
		if p.version != "" {
			return ErrChanged
		}
		return nil
	case err != nil:
		return fileError(err)
	}
	if err := st.regular(); err != nil {
		return err
	}
	if p.version != "" && p.version != st.Version {
		return ErrChanged
	}
	if f == nil {
		return nil
	}
	old, err := os.Lstat(p.path)
	if err != nil {
		return fileError(err)
	}
	// The owner first: a change of it takes the set-user-ID bit away.
	if sys, ok := old.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
			return err
		}
	}
	if p.modeSet {
		return f.Chmod(p.mode)
	}
	return f.Chmod(old.Mode())
}
