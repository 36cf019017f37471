package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/klauspost/compress/zstd"
)

// ErrTooBig is for an image beyond the store's bounds.
var ErrTooBig = errors.New("image is too big")

const (
	maxPath = 4096 // PATH_MAX; longer names cannot be files
	// maxWindow bounds the memory that a zstd stream makes its reader take.
	maxWindow = 128 << 20
)

// budget counts what is unpacked for one image against the store's bounds.
type budget struct {
	bytes, files, raw          int64
	maxBytes, maxFiles, maxRaw int64
	parents                    map[string]bool // directories that entries imply
}

func (s *Store) budget() *budget {
	return &budget{
		maxBytes: s.maxBytes, maxFiles: s.maxFiles,
		// Headers, padding and extended headers come on top of the content.
		maxRaw:  s.maxBytes + 4096*s.maxFiles,
		parents: map[string]bool{},
	}
}

func (b *budget) tooManyBytes() error {
	return fmt.Errorf("%w: unpacks to more than %d MiB", ErrTooBig, b.maxBytes>>20)
}

func (b *budget) addFile() error {
	b.files++
	if b.files > b.maxFiles {
		return fmt.Errorf("%w: more than %d files", ErrTooBig, b.maxFiles)
	}
	return nil
}

func (b *budget) addBytes(n int64) error {
	// A sparse file may claim up to 2^63 bytes, so no sum before the check.
	if n > b.maxBytes-b.bytes {
		return b.tooManyBytes()
	}
	b.bytes += n
	return nil
}

// admit decides on an entry of an archive before anything is written.
func (b *budget) admit(h *tar.Header) (bool, error) {
	if len(h.Name) > maxPath || len(h.Linkname) > maxPath {
		return false, fmt.Errorf("archive has a name of %d bytes", max(len(h.Name), len(h.Linkname)))
	}
	if err := b.addFile(); err != nil {
		return false, err
	}
	// Missing parents are made, and a name may have two thousand of them.
	for p := path.Dir(h.Name); p != "." && p != "/" && !b.parents[p]; p = path.Dir(p) {
		b.parents[p] = true
		if err := b.addFile(); err != nil {
			return false, err
		}
	}
	for key := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && !keepXattr(name) {
			delete(h.PAXRecords, key)
		}
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		// A device of the host's, open to whoever gets at the file. The
		// sandbox's /dev is made by its runtime and needs none of these.
		return false, nil
	case tar.TypeReg:
		return true, b.addBytes(h.Size)
	}
	return true, nil
}

// keepXattr is whether an extended attribute belongs to an image's content:
// file capabilities and the users' own. The others steer the host's security
// modules, or the overlay that the files will be part of.
func keepXattr(name string) bool {
	return name == "security.capability" ||
		strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// meteredReader counts bytes of the uncompressed stream; it fails where they are more
// than any archive within the bounds can have.
type meteredReader struct {
	r io.Reader
	b *budget
}

func (m meteredReader) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.b.raw += int64(n)
	if m.b.raw > m.b.maxRaw {
		return n, m.b.tooManyBytes()
	}
	return n, err
}

// applyTar unpacks one uncompressed layer over root and reads r to its end,
// so that what checks the stream's digest sees all of it. Paths are resolved
// inside root, whatever links the archive makes.
func applyTar(ctx context.Context, root string, r io.Reader, b *budget) error {
	r = meteredReader{r, b}
	if _, err := archive.Apply(ctx, root, r, archive.WithFilter(b.admit)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, r)
	return err
}

// layer is one layer of an image, not unpacked yet.
type layer struct {
	// open returns the layer as it is stored; the reader checks its digest
	// and fails at the end if it is another.
	open func(ctx context.Context) (io.ReadCloser, error)
	// size is that of the stored form, in bytes.
	size int64
	// diffID is the digest of the uncompressed form.
	diffID string
}

// unpack applies a layer over root.
func (l layer) unpack(ctx context.Context, root string, b *budget, count func(n int)) error {
	stored, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer stored.Close()
	counted := &countingReader{stored, count}
	plain, err := decompress(counted)
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := applyTar(ctx, root, newVerifier(plain, l.diffID, -1), b); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, counted)
	return err
}

type countingReader struct {
	r     io.Reader
	count func(n int)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.count(n)
	return n, err
}

// verifier passes a stream on and fails at its end if the digest, or the size
// unless that is -1, is not as expected.
type verifier struct {
	r      io.Reader
	sum    hash.Hash
	digest string
	n      int64
	size   int64
}

func newVerifier(r io.Reader, digest string, size int64) *verifier {
	return &verifier{r: r, sum: sha256.New(), digest: digest, size: size}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	if v.size >= 0 && v.n > v.size {
		return n, fmt.Errorf("digest mismatch: %s is %d bytes, got more", v.digest, v.size)
	}
	if err == io.EOF {
		if got := "sha256:" + hex.EncodeToString(v.sum.Sum(nil)); got != v.digest {
			return n, fmt.Errorf("digest mismatch: got %s, want %s", got, v.digest)
		}
	}
	return n, err
}

// decompress finds out how a layer or archive is compressed from its first
// bytes, as media types are not to be relied on.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(262)
	if err != nil && err != io.EOF {
		return nil, err
	}
	has := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case len(head) == 262 && string(head[257:262]) == "ustar":
		return io.NopCloser(br), nil
	case has("\x1f\x8b"):
		return gzip.NewReader(br)
	case has("\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case has("\xfd7zXZ\x00"), has("BZh"):
		return nil, errors.New("compressed with xz or bzip2; want gzip, zstd or none")
	}
	return io.NopCloser(br), nil
}

// newRoot makes an empty directory with the mode of a root directory, in tmp.
func (s *Store) newRoot(prefix string) (string, error) {
	dir, err := s.work(prefix)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// diskUsage sums the regular files below dir, each inode once.
func diskUsage(dir string) (int64, error) {
	var sum int64
	linked := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Nlink > 1 {
			if linked[st.Ino] {
				return nil
			}
			linked[st.Ino] = true
		}
		sum += fi.Size()
		return nil
	})
	return sum, err
}
