package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// copyStep is a COPY with its variables expanded.
type copyStep struct {
	Sources []string
	Inline  []inlineFile // heredocs
	Dest    string       // absolute; ends in a slash if it must be a directory
	Chown   string       // as written, "" for root
	Chmod   *uint32      // nil keeps the source's mode
}

type inlineFile struct{ Name, Data string }

// copyEntry is one file, directory or link to copy.
type copyEntry struct {
	Path string // below the destination; "" is the destination itself
	Name string // in the source, for a destination that turns out to be a directory
	Mode fs.FileMode
	Link string // target of a symbolic link
	Sum  string // of a file's content

	source string // in the context
	data   *string
}

// buildContext is the directory that COPY reads from.
type buildContext struct {
	root    *os.Root
	ignore  *patternmatcher.PatternMatcher
	maxSize int64
	maxFile int64
}

// openContext opens a context directory with its ignore file: the one named
// after the Containerfile, .containerignore, or .dockerignore.
func (s *Store) openContext(dir, containerfile string) (*buildContext, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	c := &buildContext{root: root, maxSize: s.maxBytes, maxFile: s.maxFiles}
	var patterns []string
	for _, name := range []string{containerfile + ".dockerignore", filepath.Join(dir, ".containerignore"), filepath.Join(dir, ".dockerignore")} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			patterns, err = ignorefile.ReadAll(f)
			f.Close()
		}
		if err != nil {
			root.Close()
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		break
	}
	if c.ignore, err = patternmatcher.New(patterns); err != nil {
		root.Close()
		return nil, fmt.Errorf("ignore file: %w", err)
	}
	return c, nil
}

// gather lists what a COPY copies, with the content's digests.
func (c *buildContext) gather(st copyStep) ([]copyEntry, error) {
	var all []copyEntry
	intoDir := strings.HasSuffix(st.Dest, "/")
	for _, pattern := range st.Sources {
		matches, err := c.glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", pattern, err)
		}
		if len(matches) > 1 && !intoDir {
			return nil, fmt.Errorf("source %s: means several; the destination must end in /", pattern)
		}
		for _, m := range matches {
			entries, err := c.tree(m, intoDir)
			if err != nil {
				return nil, fmt.Errorf("source %s: %w", pattern, err)
			}
			all = append(all, entries...)
		}
		if int64(len(all)) > c.maxFile {
			return nil, fmt.Errorf("source %s: %w: more than %d files", pattern, ErrTooBig, c.maxFile)
		}
	}
	for _, f := range st.Inline {
		e := copyEntry{Mode: 0o644, Sum: digestOf([]byte(f.Data)), data: &f.Data}
		if intoDir {
			e.Path = path.Base(f.Name)
		}
		all = append(all, e)
	}
	return all, nil
}

// glob finds the sources that a pattern means, which the ignore file does not
// hide. The context is the root of all names.
func (c *buildContext) glob(pattern string) ([]string, error) {
	pattern = strings.TrimPrefix(path.Join("/", pattern), "/")
	if pattern == "" {
		return []string{"."}, nil
	}
	matches := []string{pattern}
	if strings.ContainsAny(pattern, `*?[\`) {
		var err error
		if matches, err = fs.Glob(c.root.FS(), pattern); err != nil {
			return nil, err
		}
	}
	var kept []string
	for _, m := range matches {
		if _, err := c.root.Stat(m); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err // such as a link that leads out of the context
		}
		ignored, err := c.ignored(m)
		if err != nil {
			return nil, err
		}
		if !ignored || c.ignore.Exclusions() {
			kept = append(kept, m)
		}
	}
	if len(kept) == 0 {
		return nil, errors.New("no such file in the build context (or the ignore file hides it)")
	}
	return kept, nil
}

func (c *buildContext) ignored(name string) (bool, error) {
	if name == "." {
		return false, nil
	}
	return c.ignore.MatchesOrParentMatches(name)
}

// tree lists a source: a file under its own name if it goes into a directory,
// of a directory what is in it.
func (c *buildContext) tree(src string, intoDir bool) ([]copyEntry, error) {
	fi, err := c.root.Stat(src)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		name := ""
		if intoDir {
			name = path.Base(src)
		}
		if ignored, err := c.ignored(src); ignored || err != nil {
			return nil, err
		}
		e, err := c.entry(name, src, fi)
		return []copyEntry{e}, err
	}
	return c.walk(nil, "", src, fi)
}

func (c *buildContext) walk(all []copyEntry, name, src string, fi fs.FileInfo) ([]copyEntry, error) {
	if int64(len(all)) > c.maxFile {
		return nil, fmt.Errorf("%w: more than %d files", ErrTooBig, c.maxFile)
	}
	ignored, err := c.ignored(src)
	if err != nil {
		return nil, err
	}
	if ignored && !(fi.IsDir() && c.ignore.Exclusions()) {
		return all, nil
	}
	if !ignored {
		e, err := c.entry(name, src, fi)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if !fi.IsDir() {
		return all, nil
	}
	entries, err := fs.ReadDir(c.root.FS(), src)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		sub, err := e.Info()
		if err != nil {
			return nil, err
		}
		if all, err = c.walk(all, path.Join(name, e.Name()), path.Join(src, e.Name()), sub); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c *buildContext) entry(name, src string, fi fs.FileInfo) (copyEntry, error) {
	e := copyEntry{Path: name, Name: path.Base(src), Mode: fi.Mode(), source: src}
	var err error
	switch {
	case fi.IsDir():
	case fi.Mode()&fs.ModeSymlink != 0:
		e.Link, err = c.root.Readlink(src)
	case fi.Mode().IsRegular():
		if c.maxSize -= fi.Size(); c.maxSize < 0 {
			return e, fmt.Errorf("%w: the build context has more than the image may", ErrTooBig)
		}
		e.Sum, err = c.sum(src)
	default:
		err = fmt.Errorf("%s is neither file, directory nor link", src)
	}
	return e, err
}

func (c *buildContext) sum(src string) (string, error) {
	f, _, err := openRegular(c.root, src)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// contentDigest is over all of the entries that the outcome depends on.
func contentDigest(entries []copyEntry) string {
	data, err := json.Marshal(entries)
	if err != nil {
		panic(err) // plain data
	}
	return digestOf(data)
}

// copier writes entries into the upper directory of a layer.
type copier struct {
	context  *buildContext
	upper    string
	lower    view
	dest     string
	uid, gid int
	chmod    *uint32
}

// over is the root filesystem as it stands while entries are written.
func (c *copier) over() view { return append(view{c.upper}, c.lower...) }

func (c *copier) copy(entries []copyEntry) error {
	for _, e := range entries {
		if err := c.copyOne(e); err != nil {
			return fmt.Errorf("%s: %w", path.Join(c.dest, e.Path), err)
		}
	}
	return nil
}

func (c *copier) copyOne(e copyEntry) error {
	where := c.dest + "/" + e.Path
	if e.Mode.IsDir() {
		_, err := makeDirs(c.upper, c.lower, where, func(host string) error {
			if e.Path == "" {
				return c.newDir(host) // of a source directory only what is in it is copied
			}
			return c.setOwner(host, e.Mode)
		})
		return err
	}
	// The last element is replaced if it is a link, unless it is what the
	// Containerfile names, which may be a link to a directory.
	parent, base := path.Split(where)
	if e.Path == "" {
		_, at, err := c.over().resolve(c.dest)
		if err != nil {
			return err
		}
		if parent, base = path.Split(c.dest); at.isDir() {
			parent, base = c.dest, e.Name
		}
		if e.data != nil && at.isDir() {
			return errors.New("a heredoc cannot replace a directory; end the destination in a file name")
		}
	}
	dir, err := makeDirs(c.upper, c.lower, parent, c.newDir)
	if err != nil {
		return err
	}
	_, at, err := c.over().resolve(dir)
	if err != nil {
		return err
	}
	if at, err = at.child(base); err != nil {
		return err
	}
	if at.isDir() {
		return errors.New("cannot replace a directory by a file")
	}
	return c.write(filepath.Join(c.upper, dir, base), e)
}

// write makes a file or link at a path of the upper directory whose parents
// are directories there.
func (c *copier) write(host string, e copyEntry) error {
	if err := os.Remove(host); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.Mode&fs.ModeSymlink != 0 {
		if err := os.Symlink(e.Link, host); err != nil {
			return err
		}
		return os.Lchown(host, c.uid, c.gid)
	}
	if e.data != nil {
		if err := writeFile(host, strings.NewReader(*e.data)); err != nil {
			return err
		}
		return c.setOwner(host, e.Mode)
	}
	f, fi, err := openRegular(c.context.root, e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := writeFile(host, f); err != nil {
		return err
	}
	if err := c.setOwner(host, e.Mode); err != nil {
		return err
	}
	return os.Chtimes(host, fi.ModTime(), fi.ModTime())
}

// newDir is for directories that the destination implies.
func (c *copier) newDir(host string) error {
	return errors.Join(os.Lchown(host, c.uid, c.gid), os.Chmod(host, 0o755))
}

// setOwner sets owner and mode, in this order, as a change of owner clears
// setuid.
func (c *copier) setOwner(host string, mode fs.FileMode) error {
	if err := os.Lchown(host, c.uid, c.gid); err != nil {
		return err
	}
	if c.chmod != nil {
		return chmod(host, *c.chmod)
	}
	return os.Chmod(host, mode)
}

// chmod sets a mode as in chmod(1), which os.Chmod does not take.
func chmod(host string, mode uint32) error {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return os.Chmod(host, m)
}
