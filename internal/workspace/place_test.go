package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
	"belljar/internal/engine"
	"belljar/internal/sandbox"
)

// lender lends one workspace, which is somebody's default.
type lender struct {
	client *agent.Client

	mu      sync.Mutex
	running bool
	starts  int
	lent    int
}

func (l *lender) Lend(_ context.Context, s access.Subject, name string) (Lent, error) {
	if s != access.Owner || name != "" && name != "default" {
		return nil, &sandbox.RequestError{Message: fmt.Sprintf("there is no sandbox %q", name)}
	}
	return l.LendID(context.Background(), "ws-1")
}

func (l *lender) LendID(_ context.Context, id string) (Lent, error) {
	if id != "ws-1" {
		return nil, engine.ErrNotFound
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.running {
		l.running = true
		l.starts++
	}
	l.lent++
	return &borrowed{l, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lent--
	})}, nil
}

func (l *lender) Running(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return id == "ws-1" && l.running
}

type borrowed struct {
	l       *lender
	release func()
}

func (l *borrowed) ID() string           { return "ws-1" }
func (l *borrowed) Agent() *agent.Client { return l.l.client }
func (l *borrowed) Release()             { l.release() }

// place is a workspace with a real agent, and Files on it.
type place struct {
	*Files
	lender *lender
	links  *artifact.Links
	root   string
}

func newPlace(t *testing.T, o FilesOptions) *place {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"sandbox", "root"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	s := agent.NewServer(agent.Options{Root: root})
	t.Cleanup(s.Close)
	ours, theirs := connPair(t)
	go s.Serve(theirs)
	return placeOf(t, ours, root, o)
}

// placeOf is a place whose agent is at the other end of conn.
func placeOf(t *testing.T, conn net.Conn, root string, o FilesOptions) *place {
	t.Helper()
	p := &place{lender: &lender{client: agent.NewClient(conn)}, root: root}
	t.Cleanup(func() {
		p.lender.client.Close()
		if p.lender.lent != 0 {
			t.Errorf("%d workspaces were not released", p.lender.lent)
		}
	})
	var err error
	p.links, err = artifact.NewLinks(artifact.LinkOptions{
		Store: indextest.NewMemoryLinks(), Workspaces: Linked(p.lender), Secret: []byte(strings.Repeat("s", 32)), BaseURL: "http://host",
	})
	must(t, err)
	o.Lender, o.Links = p.lender, p.links
	p.Files = NewFiles(o)
	return p
}

// hostile is a place whose agent answers every request with h.
func hostile(t *testing.T, h http.HandlerFunc) *place {
	t.Helper()
	ours, theirs := connPair(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: &protocols}
	l := &oneConn{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conns <- theirs
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return placeOf(t, ours, "", FilesOptions{})
}

type oneConn struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func connPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "conn")
		conns[i], err = net.FileConn(f)
		must(t, err)
		f.Close()
	}
	return conns[0], conns[1]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// ref names a file of the owner's default workspace.
func ref(path string) FileRef { return FileRef{Subject: access.Owner, Path: path} }

func (p *place) file(name string) string { return filepath.Join(p.root, "sandbox", name) }

func (p *place) put(t *testing.T, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(p.file(name)), 0o755))
	must(t, os.WriteFile(p.file(name), []byte(content), 0o644))
}

func (p *place) has(t *testing.T, name, content string) {
	t.Helper()
	if data, err := os.ReadFile(p.file(name)); err != nil || string(data) != content {
		t.Errorf("%s holds %.300q, %v; want %.300q", name, data, err, content)
	}
}

// wantRefusal checks that an error tells a caller what would be right.
func wantRefusal(t *testing.T, err error, parts ...string) {
	t.Helper()
	var refused *sandbox.RequestError
	if !errors.As(err, &refused) {
		t.Errorf("got %v, want a RequestError with %q", err, parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(refused.Message, part) {
			t.Errorf("%q does not say %q", refused.Message, part)
		}
	}
}
