package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Options set up a Store. The zero value is usable.
type Options struct {
	// Log gets what an operator may want to know; default is to drop it.
	Log *slog.Logger
	// MaxBytes bounds the regular files of an unpacked image, default 20 GiB.
	MaxBytes int64
	// MaxFiles bounds the number of an unpacked image's files, directories
	// and links, default one million.
	MaxFiles int64
}

// Store keeps images in a directory. Its methods are safe for concurrent use;
// two processes must not have the same directory open.
//
//	index.json          what there is; replaced atomically
//	rootfs/<hex>/       a root filesystem, by its image's digest
//	layers/<id>/        what a build step changed, as an overlay's upper directory
//	tmp/                work in progress
//
// A directory becomes visible by a rename followed by a new index, and
// disappears by a new index followed by a rename into tmp; what a crash leaves
// in between is in no index, and Open deletes it.
type Store struct {
	dir       string
	log       *slog.Logger
	maxBytes  int64
	maxFiles  int64
	transport http.RoundTripper
	etc       string        // the host's /etc, for its Debian mirror
	builder   chan struct{} // holds one token; who has it may build

	mu    sync.Mutex // guards what follows, and the directories' names
	index index
	held  map[string]int // by digest: how many Acquires are not released
	inUse []string       // layers of the build under way
}

// Open opens the store in dir, making it with mode 0700 if it is missing, and
// deletes what a crash left half-done.
//
// Images without a name, which are kept only for those who hold them, survive
// Open until the first change of the store, so that the owner can Acquire
// what its sandboxes stand on.
func Open(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("opening image store: %w", err)
	}
	s := &Store{
		dir: dir, log: o.Log, maxBytes: o.MaxBytes, maxFiles: o.MaxFiles,
		transport: newTransport(), etc: "/etc",
		builder: make(chan struct{}, 1), held: map[string]int{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.maxBytes <= 0 {
		s.maxBytes = 20 << 30
	}
	if s.maxFiles <= 0 {
		s.maxFiles = 1_000_000
	}
	if err := s.recover(); err != nil {
		return nil, fmt.Errorf("opening image store %s: %w", dir, err)
	}
	return s, nil
}

// recover makes the directories, reads the index, and deletes what is in no
// index.
func (s *Store) recover() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	// An existing directory may be open to others; setuid files are inside.
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return err
	}
	if err := removeAll(s.path("tmp")); err != nil {
		return err
	}
	for _, d := range []string{"tmp", "rootfs", "layers"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return err
		}
	}
	var err error
	if s.index, err = readIndex(s.path("index.json")); err != nil {
		return err
	}
	for digest := range s.index.Images {
		if fi, err := os.Lstat(s.rootfs(digest)); err != nil || !fi.IsDir() {
			s.log.Error("image is listed but its root filesystem is missing; dropped", "digest", digest)
			delete(s.index.Images, digest)
		}
	}
	s.index.dropLayers(func(id string) bool {
		fi, err := os.Lstat(s.path("layers", id))
		return err == nil && fi.IsDir()
	})
	return s.deleteUnlisted()
}

func (s *Store) deleteUnlisted() error {
	roots, err := os.ReadDir(s.path("rootfs"))
	if err != nil {
		return err
	}
	for _, e := range roots {
		if _, ok := s.index.Images["sha256:"+e.Name()]; !ok {
			if err := removeAll(s.path("rootfs", e.Name())); err != nil {
				return err
			}
		}
	}
	layers, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return err
	}
	known := s.index.layers()
	for _, e := range layers {
		if !known[e.Name()] {
			if err := removeAll(s.path("layers", e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Store) rootfs(digest string) string {
	return s.path("rootfs", strings.TrimPrefix(digest, "sha256:"))
}

// Get returns the image that ref names: a name, a digest, or the beginning of
// one (4 hex digits at least). It fails with ErrNotFound if there is none.
func (s *Store) Get(ref string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	return s.view(img), nil
}

// Acquire is Get for who is going to use the root filesystem: it stays until
// release is called, which is to be done once and does nothing after that.
func (s *Store) Acquire(ref string) (img Image, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.find(ref)
	if err != nil {
		return Image{}, nil, err
	}
	digest := found.Digest
	s.held[digest]++
	return s.view(found), sync.OnceFunc(func() { s.release(digest) }), nil
}

func (s *Store) release(digest string) {
	s.mu.Lock()
	s.held[digest]--
	gone := false
	if s.held[digest] == 0 {
		delete(s.held, digest)
		img := s.index.Images[digest]
		gone = img != nil && len(img.Names) == 0
	}
	s.mu.Unlock()
	if gone {
		if err := s.update(func() error { return nil }); err != nil {
			s.log.Error("deleting an image that nothing points at", "digest", digest, "err", err)
		}
	}
}

// List returns all images, ordered by name; those without a name come last.
func (s *Store) List() ([]Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Image
	for _, img := range s.index.Images {
		all = append(all, s.view(img))
	}
	slices.SortFunc(all, func(a, b Image) int {
		if (len(a.Names) == 0) != (len(b.Names) == 0) {
			return len(b.Names) - len(a.Names)
		}
		return strings.Compare(strings.Join(append(a.Names, a.Digest), " "), strings.Join(append(b.Names, b.Digest), " "))
	})
	return all, nil
}

// Remove takes a name away from its image, or, given a digest, all of them.
// An image that no name points at is deleted. It fails with ErrInUse, changing
// nothing, if that image is acquired, and with ErrNotFound.
func (s *Store) Remove(ctx context.Context, ref string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.update(func() error {
		img, err := s.find(ref)
		if err != nil {
			return err
		}
		var names []string
		if r, err := parseName(ref); err == nil && slices.Contains(img.Names, familiar(r)) {
			names = slices.DeleteFunc(slices.Clone(img.Names), func(n string) bool { return n == familiar(r) })
		}
		if len(names) == 0 && s.held[img.Digest] > 0 {
			return fmt.Errorf("removing image %s: %w", ref, ErrInUse)
		}
		for _, n := range img.Names {
			if !slices.Contains(names, n) {
				delete(s.index.Builds, n)
			}
		}
		img.Names = names
		return nil
	})
}

// view is an image as callers see it, theirs to change. The lock is held.
func (s *Store) view(img *Image) Image {
	v := *img
	v.Names = slices.Clone(img.Names)
	v.Config.Env = slices.Clone(img.Config.Env)
	v.Config.Labels = maps.Clone(img.Config.Labels)
	v.Missing = slices.Clone(img.Missing)
	v.Rootfs = s.rootfs(img.Digest)
	return v
}

// find looks an image up, names first. The lock is held.
func (s *Store) find(ref string) (*Image, error) {
	if img, ok := s.index.Images[ref]; ok {
		return img, nil
	}
	r, nameErr := parseName(ref)
	if nameErr == nil {
		if img := s.index.named(familiar(r)); img != nil {
			return img, nil
		}
	}
	if m := digestPrefix.FindStringSubmatch(ref); m != nil {
		var found []*Image
		for digest, img := range s.index.Images {
			if strings.HasPrefix(digest, "sha256:"+m[1]) {
				found = append(found, img)
			}
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("image %s: %w", ref, ErrNotFound)
		case 1:
			return found[0], nil
		}
		return nil, fmt.Errorf("image %s: %d digests begin like this", ref, len(found))
	}
	if nameErr != nil {
		return nil, nameErr
	}
	return nil, fmt.Errorf("image %s: %w", ref, ErrNotFound)
}

// put makes a finished root filesystem, a directory in tmp, visible as the
// image img under img's names, taking them from whichever image had them.
// If the image exists, it only gets the names.
func (s *Store) put(img Image, rootfs string) (Image, error) {
	if err := syncFS(rootfs); err != nil {
		return Image{}, fmt.Errorf("storing image: %w", err)
	}
	img.Missing = view{rootfs}.missing()
	var stored Image
	err := s.update(func() error {
		if _, ok := s.index.Images[img.Digest]; !ok {
			// One may be there that did not get into the index.
			if err := removeAll(s.rootfs(img.Digest)); err != nil {
				return err
			}
			if err := os.Rename(rootfs, s.rootfs(img.Digest)); err != nil {
				return err
			}
			added := img
			added.Names = nil
			s.index.Images[img.Digest] = &added
		}
		s.index.tag(img.Digest, img.Names)
		stored = s.view(s.index.Images[img.Digest])
		return nil
	})
	if err != nil {
		return Image{}, fmt.Errorf("storing image: %w", err)
	}
	return stored, nil
}

// tag gives an existing image more names. ErrNotFound if there is none.
func (s *Store) tag(digest string, names []string) (Image, error) {
	var stored Image
	err := s.update(func() error {
		img, ok := s.index.Images[digest]
		if !ok {
			return ErrNotFound
		}
		s.index.tag(digest, names)
		stored = s.view(img)
		return nil
	})
	return stored, err
}

// update changes the index and deletes what nothing points at then: images
// that have no name and no holder, and layers of no build. If change or
// writing the index fails, nothing has changed.
func (s *Store) update(change func() error) error {
	trash, err := s.commit(change)
	for _, dir := range trash {
		if err := removeAll(dir); err != nil {
			// It is in tmp by now, which the next Open empties.
			s.log.Warn("deleting files of the image store", "err", err)
		}
	}
	return err
}

func (s *Store) commit(change func() error) (trash []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.index.clone()
	if err := change(); err != nil {
		s.index = before
		return nil, err
	}
	for digest, img := range s.index.Images {
		if len(img.Names) == 0 && s.held[digest] == 0 {
			delete(s.index.Images, digest)
		}
	}
	if err := s.index.write(s.path("index.json")); err != nil {
		s.index = before
		return nil, err
	}
	return s.unlist(before), nil
}

// unlist moves the directories that the former index listed and the current
// one does not into tmp, so that they are gone from sight at once.
func (s *Store) unlist(before index) (trash []string) {
	move := func(dir string) {
		tmp, err := s.work("trash-")
		if err == nil {
			trash = append(trash, tmp)
			err = os.Rename(dir, filepath.Join(tmp, "dir"))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("deleting files of the image store", "err", err)
		}
	}
	for digest := range before.Images {
		if _, ok := s.index.Images[digest]; !ok {
			move(s.rootfs(digest))
		}
	}
	now := s.index.layers()
	for id := range before.layers() {
		if !now[id] && !slices.Contains(s.inUse, id) {
			move(s.path("layers", id))
		}
	}
	return trash
}

// work makes a directory for work in progress.
func (s *Store) work(prefix string) (string, error) {
	return os.MkdirTemp(s.path("tmp"), prefix)
}

// syncFS makes the files below dir survive a power cut, all at once: a sync
// per file would take minutes.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// removeAll deletes dir whatever the modes of the directories in it: as an
// ordinary user, one without w and x cannot be emptied as it is.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			// WalkDir reads the directory after this call.
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
