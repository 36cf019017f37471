package web

import (
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
// It relies on the handler to set its headers before the first interval ends
// and to write whole events at a time. Other answers are left alone. An
// interval of 0 sends nothing.
func KeepAlive(every time.Duration) Middleware {
	return func(next http.Handler) http.Handler {
		if every <= 0 {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := &stream{ResponseWriter: w, every: every}
			w.Header().Set("X-Accel-Buffering", "no")
			s.mu.Lock()
			s.timer = time.AfterFunc(every, s.comment)
			s.mu.Unlock()
			defer s.end()
			next.ServeHTTP(s, r)
		})
	}
}

// stream is an answer that shows signs of life.
type stream struct {
	http.ResponseWriter
	every time.Duration

	mu    sync.Mutex // held while writing, so that a comment stands between events
	timer *time.Timer
	ended bool
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Reset(s.every)
	return s.ResponseWriter.Write(p)
}

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ResponseWriter.WriteHeader(status)
}

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// Flush is for handlers that look for an http.Flusher.
func (s *stream) Flush() { _ = s.FlushError() }

// Unwrap is for http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream") {
		return
	}
	if _, err := s.ResponseWriter.Write([]byte(":\n\n")); err != nil {
		return // the client is gone; the handler hears of it by its context
	}
	_ = http.NewResponseController(s.ResponseWriter).Flush()
	s.timer.Reset(s.every)
}

// end sees to it that no comment is written after the handler returned.
func (s *stream) end() {
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}
