package web

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// KeepAlive writes a comment to an event stream on which nothing was sent for
// a while, since proxies and clients take a silent stream for a dead one.
// Comments are part of the format and mean nothing (HTML Living Standard,
// 9.2.6). It asks proxies not to buffer, too.
//
// It is for a handler that answers with an event stream every request whose
// client accepts one, unless it refuses the request as soon as it has read
// it: the first comment may go out before the handler has said anything. The
// handler must write whole events at a time. Other requests are left alone.
// An interval of 0 sends nothing.
func KeepAlive(every time.Duration) Middleware {
	return func(next http.Handler) http.Handler {
		if every <= 0 {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Accel-Buffering", "no")
			if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
				next.ServeHTTP(w, r)
				return
			}
			s := &stream{w: w, own: w.Header().Clone(), every: every}
			defer s.end()
			r.Body = &heard{ReadCloser: r.Body, stream: s}
			next.ServeHTTP(s, r)
		})
	}
}

// heard starts the stream's signs of life when the request was read.
type heard struct {
	io.ReadCloser
	stream *stream
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if err == io.EOF {
		h.stream.begin()
	}
	return n, err
}

// stream is an answer that shows signs of life.
type stream struct {
	w     http.ResponseWriter
	every time.Duration
	// own are the headers as the handler sets them, at its leisure; they
	// count once it writes.
	own http.Header

	mu    sync.Mutex // held while writing, so that a comment stands between events
	timer *time.Timer
	sent  bool // the headers
	ended bool
}

// Header is the handler's to change.
func (s *stream) Header() http.Header { return s.own }

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(s.own, status)
}

// send sends headers, unless some were sent already.
func (s *stream) send(h http.Header, status int) {
	if s.sent {
		return
	}
	s.sent = status >= 200
	clear(s.w.Header())
	maps.Copy(s.w.Header(), h)
	s.w.WriteHeader(status)
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(s.own, http.StatusOK)
	if s.timer != nil {
		s.timer.Reset(s.every)
	}
	return s.w.Write(p)
}

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(s.own, http.StatusOK)
	return http.NewResponseController(s.w).Flush()
}

// Flush is for handlers that look for an http.Flusher.
func (s *stream) Flush() { _ = s.FlushError() }

// Unwrap is for http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.w }

func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil && !s.ended {
		s.timer = time.AfterFunc(s.every, s.comment)
	}
}

func (s *stream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if !s.sent {
		h := s.w.Header().Clone()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache, no-transform")
		s.send(h, http.StatusOK)
	}
	if _, err := s.w.Write([]byte(":\n\n")); err != nil {
		return // the client is gone; the handler hears of it by its context
	}
	_ = http.NewResponseController(s.w).Flush()
	s.timer.Reset(s.every)
}

// end sees to it that no comment is written after the handler returned, and
// sends the headers of an answer without a body.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.send(s.own, http.StatusOK)
}
