package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"time"
)

// sweepEvery is how long an expired file stays on disk at most.
const sweepEvery = time.Minute

// Run sweeps every minute until ctx ends.
func (s *Store) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("sweeping artifacts failed; it is tried again in a minute", "err", err)
		}
	}
}

// Delete removes a file at once. It is no error if there is none; a Delete
// that failed halfway is completed by the next one, or by a sweep.
func (s *Store) Delete(ctx context.Context, token string) error {
	if !validToken(token) {
		return nil
	}
	if _, err := s.remove(ctx, token); err != nil {
		return fmt.Errorf("deleting artifact: %w", err)
	}
	return nil
}

// Sweep removes files that have expired, rows whose file is gone or damaged,
// and what no row knows: token directories and temporary files that an
// earlier process left. Other files in the directory are left alone. It goes
// on after a failure, and returns how many it removed with all the failures.
func (s *Store) Sweep(ctx context.Context) (removed int, err error) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()

	// The order matters. A token seen on disk that was not pending afterwards
	// has its row by the time that rows are read, or never gets one.
	temporary, err := s.names(staging)
	if err != nil {
		return 0, fmt.Errorf("sweeping artifacts: %w", err)
	}
	published, err := s.names(".")
	if err != nil {
		return 0, fmt.Errorf("sweeping artifacts: %w", err)
	}
	pending := s.pendingTokens()
	rows, err := s.index.Artifacts(ctx)
	if err != nil {
		return 0, fmt.Errorf("sweeping artifacts: %w", err)
	}

	var errs []error
	note := func(done bool, err error) {
		if done {
			removed++
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	known := make(map[string]bool, len(rows))
	now := s.now()
	for _, a := range rows {
		known[a.Token] = true
		expired := !now.Before(a.Expires)
		if !expired && s.present(a) {
			continue
		}
		done, err := s.remove(ctx, a.Token)
		if done && !expired {
			s.log.Warn("an artifact's file was gone or damaged; its row is removed", "path", a.Path, "run", a.Run)
		}
		note(done, err)
	}
	for _, name := range published {
		if validToken(name) && !known[name] && !pending[name] {
			note(s.removeOrphan(name))
		}
	}
	for _, name := range temporary {
		if !pending[name] {
			note(s.removeOrphan(staging + "/" + name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("sweeping artifacts: %w", err)
	}
	return removed, nil
}

// remove deletes the file and then the row of a token, and releases its
// bytes. If it fails in between, a row without a file stays to be retried.
func (s *Store) remove(ctx context.Context, token string) (bool, error) {
	s.removal.Lock()
	defer s.removal.Unlock()
	a, err := s.index.Artifact(ctx, token)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if validToken(token) { // else the index is damaged, and the disk must not suffer
		if err := s.root.RemoveAll(token); err != nil {
			return false, diskError(err)
		}
	}
	if err := s.index.DeleteArtifact(ctx, token); err != nil {
		return false, err
	}
	s.used.Add(-a.Bytes)
	return true, nil
}

// removeOrphan deletes what no row knows, unless a Delete was faster.
func (s *Store) removeOrphan(name string) (bool, error) {
	s.removal.Lock()
	defer s.removal.Unlock()
	if _, err := s.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := s.root.RemoveAll(name); err != nil {
		return false, diskError(err)
	}
	s.log.Info("removed files that an unfinished run left")
	return true, nil
}

// names lists a directory of the store.
func (s *Store) names(dir string) ([]string, error) {
	d, err := s.root.Open(dir)
	if err != nil {
		return nil, diskError(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return names, diskError(err)
}

func (s *Store) pendingTokens() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pending)
}

// present reports whether the file of a row is there as the row says. An
// error other than its absence is no reason to delete it.
func (s *Store) present(a Artifact) bool {
	info, err := s.lstat(a)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotRegular)
	}
	return info.Size() == a.Bytes
}

// errNotRegular is for a symlink or special file where a file should be.
var errNotRegular = errors.New("not a regular file in a directory")

// lstat looks at the file of a. Nothing on the way may be a symlink, not even
// one that stays inside the store: it would lead to another token's file.
func (s *Store) lstat(a Artifact) (fs.FileInfo, error) {
	if !validToken(a.Token) || !fs.ValidPath(a.File) || a.File == "." || strings.Contains(a.File, "/") {
		return nil, errNotRegular // the index is damaged
	}
	dir, err := s.root.Lstat(a.Token)
	if err != nil {
		return nil, err
	}
	if !dir.IsDir() {
		return nil, errNotRegular
	}
	info, err := s.root.Lstat(a.Token + "/" + a.File)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return info, nil
}

// open opens the file of a for reading, if it is what its row says.
func (s *Store) open(a Artifact) (*os.File, error) {
	info, err := s.lstat(a)
	if err != nil {
		return nil, err
	}
	// Not blocking, should a pipe have taken the file's place since.
	file, err := s.root.OpenFile(a.Token+"/"+a.File, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil && (!os.SameFile(info, opened) || opened.Size() != a.Bytes) {
		err = errNotRegular // swapped since, or damaged
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
