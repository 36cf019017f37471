// Package web is the public face of the server: it mounts handlers and gives
// every request an identifier, bounds, a line in the log and safe headers.
// What a mount needs beyond that, such as who may call it, is a Middleware.
package web

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

// DefaultMaxBody is the default of Options.MaxBody.
const DefaultMaxBody = 64 << 20

// Bounds of a connection. There is none on the time that an answer takes,
// since answers stream for as long as a job runs.
const (
	headerTimeout  = 10 * time.Second // to send a request's headers
	bodyTimeout    = 30 * time.Second // without a byte of a request's body
	idleTimeout    = 2 * time.Minute  // between requests
	maxHeaderBytes = 64 << 10
	shutdownGrace  = 10 * time.Second // for requests to end by themselves
	cancelGrace    = 2 * time.Second  // to end once their context has ended
)

// Options configure a Server.
type Options struct {
	// Log gets a line per request; nothing is logged if nil.
	Log *slog.Logger
	// PublicURL is where the server is reached from outside, nil if it is not.
	PublicURL *url.URL
	// MaxBody bounds a request's body, in bytes; DefaultMaxBody if zero.
	MaxBody int64
}

// Middleware wraps a handler with a check or a service.
type Middleware func(http.Handler) http.Handler

// Server routes requests to what is mounted on it. All mounting comes before
// the first request.
type Server struct {
	mux       *http.ServeMux
	log       *slog.Logger
	publicURL *url.URL
	maxBody   int64
	large     map[string]int64 // bounds of bodies below a path
}

// New returns a server that answers GET /healthz, and 404 to all else.
func New(o Options) *Server {
	s := &Server{mux: http.NewServeMux(), log: o.Log, publicURL: o.PublicURL, maxBody: o.MaxBody}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.maxBody == 0 {
		s.maxBody = DefaultMaxBody
	}
	s.mux.HandleFunc("/", notFound)
	s.Handle("GET /healthz", http.HandlerFunc(healthz))
	return s
}

// Handle mounts h at a pattern of http.ServeMux. The first middleware is the
// outermost: it sees a request first.
func (s *Server) Handle(pattern string, h http.Handler, with ...Middleware) {
	for i := len(with) - 1; i >= 0; i-- {
		h = with[i](h)
	}
	s.mux.Handle(pattern, h)
	if tree, ok := strings.CutSuffix(pattern, "/"); ok {
		s.mux.HandleFunc(tree, notFound) // in place of ServeMux's redirect
	}
}

// LimitBody gives requests below a path, which ends in a slash, a bound of
// their own on the body, in bytes, in the place of Options.MaxBody.
func (s *Server) LimitBody(tree string, max int64) {
	if s.large == nil {
		s.large = map[string]int64{}
	}
	s.large[tree] = max
}

func (s *Server) bodyLimit(p string) int64 {
	for tree, max := range s.large {
		if strings.HasPrefix(p, tree) {
			return max
		}
	}
	return s.maxBody
}

// Serve answers requests on l until ctx ends. It then lets requests end by
// themselves for a while, cancels the rest, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// Even "OPTIONS *" is to be logged and to carry our headers.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:                  func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		if shutdown(srv, shutdownGrace) {
			return
		}
		cancel()
		if !shutdown(srv, cancelGrace) {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}

func shutdown(srv *http.Server, grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return srv.Shutdown(ctx) == nil
}

// route passes a request to its mount. A path that is not in its one clean
// spelling has none: ServeMux would redirect it, and confirm what is there.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Path
	if !strings.HasPrefix(p, "/") || p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
		notFound(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func healthz(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") }

func notFound(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusNotFound, "not found") }

// plain answers with a line of text.
func plain(w http.ResponseWriter, status int, text string) {
	text += "\n"
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that has gone needs no answer
}
