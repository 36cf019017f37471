package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/access"
	"belljar/internal/image"
	"belljar/internal/sandbox"
)

// Server serves the local interface.
type Server struct {
	Info      func() Info
	Runner    Runner
	Images    Images
	Sweep     func(context.Context) (removed int, err error)
	Artifacts http.Handler // mounted at ArtifactPrefix
	// ArtifactPrefix is the artifacts' path, with slashes around it.
	ArtifactPrefix string
	// Grace is how long Serve waits for calls under way; 10 s if zero. It
	// then ends them, and waits as long again at most.
	Grace time.Duration
	Log   *slog.Logger
}

// Listen makes the socket, replacing one that a killed process left. Only the
// holder of the state directory's lock may call it.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Serve answers on l until ctx ends, then waits for calls under way, but no
// longer than twice the grace. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler:     s.handler(),
		BaseContext: func(net.Listener) context.Context { return calls },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerOf(c))
		},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		if s.shutdown(srv) {
			return
		}
		cancel()
		if !s.shutdown(srv) {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	stop()
	return err
}

// shutdown reports whether the calls under way ended within the grace.
func (s *Server) shutdown(srv *http.Server) bool {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(s.Grace, 10*time.Second))
	defer cancel()
	return srv.Shutdown(ctx) == nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/info", s.user(func(*http.Request) (any, error) { return s.Info(), nil }))
	mux.HandleFunc("GET /v1/runtimes", s.user(func(r *http.Request) (any, error) { return s.Runner.Runtimes(r.Context()) }))
	mux.HandleFunc("POST /v1/run", s.run)
	mux.HandleFunc("GET /v1/images", s.user(func(*http.Request) (any, error) { return s.Images.List() }))
	mux.HandleFunc("DELETE /v1/images/{ref...}", s.admin(func(r *http.Request) (any, error) {
		return struct{}{}, s.Images.Remove(r.Context(), r.PathValue("ref"))
	}))
	mux.HandleFunc("POST /v1/gc", s.admin(func(r *http.Request) (any, error) { return s.Sweep(r.Context()) }))
	mux.HandleFunc("POST /v1/images/build", progress(s, s.Images.Build))
	mux.HandleFunc("POST /v1/images/pull", progress(s, func(ctx context.Context, r pullRequest, p image.Progress) (image.Image, error) {
		return s.Images.Pull(ctx, r.Ref, p)
	}))
	mux.HandleFunc("POST /v1/images/load", progressMany(s, func(ctx context.Context, r loadRequest, p image.Progress) ([]image.Image, error) {
		return s.Images.Load(ctx, r.Path, p)
	}))
	mux.HandleFunc("GET "+s.ArtifactPrefix, s.artifact)
	return mux
}

// user serves a call that everyone on the socket may make.
func (s *Server) user(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !peerFrom(r).known {
			deny(w, "the caller's credentials cannot be read")
			return
		}
		v, err := f(r)
		answer(w, v, err)
	}
}

// admin serves a call for root and the server's own user.
func (s *Server) admin(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !peerFrom(r).admin() {
			deny(w, "this is for root and the user that the server runs as: use sudo")
			return
		}
		v, err := f(r)
		answer(w, v, err)
	}
}

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	s.user(func(r *http.Request) (any, error) {
		var q sandbox.Request
		if err := decode(w, r, &q); err != nil {
			return nil, err
		}
		q.Subject = access.Owner // who may use the socket is the owner
		return s.Runner.Run(r.Context(), q)
	})(w, r)
}

func (s *Server) artifact(w http.ResponseWriter, r *http.Request) {
	if !peerFrom(r).known {
		deny(w, "the caller's credentials cannot be read")
		return
	}
	s.Artifacts.ServeHTTP(w, r)
}

func progress[Q any](s *Server, f func(context.Context, Q, image.Progress) (image.Image, error)) http.HandlerFunc {
	return progressMany(s, func(ctx context.Context, q Q, p image.Progress) ([]image.Image, error) {
		img, err := f(ctx, q, p)
		return []image.Image{img}, err
	})
}

// progressMany serves an admin's call that streams events as JSON lines.
func progressMany[Q any](s *Server, f func(context.Context, Q, image.Progress) ([]image.Image, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !peerFrom(r).admin() {
			deny(w, "this is for root and the user that the server runs as: use sudo")
			return
		}
		var q Q
		if err := decode(w, r, &q); err != nil {
			answer(w, nil, err)
			return
		}
		var mu sync.Mutex
		out, flush := json.NewEncoder(w), http.NewResponseController(w)
		send := func(e imageEvent) {
			mu.Lock()
			defer mu.Unlock()
			out.Encode(e)
			flush.Flush()
		}
		images, err := f(r.Context(), q, func(e image.Event) { send(imageEvent{Event: &e}) })
		if err != nil {
			send(imageEvent{Failure: failureOf(err)})
			return
		}
		send(imageEvent{Images: images})
	}
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		v = failureOf(err)
	}
	json.NewEncoder(w).Encode(v)
}

func deny(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	json.NewEncoder(w).Encode(Failure{Kind: "failed", Message: why})
}

// peer is who is at the other end of a connection, as the kernel says.
type peer struct {
	uid   uint32
	known bool
}

func (p peer) admin() bool {
	return p.known && (p.uid == 0 || p.uid == uint32(os.Geteuid()))
}

type peerKey struct{}

func peerFrom(r *http.Request) peer {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p
}

func peerOf(c net.Conn) peer {
	var p peer
	u, ok := c.(*net.UnixConn)
	if !ok {
		return p
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return p
	}
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = peer{uid: cred.Uid, known: true}
		}
	})
	return p
}
