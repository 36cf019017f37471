package agent

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Format is how a directory is packed.
type Format string

// The formats of an archive.
const (
	TarGz Format = "tar.gz"
	Zip   Format = "zip"
)

// Archive packs a directory inside the sandbox. All names in the archive begin
// with that of the directory. Symbolic links that lead out of it, devices,
// sockets and FIFOs are left out. The reader fails if something could not be
// packed; the caller closes it, and it ends with ctx. What it yields is the
// sandbox's word, as any file of it is. ErrNoFile if there is nothing,
// ErrNotDir if it is no directory.
func (c *Client) Archive(ctx context.Context, dir string, format Format) (io.ReadCloser, error) {
	res, err := c.do(ctx, "GET", "archive", url.Values{"path": {dir}, "format": {string(format)}}, nil)
	if err != nil {
		return nil, fmt.Errorf("packing %q: %w", dir, err)
	}
	return res.Body, nil
}

func (s *Server) serveArchive(w http.ResponseWriter, r *http.Request) error {
	var a archiver
	switch Format(r.FormValue("format")) {
	case TarGz:
		a = newTarArchive(w)
	case Zip:
		a = newZipArchive(w)
	default:
		return fmt.Errorf("format %q", r.FormValue("format"))
	}
	name := s.path(r.FormValue("path"))
	dir, err := openDir(name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	top := filepath.Base(name)
	if name == s.path("/") {
		top = "root"
	}
	p := packer{a: a, top: top, buf: make([]byte, 256<<10)}
	t := traversal{max: maxEntries, stop: r.Context().Err, visit: p.pack}
	if err := errors.Join(t.walk(dir, "", 0), a.Close()); err != nil {
		panic(http.ErrAbortHandler) // a cut is all that is left to say
	}
	return nil
}

// archiver is a format.
type archiver interface {
	// add begins an entry, and returns where its content goes.
	add(name string, n node, target string) (io.Writer, error)
	Close() error
}

type packer struct {
	a   archiver
	top string
	buf []byte
}

// pack adds a node of the tree to the archive.
func (p *packer) pack(n node) (enter bool, err error) {
	name := p.top + "/" + n.path
	switch kindOf(n.st.Mode) {
	case KindDir:
		_, err := p.a.add(name+"/", n, "")
		return true, err
	case KindLink:
		if target := string(n.target()); staysBelow(n.path, target) {
			_, err = p.a.add(name, n, target)
		}
		return false, err
	case KindFile:
		return false, p.file(name, n)
	}
	return false, nil
}

func (p *packer) file(name string, n node) error {
	f, err := n.open(0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return nil // swapped meanwhile
	}
	n.st.Size = st.Size()
	w, err := p.a.add(name, n, "")
	if err != nil {
		return err
	}
	// A file that grows is packed as it was; one that shrinks cannot be.
	size, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(f, st.Size())}, p.buf)
	if err == nil && size < st.Size() {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// staysBelow reports whether a symbolic link leads to a place within the tree
// whatever other links there are: upwards only at its beginning, and not too
// far.
func staysBelow(link, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return false
	}
	down := target
	for strings.HasPrefix(down, "../") {
		down = strings.TrimPrefix(down, "../")
	}
	for e := range strings.SplitSeq(down, "/") {
		if e == ".." && down != ".." {
			return false
		}
	}
	return filepath.IsLocal(path.Join(path.Dir(link), target))
}

type tarArchive struct {
	*tar.Writer
	gz *gzip.Writer
}

func newTarArchive(w io.Writer) *tarArchive {
	// A sandbox's processor is slower than its disk.
	gz, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // a known level
	return &tarArchive{tar.NewWriter(gz), gz}
}

func (a *tarArchive) add(name string, n node, target string) (io.Writer, error) {
	e := n.entry()
	h := &tar.Header{Name: name, Mode: int64(e.Mode), ModTime: e.ModTime.Truncate(time.Second), Typeflag: tar.TypeReg, Size: n.st.Size}
	switch e.Kind {
	case KindDir:
		h.Typeflag, h.Size = tar.TypeDir, 0
	case KindLink:
		h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, target
	}
	return a, a.WriteHeader(h)
}

func (a *tarArchive) Close() error { return errors.Join(a.Writer.Close(), a.gz.Close()) }

type zipArchive struct{ *zip.Writer }

func newZipArchive(w io.Writer) *zipArchive {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	return &zipArchive{z}
}

func (a *zipArchive) add(name string, n node, target string) (io.Writer, error) {
	e := n.entry()
	h := &zip.FileHeader{Name: name, Modified: e.ModTime, Method: zip.Deflate}
	mode := fs.FileMode(e.Mode)
	switch e.Kind {
	case KindDir:
		h.Method = zip.Store
		mode |= fs.ModeDir
	case KindLink:
		mode |= fs.ModeSymlink
	}
	h.SetMode(mode)
	w, err := a.CreateHeader(h)
	if err == nil && e.Kind == KindLink {
		_, err = io.WriteString(w, target) // as Info-ZIP does
	}
	return w, err
}
