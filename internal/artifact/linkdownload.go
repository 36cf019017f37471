package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// bulkBytes is how much is read and written at a time.
const bulkBytes = 256 << 10

// maxRanges bounds the parts that one request gets: each is one to the sandbox.
const maxRanges = 16

// archiveFormats are what a directory can be packed as, by the suffix of the
// name in the URL.
var archiveFormats = map[string]struct{ format, mime string }{
	".tar.gz": {"tar.gz", "application/gzip"},
	".zip":    {"zip", "application/zip"},
}

// ShareHandler serves the files of links below SharePrefix, as they are at the
// moment of the request, by the rules of Store.Handler.
func (l *Links) ShareHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setCommon(w.Header())
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			plain(w, http.StatusMethodNotAllowed, "method not allowed")
			return
		}
		refuse(w, l.serveShare(w, r))
	})
}

// refuse answers with a refusal, if there is one.
func refuse(w http.ResponseWriter, err error) {
	var known *refusal
	switch {
	case errors.As(err, &known):
		known.answer(w)
	case err != nil:
		errBroken.answer(w)
	}
}

func (l *Links) serveShare(w http.ResponseWriter, r *http.Request) error {
	g, name, err := l.granted(r, download, SharePrefix)
	if err != nil {
		return err
	}
	ws, leave, err := l.enter(r.Context(), g)
	if err != nil {
		return err
	}
	defer leave()
	file, err := ws.Stat(r.Context(), g.path)
	if err != nil {
		return l.unreadable(g, err)
	}
	if file.Dir {
		for suffix, as := range archiveFormats {
			if sameName(name, fileName(g.path)+suffix) {
				return l.serveArchive(w, r, ws, g, name, as.format, as.mime)
			}
		}
		return errNotFound
	}
	if !sameName(name, fileName(g.path)) {
		return errNotFound
	}
	if !file.Regular {
		return errGone
	}
	return l.serveFile(w, r, ws, g)
}

// unreadable is the answer to an error of a workspace.
func (l *Links) unreadable(g grant, err error) error {
	if errors.Is(err, ErrNotFound) {
		return errGone
	}
	l.log.Info("reading a shared file failed", "sandbox", g.sandbox, "link", g.key(), "err", err)
	return errBroken
}

func (l *Links) serveFile(w http.ResponseWriter, r *http.Request, ws Workspace, g grant) error {
	head, file, err := readHead(r.Context(), ws, g.path)
	if err != nil {
		return l.unreadable(g, err)
	}
	h := w.Header()
	sum := sha256.Sum256([]byte(file.Version))
	h.Set("Etag", `"`+hex.EncodeToString(sum[:16])+`"`)
	h.Set("Cache-Control", "private, no-cache") // it may change at any time
	setContent(h, MediaType(head, fileName(g.path)), fileName(g.path))
	if strings.Count(r.Header.Get("Range"), ",") >= maxRanges {
		r = r.Clone(r.Context())
		r.Header.Del("Range") // which is allowed, RFC 9110, 14.2
	}
	content := &liveContent{ctx: r.Context(), ws: ws, path: g.path, file: file}
	defer content.close()
	http.ServeContent(&bulkWriter{w}, r, "", file.ModTime, content)
	if content.err != nil {
		l.log.Info("a download broke off", "sandbox", g.sandbox, "link", g.key(), "err", content.err)
		panic(http.ErrAbortHandler) // the size is announced; a cut is all that is left to say
	}
	return nil
}

// readHead returns what decides on a file's type.
func readHead(ctx context.Context, ws Workspace, path string) ([]byte, LiveFile, error) {
	body, file, err := ws.Read(ctx, path, 0, headBytes)
	if err != nil {
		return nil, LiveFile{}, err
	}
	defer body.Close()
	head, err := io.ReadAll(io.LimitReader(body, headBytes))
	return head, file, err
}

// serveArchive packs a directory on the way. How long it will be is not known,
// so there are no ranges.
func (l *Links) serveArchive(w http.ResponseWriter, r *http.Request, ws Workspace, g grant, name, format, mime string) error {
	setContent(w.Header(), mime, name)
	w.Header().Set("Accept-Ranges", "none")
	if r.Method == http.MethodHead {
		return nil
	}
	packed, err := ws.Archive(r.Context(), g.path, format)
	if err != nil {
		return l.unreadable(g, err)
	}
	defer packed.Close()
	if _, err := (&bulkWriter{w}).ReadFrom(packed); err != nil {
		l.log.Info("a download broke off", "sandbox", g.sandbox, "link", g.key(), "err", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// bulkWriter writes much at a time. Whoever takes nothing of that for too long
// is cut off, so that no connection is held for ever.
type bulkWriter struct{ http.ResponseWriter }

// ReadFrom copies all of r.
func (b *bulkWriter) ReadFrom(r io.Reader) (int64, error) {
	control := http.NewResponseController(b.ResponseWriter)
	buf := make([]byte, bulkBytes)
	var sent int64
	for {
		n, err := fill(r, buf)
		if n > 0 {
			// A recorder may know no deadlines; that is no reason to fail.
			_ = control.SetWriteDeadline(time.Now().Add(downloadGrace))
			m, werr := b.Write(buf[:n])
			sent += int64(m)
			if werr != nil {
				return sent, werr
			}
		}
		switch {
		case err == io.EOF:
			return sent, nil
		case err != nil:
			return sent, err
		}
	}
}

// fill reads until a good part of buf is full: small reads would make small
// packets.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf)/4 && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// liveContent is a file of a workspace for http.ServeContent. What was opened
// is read on for as long as nobody seeks elsewhere.
type liveContent struct {
	ctx  context.Context
	ws   Workspace
	path string
	file LiveFile
	pos  int64

	body io.ReadCloser
	at   int64 // where body is
	err  error // of reading
}

func (c *liveContent) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.file.Size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	c.pos = offset
	return offset, nil
}

func (c *liveContent) Read(p []byte) (int, error) {
	if c.pos >= c.file.Size {
		return 0, io.EOF
	}
	if c.body == nil || c.at != c.pos {
		if c.err = c.reopen(); c.err != nil {
			return 0, c.err
		}
	}
	n, err := c.body.Read(p)
	c.pos += int64(n)
	c.at = c.pos
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

func (c *liveContent) reopen() error {
	c.close()
	body, file, err := c.ws.Read(c.ctx, c.path, c.pos, c.file.Size-c.pos)
	if err != nil {
		return err
	}
	c.body, c.at = body, c.pos
	// A file that has grown begins as it did; another one may not.
	if file.Identity != c.file.Identity || file.Size < c.file.Size {
		return errors.New("the file was replaced or cut meanwhile")
	}
	return nil
}

func (c *liveContent) close() {
	if c.body != nil {
		c.body.Close()
		c.body = nil
	}
}
