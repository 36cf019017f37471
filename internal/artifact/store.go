package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	DefaultTTL      = time.Hour
	DefaultMaxBytes = 10 << 30
)

// staging is where files are written before they are renamed into place. It
// stands in the same directory, so in the same file system. The dot keeps it
// apart from tokens.
const staging = ".staging"

// Options configure a Store.
type Options struct {
	// Dir holds the files. It is made if missing. No other process may write
	// to it, and one Store at a time uses it.
	Dir string
	// BaseURL is what URLs start with, such as "https://example.org/lab". If
	// empty, URLs are absolute paths until SetBaseURL is called.
	BaseURL string
	// TTL is how long a file is served; DefaultTTL if zero.
	TTL time.Duration
	// MaxBytes bounds the sum of all files; DefaultMaxBytes if zero.
	MaxBytes int64
	// Log is for what the sweep finds; nothing is logged if nil.
	Log *slog.Logger
	// Now is the clock; time.Now if nil.
	Now func() time.Time
}

// Store stages files and serves them until they expire. Its methods are safe
// for concurrent use.
type Store struct {
	index    Index
	root     *os.Root
	base     atomic.Pointer[string]
	ttl      time.Duration
	maxBytes int64
	log      *slog.Logger
	now      func() time.Time

	// used counts the bytes of the index and those being written.
	used atomic.Int64

	sweeping sync.Mutex // held by Sweep; taken before removal
	removal  sync.Mutex // held while one artifact is removed, so that its bytes are released once

	mu      sync.Mutex // guards pending; nothing else is taken while it is held
	pending map[string]bool
}

// Open opens the store in o.Dir, and removes from it what has expired and
// what an earlier process left half done.
func Open(ctx context.Context, ix Index, o Options) (*Store, error) {
	if o.TTL < 0 || o.MaxBytes < 0 {
		return nil, errors.New("opening artifact store: TTL and MaxBytes must not be negative")
	}
	root, err := openDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening artifact store: %w", err)
	}
	s := &Store{
		index:    ix,
		root:     root,
		ttl:      o.TTL,
		maxBytes: o.MaxBytes,
		log:      o.Log,
		now:      o.Now,
		pending:  map[string]bool{},
	}
	if s.ttl == 0 {
		s.ttl = DefaultTTL
	}
	if s.maxBytes == 0 {
		s.maxBytes = DefaultMaxBytes
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.SetBaseURL(o.BaseURL)

	used, err := ix.ArtifactBytes(ctx)
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("opening artifact store: %w", err)
	}
	s.used.Store(used)
	if _, err := s.Sweep(ctx); err != nil {
		root.Close()
		return nil, fmt.Errorf("opening artifact store: %w", err)
	}
	return s, nil
}

// openDir makes and opens the store's directory. A web server may traverse
// it, but nobody may list it, since the names in it are the capabilities.
func openDir(dir string) (*os.Root, error) {
	_, statErr := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(statErr, fs.ErrNotExist) {
		err = chmod(root, ".", 0o711)
	}
	if err == nil {
		err = claim(root)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// claim makes a directory the store's own. One with other people's files in
// it keeps its mode: taking /tmp from everybody would be worse than refusing.
func claim(root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o066 != 0 {
		entries, err := fs.ReadDir(root.FS(), ".")
		if err != nil {
			return err
		}
		if _, err := root.Lstat(staging); err != nil && len(entries) > 0 {
			return fmt.Errorf("%s holds other files and others may list or change it: name an empty directory, or chmod it 711", root.Name())
		}
		if err := chmod(root, ".", info.Mode().Perm()&^0o066); err != nil {
			return err
		}
	}
	if err := root.Mkdir(staging, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// chmod sets the mode of a directory whatever the umask says.
func chmod(root *os.Root, dir string, mode fs.FileMode) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Chmod(mode)
}

// Close lets go of the directory. Files stay; downloads in progress go on.
func (s *Store) Close() error { return s.root.Close() }

// SetBaseURL changes what URLs start with from now on.
func (s *Store) SetBaseURL(base string) {
	base = strings.TrimRight(base, "/")
	s.base.Store(&base)
}

// URL returns where a is served.
func (s *Store) URL(a Artifact) string {
	return *s.base.Load() + Prefix + a.Token + "/" + url.PathEscape(a.File)
}
