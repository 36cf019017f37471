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

	"belljar/internal/image"
)

// Server serves the local interface.
type Server struct {
	Info      func() Info
	Backend   Backend
	Files     Files
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

// handler mounts every call. All are refused to a peer that the kernel does
// not name; those that act on the host with the server's rights are an
// admin's.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/info", answered(func(*http.Request) (any, error) { return s.Info(), nil }))
	mux.Handle("GET /v1/runtimes", answered(func(r *http.Request) (any, error) { return s.Backend.Runtimes(r.Context()) }))
	s.mountJobs(mux)
	s.mountSandboxes(mux)
	s.mountFiles(mux)
	mux.Handle("GET /v1/images", answered(func(*http.Request) (any, error) { return s.Images.List() }))
	mux.Handle("DELETE /v1/images/{ref...}", admin(answered(func(r *http.Request) (any, error) {
		return struct{}{}, s.Images.Remove(r.Context(), r.PathValue("ref"))
	})))
	mux.Handle("POST /v1/gc", admin(answered(func(r *http.Request) (any, error) { return s.Sweep(r.Context()) })))
	mux.Handle("POST /v1/images/build", admin(stream(func(ctx context.Context, o image.BuildOptions, tell func(image.Event)) (image.Image, error) {
		return s.Images.Build(ctx, o, tell)
	})))
	mux.Handle("POST /v1/images/pull", admin(stream(func(ctx context.Context, r pullRequest, tell func(image.Event)) (image.Image, error) {
		return s.Images.Pull(ctx, r.Ref, tell)
	})))
	mux.Handle("POST /v1/images/load", admin(stream(func(ctx context.Context, r loadRequest, tell func(image.Event)) ([]image.Image, error) {
		return s.Images.Load(ctx, r.Path, tell)
	})))
	mux.Handle("GET "+s.ArtifactPrefix, s.Artifacts)
	all := http.NewServeMux()
	all.Handle("PUT "+filePath, answered(s.copyIn)) // streamed, so of any size
	all.Handle("/", http.MaxBytesHandler(mux, maxBody))
	return permit(all, func(p peer) bool { return p.known }, "the caller's credentials cannot be read")
}

// admin serves a call for root and the server's own user.
func admin(next http.Handler) http.Handler {
	return permit(next, peer.admin, "this is for root and the user that the server runs as: use sudo")
}

// permit serves calls of those peers that may make them.
func permit(next http.Handler, may func(peer) bool, otherwise string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !may(peerFrom(r)) {
			deny(w, otherwise)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answered serves a call by what f returns.
func answered(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		answer(w, v, err)
	})
}

// stream serves a call that reports events as JSON lines, and then its result.
func stream[Q, E, R any](f func(ctx context.Context, q Q, tell func(E)) (R, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := decode(r, &q); err != nil {
			answer(w, nil, err)
			return
		}
		var mu sync.Mutex
		out, flush := json.NewEncoder(w), http.NewResponseController(w)
		send := func(e event[E, R]) {
			mu.Lock()
			defer mu.Unlock()
			out.Encode(e)
			flush.Flush()
		}
		result, err := f(r.Context(), q, func(e E) { send(event[E, R]{Event: &e}) })
		if err != nil {
			send(event[E, R]{Failure: failureOf(err)})
			return
		}
		send(event[E, R]{Result: &result})
	})
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
