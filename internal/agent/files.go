package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds on the tree that a listing walks.
const (
	maxDepth   = 128     // directories in each other; each costs a descriptor
	maxEntries = 1 << 20 // looked at in all
)

// openRegular opens a regular file for reading without being held up by a
// FIFO or led elsewhere by a symbolic link in its name's last element.
func (s *Server) openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(s.path(path), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, fileError(err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// fileError makes an error of the file system one of the API's.
func fileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return ErrNoFile
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return errors.New("not a regular file")
	}
	return err
}

func (s *Server) serveRead(w http.ResponseWriter, r *http.Request) error {
	f, st, err := s.openRegular(r.FormValue("path"))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := json.Marshal(fileInfo([]byte(st.Name()), st.Size(), st.Mode().Perm(), st.ModTime()))
	if err != nil {
		return err
	}
	w.Header().Set(fileHeader, string(info))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(st.Size(), 10))
	buf := make([]byte, 256<<10)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(f, st.Size()), buf)
	if err != nil || n < st.Size() {
		panic(http.ErrAbortHandler) // the size is announced; a cut is all that is left to say
	}
	return nil
}

// fileInfo keeps the time within what JSON can say: a script may set any.
func fileInfo(path []byte, size int64, perm fs.FileMode, mod time.Time) FileInfo {
	mod = mod.UTC()
	if y := mod.Year(); y < 1 || y > 9999 {
		mod = time.Unix(0, 0).UTC()
	}
	return FileInfo{Path: path, Size: size, Mode: uint32(perm), ModTime: mod}
}

func (s *Server) serveWrite(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query() // the body is the file
	mode, err := strconv.ParseUint(query.Get("mode"), 8, 32)
	if err != nil || mode > 0o777 {
		return fmt.Errorf("mode %q", query.Get("mode"))
	}
	return replace(s.path(query.Get("path")), fs.FileMode(mode), time.Time{}, r.Body)
}

// serveWriteAll writes several files: their fileLines as a JSON array, then
// their contents.
func (s *Server) serveWriteAll(w http.ResponseWriter, r *http.Request) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, maxSpec))
	var lines []fileLine
	if err := dec.Decode(&lines); err != nil {
		return err
	}
	body := io.MultiReader(dec.Buffered(), r.Body)
	for _, l := range lines {
		if l.Mode > 0o777 || l.Size < 0 {
			return fmt.Errorf("mode %o, size %d", l.Mode, l.Size)
		}
		content := &exactly{io.LimitedReader{R: body, N: l.Size}}
		var err error
		if l.InPlace {
			err = overwrite(s.path(l.Path), l.Mode, l.ModTime, content)
		} else {
			err = replace(s.path(l.Path), l.Mode, l.ModTime, content)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Path, err)
		}
	}
	return nil
}

// exactly reads N bytes, and fails if there are fewer.
type exactly struct{ io.LimitedReader }

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.LimitedReader.Read(p)
	if err == io.EOF && e.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// replace writes a file beside path, and gives it that name when it is whole.
// Changed is when it says that it was changed, if not zero.
func replace(path string, mode fs.FileMode, changed time.Time, r io.Reader) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".belljar-*")
	if err != nil {
		return err
	}
	err = errors.Join(pour(f, r), f.Chmod(mode), f.Close())
	if err == nil && !changed.IsZero() {
		err = os.Chtimes(f.Name(), changed, changed)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		os.Remove(f.Name())
		return err
	}
	return nil
}

// overwrite writes the file at path in place, and cuts it off there.
func overwrite(path string, mode fs.FileMode, changed time.Time, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, mode)
	if err != nil {
		return fileError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if err := pour(f, r); err != nil {
		return err
	}
	end, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if end < st.Size() {
		if err := f.Truncate(end); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil || changed.IsZero() {
		return err
	}
	return os.Chtimes(path, changed, changed)
}

// pour copies r to f. The buffer is no larger than what comes: most files are
// small, and an agent starts with no memory to spare.
func pour(f *os.File, r io.Reader) error {
	size := int64(256 << 10)
	if e, ok := r.(*exactly); ok {
		size = min(size, e.N)
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, max(size, 1)))
	return err
}

// serveList lists directories, one after the other.
func (s *Server) serveList(w http.ResponseWriter, r *http.Request) error {
	trees, err := treesOf(r.URL.Query())
	if err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	for _, t := range trees {
		l, err := s.list(r.Context(), t)
		end := listEnd{More: l.More, Skipped: l.Skipped}
		if err != nil {
			if len(trees) == 1 {
				return err
			}
			_, why := refuse(err)
			end = listEnd{Refused: &why}
			l.Files = nil
		}
		for i := range l.Files {
			if err := enc.Encode(listLine{File: &l.Files[i]}); err != nil {
				return nil // the client has gone
			}
		}
		if err := enc.Encode(listLine{End: &end}); err != nil {
			return nil
		}
	}
	return nil
}

func (s *Server) list(ctx context.Context, t Tree) (Listing, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(s.path(t.Dir), flags, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return Listing{}, ErrNoFile
	case err != nil:
		return Listing{}, fmt.Errorf("not a directory: %w", err)
	}
	l := lister{max: t.Max, flat: t.Flat, stop: ctx.Err}
	err = l.walk(fd, "", maxDepth)
	return l.Listing, err
}

// lister walks a tree by descriptors, so that nothing that is swapped
// meanwhile leads it out of the tree.
type lister struct {
	Listing
	max     int
	flat    bool
	bytes   int // of the paths
	entries int // looked at
	stop    func() error
}

// entry is a name in a directory with what it is.
type entry struct {
	name string
	key  string // as the name, but sorts as the paths below it do
	st   unix.Stat_t
}

// walk takes the directory fd, which it closes. Prefix is its path with a
// slash at the end, depth how many levels more may be entered.
func (l *lister) walk(fd int, prefix string, depth int) error {
	dir := os.NewFile(uintptr(fd), prefix)
	defer dir.Close()
	entries, err := l.read(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := l.stop(); err != nil {
			return err
		}
		path := prefix + e.name
		switch e.st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			l.add(path, e.st)
		case unix.S_IFDIR:
			if l.flat {
				continue
			}
			sub, err := -1, error(nil)
			if depth > 0 && len(path) < maxPath {
				flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
				sub, err = unix.Openat(fd, e.name, flags, 0)
			}
			if sub < 0 || err != nil {
				l.Skipped++ // too deep, or swapped for something else
			} else if err := l.walk(sub, path+"/", depth-1); err != nil {
				return err
			}
		default:
			l.Skipped++
		}
	}
	return nil
}

// read returns a directory's entries in the order of the paths.
func (l *lister) read(dir *os.File) ([]entry, error) {
	// One name more than may be looked at tells that there are more.
	names, err := dir.Readdirnames(maxEntries - l.entries + 1)
	if err != nil && err != io.EOF {
		return nil, err
	}
	l.entries += len(names)
	if l.entries > maxEntries {
		return nil, fmt.Errorf("more than %d files and directories", maxEntries)
	}
	entries := make([]entry, 0, len(names))
	for _, name := range names {
		e := entry{name: name, key: name}
		if err := unix.Fstatat(int(dir.Fd()), name, &e.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // removed meanwhile
		}
		if e.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			e.key += "/"
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return entries, nil
}

func (l *lister) add(path string, st unix.Stat_t) {
	if len(l.Files) >= l.max || l.bytes+len(path) > maxListing || len(path) > maxPath {
		l.More++
		return
	}
	l.bytes += len(path)
	l.Files = append(l.Files, fileInfo([]byte(path), st.Size, fs.FileMode(st.Mode&0o777), time.Unix(st.Mtim.Unix())))
}
