package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// discardTimeout bounds the clean-up after a failed Stage, whose own context
// may have ended.
const discardTimeout = 10 * time.Second

// File describes a file to stage.
type File struct {
	// Path is what the script called it; it may be hostile.
	Path string
	// Subject and Run are kept with the file.
	Subject, Run string
	// MaxBytes bounds this file. Zero admits only an empty one.
	MaxBytes int64
}

// Stage copies r to disk in constant memory and returns what was made of it.
// It fails with ErrTooLarge if r holds more than f.MaxBytes, and with ErrFull
// if the store's quota or the disk is used up. A failed Stage leaves nothing.
// Stage cannot interrupt a Read of r: it ends before the next one after ctx.
func (s *Store) Stage(ctx context.Context, f File, r io.Reader) (Artifact, error) {
	now := s.now().UTC().Truncate(time.Millisecond) // as an Index keeps it
	a := Artifact{
		Token:   newToken(),
		File:    fileName(f.Path),
		Path:    validPath(f.Path),
		Subject: f.Subject,
		Run:     f.Run,
		Created: now,
		Expires: now.Add(s.ttl).Truncate(time.Millisecond),
	}
	s.setPending(a.Token, true)
	defer s.setPending(a.Token, false)

	w := &sink{store: s, max: f.MaxBytes, hash: sha256.New()}
	err := s.write(w, a, contextReader{ctx, r})
	a.Bytes, a.SHA256 = w.reserved, hex.EncodeToString(w.hash.Sum(nil))
	a.MIME = MediaType(w.head, a.File)
	if err == nil {
		err = s.publish(ctx, a)
	}
	if err != nil {
		s.discard(ctx, a)
		return Artifact{}, fmt.Errorf("staging %q: %w", a.Path, err)
	}
	return a, nil
}

// write copies r through w to the temporary file of a. It does not sync: a
// file that a power cut has shortened is not served and swept, since its size
// is not the index's.
func (s *Store) write(w *sink, a Artifact, r io.Reader) error {
	dir := staging + "/" + a.Token
	if err := s.root.Mkdir(dir, 0o755); err != nil {
		return diskError(err)
	}
	if err := chmod(s.root, dir, 0o755); err != nil {
		return diskError(err)
	}
	file, err := s.root.OpenFile(dir+"/"+a.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return diskError(err)
	}
	defer file.Close()
	if err := file.Chmod(0o644); err != nil {
		return diskError(err)
	}
	w.file = file
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	return diskError(file.Close())
}

// publish moves a written file to where it is served, then commits its row.
// In this order nothing is promised before it can be downloaded; if the
// process dies in between, the sweep removes a directory without a row.
func (s *Store) publish(ctx context.Context, a Artifact) error {
	if err := s.root.Rename(staging+"/"+a.Token, a.Token); err != nil {
		return diskError(err)
	}
	return s.index.AddArtifact(ctx, a)
}

// discard undoes a failed Stage. What it cannot remove, the sweep will.
func (s *Store) discard(ctx context.Context, a Artifact) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	err := errors.Join(
		diskError(s.root.RemoveAll(staging+"/"+a.Token)),
		diskError(s.root.RemoveAll(a.Token)),
		// AddArtifact may have failed after its commit.
		s.index.DeleteArtifact(ctx, a.Token),
	)
	if err != nil {
		// The bytes stay reserved, since they may still be there.
		s.log.Error("removing a file that could not be staged", "path", a.Path, "err", err)
		return
	}
	s.used.Add(-a.Bytes)
}

func (s *Store) setPending(token string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.pending[token] = true
	} else {
		delete(s.pending, token)
	}
}

// reserve takes n bytes of the quota, all or nothing.
func (s *Store) reserve(n int64) bool {
	for {
		used := s.used.Load()
		if n > s.maxBytes-used {
			return false
		}
		if s.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// sink writes a file within its bounds, and hashes it on the way. Bytes are
// reserved before they are written.
type sink struct {
	store    *Store
	file     io.Writer
	max      int64
	reserved int64
	hash     hash.Hash
	head     []byte // the first headBytes
}

func (w *sink) Write(p []byte) (int, error) {
	n := int64(len(p))
	if n > w.max-w.reserved {
		return 0, ErrTooLarge
	}
	if !w.store.reserve(n) {
		return 0, ErrFull
	}
	w.reserved += n
	if room := headBytes - len(w.head); room > 0 {
		w.head = append(w.head, p[:min(room, len(p))]...)
	}
	w.hash.Write(p)
	written, err := w.file.Write(p)
	return written, diskError(err)
}

// contextReader fails once its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// diskError drops the path from an error of the file system, since it holds a
// token, and makes ErrFull of a full disk.
func diskError(err error) error {
	var inPath *fs.PathError
	var inLink *os.LinkError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: no space left on its disk", ErrFull)
	case errors.As(err, &inPath):
		return fmt.Errorf("%s: %w", inPath.Op, inPath.Err)
	case errors.As(err, &inLink):
		return fmt.Errorf("%s: %w", inLink.Op, inLink.Err)
	}
	return err
}
