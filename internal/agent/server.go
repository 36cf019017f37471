package agent

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Options configure a Server. The zero value is right inside a sandbox.
type Options struct {
	// Root is put before every absolute path of the API, for tests that let
	// a server of their own process play a sandbox in a directory. Commands
	// run on the host all the same; an absolute argument that names a file
	// below Root is translated, so that a script that was written by
	// WriteFile can be run.
	Root string
	// LogDir is where the logs of jobs are, the constant LogDir if empty.
	LogDir string
	// Env is the environment that jobs start from, as KEY=value; this
	// process's own if nil.
	Env []string
	// Dev is where the device files are, /dev if empty.
	Dev string
	// Spare keeps a helper process ready, so that a job's command starts as
	// soon as it is asked for.
	Spare bool
}

// Server is the agent. It serves its API on any number of connections, one
// after the other or at a time; jobs belong to it and not to a connection.
//
// As process 1 it reaps the orphans of the whole sandbox. In any other
// process it lets other children alone.
type Server struct {
	opts     Options
	children *children
	previews chan struct{} // a token for each that may run
	work     sync.WaitGroup
	putting  sync.Mutex // held while a file is given its name

	mu     sync.Mutex
	closed bool
	jobs   map[string]*job
	live   map[*job]bool // those whose supervisor runs
	spare  *supervisor
	exited []*job // the oldest first
	conns  map[net.Conn]bool
}

var errClosed = errors.New("the agent is closing")

// NewServer returns a server that is to be closed after use. The program must
// have called RunHelper.
func NewServer(opts Options) *Server {
	if opts.LogDir == "" {
		opts.LogDir = LogDir
	}
	if opts.Dev == "" {
		opts.Dev = "/dev"
	}
	if opts.Env == nil {
		opts.Env = os.Environ()
	}
	children := newChildren()
	if children.init {
		reserveThreads(6) // for it must outlive a fork bomb
	}
	s := &Server{
		opts:     opts,
		children: children,
		previews: make(chan struct{}, 2),
		jobs:     map[string]*job{},
		live:     map[*job]bool{},
		conns:    map[net.Conn]bool{},
	}
	s.keepSpare()
	return s
}

// Close ends all jobs with everything they started, closes the connections,
// and returns when it is done.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.dropSpare()
	for c := range s.conns {
		c.Close()
	}
	jobs := slices.Collect(maps.Values(s.jobs))
	s.mu.Unlock()
	for _, j := range jobs {
		s.signal(j, syscall.SIGKILL)
		// Should something have got away, nobody waits for what it writes.
		j.stdout.pipe.Close()
		j.stderr.pipe.Close()
	}
	s.work.Wait()
	s.children.close()
}

// Serve serves HTTP/2 without TLS on conn until it closes, from either side.
// Jobs go on.
func (s *Server) Serve(conn net.Conn) error {
	enlarge(conn)
	l := &oneConn{conn: conn, closed: make(chan struct{})}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		conn.Close()
		return errClosed
	}
	s.conns[conn] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:   s.handler(),
		Protocols: &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          64,
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerConnection: 2 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if err := srv.Serve(l); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// oneConn is a listener for a connection that is there already.
type oneConn struct {
	conn   net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept returns the connection, then waits until it is closed.
func (l *oneConn) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return &servedConn{conn, l}, nil
	}
	<-l.closed
	return nil, io.EOF
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

type servedConn struct {
	net.Conn
	l *oneConn
}

func (c *servedConn) Close() error {
	defer c.l.once.Do(func() { close(c.l.closed) })
	return c.Conn.Close()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /v1/health":            s.serveHealth,
		"PUT /v1/jobs/{id}":         s.serveStart,
		"GET /v1/jobs/{id}":         s.serveJob,
		"POST /v1/jobs/{id}/signal": s.serveSignal,
		"POST /v1/jobs/{id}/open":   s.serveOpen,
		"POST /v1/jobs/{id}/input":  s.serveInput,
		"GET /v1/jobs/{id}/output":  s.serveOutput,
		"POST /v1/jobs/{id}/resize": s.serveResize,
		"PUT /v1/file":              s.serveWrite,
		"PUT /v1/files":             s.serveWriteAll,
		"GET /v1/file":              s.serveRead,
		"GET /v1/list":              s.serveList,
		"GET /v1/preview":           s.servePreview,
		"POST /v1/expire":           s.serveExpire,
		"GET /v1/stat":              s.serveStat,
		"GET /v1/range":             s.serveRange,
		"PUT /v1/put":               s.servePut,
		"GET /v1/walk":              s.serveWalk,
		"GET /v1/archive":           s.serveArchive,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				status, r := refuse(err)
				w.WriteHeader(status)
				json.NewEncoder(w).Encode(r)
			}
		})
	}
	return mux
}

func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) error {
	h := Health{Version: Version, Zombies: s.children.reaped.Load()}
	s.mu.Lock()
	h.Busy = len(s.live)
	for j := range s.live {
		select {
		case <-j.exited:
		default:
			h.Jobs++
		}
	}
	s.mu.Unlock()
	return json.NewEncoder(w).Encode(h)
}

// maxSpec bounds a job's spec, in bytes of JSON. The kernel's bound on
// arguments and environment is lower.
const maxSpec = 8 << 20

func (s *Server) serveStart(w http.ResponseWriter, r *http.Request) error {
	var spec JobSpec
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSpec)).Decode(&spec); err != nil {
		return err
	}
	if spec.ID != r.PathValue("id") {
		return errors.New("job id differs from the path")
	}
	if err := s.startJob(spec); err != nil {
		return err
	}
	grace, err := time.ParseDuration(r.URL.Query().Get("grace"))
	if err != nil {
		return nil // none was asked for
	}
	j, err := s.job(r)
	if err != nil {
		return err
	}
	timer := time.NewTimer(min(grace, longPoll))
	defer timer.Stop()
	select {
	case <-j.exited:
	case <-timer.C:
	case <-r.Context().Done():
	}
	return json.NewEncoder(w).Encode(j.status())
}

func (s *Server) job(r *http.Request) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[r.PathValue("id")]; j != nil {
		return j, nil
	}
	return nil, ErrNoJob
}

func (s *Server) serveJob(w http.ResponseWriter, r *http.Request) error {
	j, err := s.job(r)
	if err != nil {
		return err
	}
	if wait := r.FormValue("wait"); wait != "" {
		timer := time.NewTimer(longPoll)
		defer timer.Stop()
		var reached <-chan struct{}
		if wait == waitGate && j.gate != nil {
			reached = j.gate.reached
		}
		select {
		case <-j.exited:
		case <-reached:
			// What was printed before is part of the answer.
			j.stdout.catchUp()
			j.stderr.catchUp()
			j.gate.told(j.stdout.written() + j.stderr.written())
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	return json.NewEncoder(w).Encode(j.status())
}

func (s *Server) serveSignal(w http.ResponseWriter, r *http.Request) error {
	j, err := s.job(r)
	if err != nil {
		return err
	}
	sig, err := strconv.Atoi(r.FormValue("signal"))
	if err != nil {
		return err
	}
	return s.signal(j, syscall.Signal(sig))
}

// path is where a path of the API is for this process.
func (s *Server) path(p string) string {
	return filepath.Join(s.opts.Root, filepath.Clean("/"+p))
}
