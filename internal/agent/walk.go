package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxWalked bounds how many names a walk looks at.
const maxWalked = 1 << 18

// A Walk is a directory to list with all that is in it. A symbolic link to a
// directory is followed at Dir itself, and not below.
type Walk struct {
	Dir string
	// Glob is a pattern of the paths below Dir: elements as in path.Match,
	// and ** for any number of directories. Empty is all.
	Glob string
	// Depth is how many levels are listed; 1 is Dir's own entries.
	Depth int
	// Max bounds the entries of the answer.
	Max int
}

// Entry is a name found by a walk.
type Entry struct {
	// Path is relative to the directory, with slashes, as bytes.
	Path []byte `json:"path"`
	Kind Kind   `json:"kind"`
	// Size is a regular file's, in bytes; 0 for all else.
	Size    int64     `json:"size"`
	Mode    uint32    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
	// Target is what a symbolic link says.
	Target []byte `json:"target,omitempty"`
}

// Walked is what a walk found, in the order of the paths.
type Walked struct {
	Entries []Entry
	// More is how many matches were left out because of the bound.
	More int64
	// Partial says that there was too much to look at all of it.
	Partial bool
}

type walkLine struct {
	Entry *Entry   `json:"entry,omitempty"`
	End   *walkEnd `json:"end,omitempty"`
}

type walkEnd struct {
	More    int64 `json:"more"`
	Partial bool  `json:"partial"`
}

// Walk lists a directory. ErrNoFile if there is nothing, ErrNotDir if it is no
// directory, ErrPattern if the pattern is malformed.
func (c *Client) Walk(ctx context.Context, w Walk) (Walked, error) {
	fail := func(err error) (Walked, error) { return Walked{}, fmt.Errorf("listing %q: %w", w.Dir, err) }
	g, err := parseGlob(w.Glob)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrPattern, err))
	}
	query := url.Values{
		"path": {w.Dir}, "glob": {strings.Join(g, "/")}, "depth": {strconv.Itoa(w.Depth)}, "max": {strconv.Itoa(w.Max)},
	}
	res, err := c.do(ctx, "GET", "walk", query, nil)
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	// Path and target in base64, and per entry the rest of its line.
	limit := 2*min(maxListing, int64(w.Max)*maxPath)/3*4 + int64(w.Max)*256 + maxHeader
	body := &errReader{r: res.Body}
	found, err := readWalk(io.LimitReader(body, limit), w.Max)
	if body.err != nil {
		err = body.err
	}
	if err != nil {
		return fail(err)
	}
	return found, nil
}

func readWalk(r io.Reader, most int) (Walked, error) {
	var found Walked
	dec := json.NewDecoder(r)
	last := ""
	for {
		var line walkLine
		if err := dec.Decode(&line); err != nil {
			return Walked{}, nonsense("%s", printable(err.Error()))
		}
		if end := line.End; end != nil {
			if end.More < 0 {
				return Walked{}, nonsense("listing counts")
			}
			found.More, found.Partial = end.More, end.Partial
			return found, nil
		}
		e := line.Entry
		if e == nil || len(found.Entries) == most {
			return Walked{}, nonsense("listing of more than %d entries", most)
		}
		if err := e.check(); err != nil {
			return Walked{}, err
		}
		if e.key() <= last {
			return Walked{}, nonsense("listing out of order at %.100q", e.Path)
		}
		last = e.key()
		found.Entries = append(found.Entries, *e)
	}
}

// key sorts as the paths below a directory do.
func (e *Entry) key() string {
	if e.Kind == KindDir {
		return string(e.Path) + "/"
	}
	return string(e.Path)
}

func (e *Entry) check() error {
	f := FileInfo{Path: e.Path, Size: e.Size, Mode: e.Mode}
	if err := f.check(); err != nil {
		return err
	}
	st := FileStat{Kind: e.Kind, Size: e.Size, Mode: e.Mode, Target: e.Target, Identity: "0", Version: "0"}
	return st.check()
}

func (s *Server) serveWalk(w http.ResponseWriter, r *http.Request) error {
	depth, err1 := strconv.Atoi(r.FormValue("depth"))
	most, err2 := strconv.Atoi(r.FormValue("max"))
	g, err3 := parseGlob(r.FormValue("glob"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if depth < 1 || most < 0 {
		return fmt.Errorf("depth %d, max %d", depth, most)
	}
	dir, err := openDir(s.path(r.FormValue("path")))
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	at := []position{g.start()} // by level
	var end walkEnd
	var entries, bytes int
	t := traversal{max: maxWalked, stop: r.Context().Err}
	t.visit = func(n node) (bool, error) {
		here := g.step(at[n.level], n.name)
		at = append(at[:n.level+1], here)
		enter := here.open() && n.level+1 < depth
		if !here.matched() {
			return enter, nil
		}
		e := n.entry()
		if entries >= most || bytes+len(e.Path)+len(e.Target) > maxListing {
			end.More++
			return enter, nil
		}
		entries++
		bytes += len(e.Path) + len(e.Target)
		return enter, out.Encode(walkLine{Entry: &e})
	}
	err = t.walk(dir, "", 0)
	switch {
	case errors.Is(err, errTooMany):
		end.Partial = true
	case err != nil:
		panic(http.ErrAbortHandler) // the client has gone, or the disk has
	}
	return out.Encode(walkLine{End: &end})
}

// openDir opens the directory that a path leads to.
func openDir(path string) (*os.File, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOTDIR) {
		if _, err := os.Stat(path); err == nil {
			return nil, ErrNotDir
		}
	}
	if err != nil {
		return nil, fileError(err)
	}
	return dir, nil
}

var errTooMany = errors.New("too many files and directories")

// A traversal goes through a tree by descriptors, so that nothing that is
// swapped meanwhile leads it out of the tree, in the order of the paths.
type traversal struct {
	max  int // names to look at
	seen int
	stop func() error
	// visit is called for each name, and says whether to enter a directory.
	visit func(node) (enter bool, err error)
}

// node is a name in a directory.
type node struct {
	dir   *os.File
	name  string
	path  string // relative to where the traversal began
	level int    // of the directory it is in
	st    unix.Stat_t
}

func (n node) entry() Entry {
	e := Entry{Path: []byte(n.path), Kind: kindOf(n.st.Mode), Mode: n.st.Mode & 0o777}
	e.ModTime = fileInfo(nil, 0, 0, time.Unix(n.st.Mtim.Unix())).ModTime
	switch e.Kind {
	case KindFile:
		e.Size = n.st.Size
	case KindLink:
		e.Target = n.target()
	}
	return e
}

// target is what a symbolic link says, nil if it is none any more.
func (n node) target() []byte {
	buf := make([]byte, maxPath)
	size, err := unix.Readlinkat(int(n.dir.Fd()), n.name, buf)
	if err != nil {
		return nil
	}
	return buf[:size]
}

// open opens a file or directory as what the traversal saw it.
func (n node) open(flags int) (*os.File, error) {
	fd, err := unix.Openat(int(n.dir.Fd()), n.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), n.path), nil
}

// walk goes through dir, which it closes.
func (t *traversal) walk(dir *os.File, prefix string, level int) error {
	defer dir.Close()
	names, err := t.read(dir)
	if err != nil && !errors.Is(err, errTooMany) {
		return err
	}
	for _, name := range names {
		if err := t.stop(); err != nil {
			return err
		}
		n := node{dir: dir, name: strings.TrimSuffix(name, "/"), level: level}
		n.path = prefix + n.name
		if len(n.path) > maxPath || unix.Fstatat(int(dir.Fd()), n.name, &n.st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // removed meanwhile
		}
		if isDir := kindOf(n.st.Mode) == KindDir; isDir != strings.HasSuffix(name, "/") {
			continue // swapped meanwhile, and out of order
		}
		enter, err := t.visit(n)
		if err != nil {
			return err
		}
		if !enter || kindOf(n.st.Mode) != KindDir || level+1 >= maxDepth {
			continue
		}
		if sub, err := n.open(unix.O_DIRECTORY); err == nil {
			if err := t.walk(sub, n.path+"/", level+1); err != nil {
				return err
			}
		}
	}
	return err
}

// read returns a directory's names in the order of the paths, those of
// directories with a slash, and errTooMany with the first ones if there are
// more than may be looked at.
func (t *traversal) read(dir *os.File) ([]string, error) {
	found, err := dir.ReadDir(max(t.max-t.seen, 0) + 1)
	if err != nil && err != io.EOF {
		return nil, err
	}
	err = nil
	if t.seen += len(found); t.seen > t.max {
		err = errTooMany
		found = found[:len(found)-1]
	}
	names := make([]string, len(found))
	for i, e := range found {
		names[i] = e.Name()
		if e.IsDir() {
			names[i] += "/"
		}
	}
	slices.Sort(names)
	return names, err
}
