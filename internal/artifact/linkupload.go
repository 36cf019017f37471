package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

var errUsed = &refusal{status: http.StatusGone, text: "this link was used already, or revoked"}

// UploadHandler takes files by the links below UploadPrefix. Its answers are
// for people who use curl.
func (l *Links) UploadHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setCommon(w.Header())
		if r.Method != http.MethodPut {
			w.Header().Set("Allow", "PUT")
			plain(w, http.StatusMethodNotAllowed, "send one file to this address by PUT, such as: curl -T FILE 'ADDRESS'")
			return
		}
		refuse(w, l.serveUpload(w, r))
	})
}

func (l *Links) serveUpload(w http.ResponseWriter, r *http.Request) error {
	g, name, err := l.granted(r, upload, UploadPrefix)
	if err != nil {
		return err
	}
	if !sameName(name, fileName(g.path)) {
		return errNotFound
	}
	tooLarge := &refusal{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the file is larger than %d bytes, which is all that this link takes; nothing was stored", g.maxBytes)}
	if r.ContentLength > g.maxBytes {
		w.Header().Set("Connection", "close") // rather than read it all
		return tooLarge
	}
	ws, leave, err := l.enter(r.Context(), g)
	if err != nil {
		return err
	}
	defer leave()
	// First, so that of two uploads at a time one is refused, and a crash
	// leaves the link used rather than good for another file.
	switch err := l.store.EndLink(r.Context(), g.key(), g.expires); {
	case errors.Is(err, ErrLinkEnded):
		return errUsed
	case err != nil:
		l.log.Error("using a link", "link", g.key(), "err", err)
		return errInternal
	}
	body := &sentFile{r: http.MaxBytesReader(w, r.Body, g.maxBytes)}
	if err := ws.Write(r.Context(), g.path, body); err != nil {
		w.Header().Set("Connection", "close") // the rest is of no use
		l.reopen(r.Context(), g)
		return l.untaken(g, body.err, err, tooLarge)
	}
	plain(w, http.StatusCreated, fmt.Sprintf("stored %d bytes as %s", body.n, strconv.Quote(g.path)))
	return nil
}

// untaken is the answer to an upload that failed, of which nothing is left.
func (l *Links) untaken(g grant, sent, err error, tooLarge *refusal) error {
	var above *http.MaxBytesError
	switch {
	case errors.As(sent, &above):
		return tooLarge
	case sent != nil:
		return &refusal{status: http.StatusBadRequest, text: "the file broke off; nothing was stored, and the link can be used again"}
	case errors.Is(err, ErrRefused):
		return &refusal{status: http.StatusConflict, text: "the sandbox did not take the file: its disk may be full, or a directory is in its place; nothing was stored"}
	}
	l.log.Info("storing an upload failed", "sandbox", g.sandbox, "link", g.key(), "err", err)
	return &refusal{status: http.StatusBadGateway, text: "the sandbox did not answer; nothing was stored, and the link can be used again"}
}

// reopen makes a link good again whose use has failed, also if the client has
// gone.
func (l *Links) reopen(ctx context.Context, g grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := l.store.ReopenLink(ctx, g.key()); err != nil {
		l.log.Error("making a link good again", "link", g.key(), "err", err)
	}
}

// sentFile counts what a client sends, and remembers how that failed.
type sentFile struct {
	r   io.Reader
	n   int64
	err error
}

func (s *sentFile) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
