package web

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"belljar/internal/artifact"
)

// maxLogged bounds what of a request's path is logged, in bytes.
const maxLogged = 256

type requestIDKey struct{}

// RequestID returns the identifier of the request that ctx belongs to, or ""
// outside of one. It is random, ours and not the client's, and stands in the
// log, in X-Request-Id and in the text of errors.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// ServeHTTP is the way of every request, whatever is mounted.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	id := rand.Text()
	r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
	a := &answer{ResponseWriter: w}
	setDefaults(w.Header(), id)
	defer s.finish(a, r, start)

	most := s.bodyLimit(r.URL.Path)
	if r.ContentLength > most {
		w.Header().Set("Connection", "close") // rather than read it all
		plain(a, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", most))
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		control := http.NewResponseController(w)
		// Recorders know no deadlines, and need none.
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
		// MaxBytesReader closes the connection through w, so it gets the inner one.
		r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, most), control: control}
	}
	s.route(a, r)
}

// setDefaults sets what every answer carries unless its handler knows better.
func setDefaults(h http.Header, id string) {
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// finish is deferred: it logs a request, and answers for a handler that
// panicked. An answer that has begun is broken off instead, so that the
// client does not take it for whole.
func (s *Server) finish(a *answer, r *http.Request, start time.Time) {
	id, failure := RequestID(r.Context()), recover()
	aborted := failure == http.ErrAbortHandler
	if failure != nil && !aborted {
		s.log.Error("a handler panicked", "id", id,
			"panic", artifact.Redact(fmt.Sprint(failure)), "stack", string(debug.Stack()))
		if aborted = a.status != 0; !aborted {
			clear(a.Header())
			setDefaults(a.Header(), id)
			plain(a, http.StatusInternalServerError, "internal error; in the server's log it is request "+id)
		}
	}
	status := a.status
	if status == 0 {
		status = http.StatusOK // as net/http answers for a silent handler
	}
	level := slog.LevelInfo
	if r.URL.Path == "/healthz" {
		level = slog.LevelDebug
	}
	path := artifact.Redact(r.URL.Path)
	s.log.Log(r.Context(), level, "request", "id", id, "method", r.Method, "path", path[:min(len(path), maxLogged)],
		"status", status, "bytes", a.bytes, "duration", time.Since(start), "aborted", aborted)
	if aborted {
		panic(http.ErrAbortHandler)
	}
}

// answer counts what is written. It passes on flushing and, by Unwrap, all
// that http.ResponseController can do.
type answer struct {
	http.ResponseWriter
	status int // 0 until the headers are sent
	bytes  int64
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begin()
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// ReadFrom keeps sendfile working for downloads.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	a.begin()
	n, err := io.Copy(a.ResponseWriter, r)
	a.bytes += n
	return n, err
}

// Flush is for handlers that look for an http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	a.begin()
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) begin() {
	if a.status == 0 {
		a.status = http.StatusOK
	}
}

// body is a request's body that must keep coming: each read has a deadline.
type body struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *body) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(bodyTimeout))
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		// From here on net/http reads to notice that the client has gone, and
		// a deadline would look like that. After another error the deadline
		// stands, since net/http may try to read the rest.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
