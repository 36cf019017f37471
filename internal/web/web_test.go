package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections stay in memory, so that a test's
// clock governs them.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipes() *pipes {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { l.close(); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipes) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// serve runs s in memory until the test or the returned stop ends it.
func serve(t *testing.T, s *Server) (l *pipes, stop func()) {
	t.Helper()
	l = newPipes()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return l, stop
}

// send writes a request as text, lines ended by \n, and reads one answer.
func send(t *testing.T, conn net.Conn, request string) (*http.Response, string) {
	t.Helper()
	go io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	return res, string(body)
}

func TestRoutes(t *testing.T) {
	s := New(Options{})
	s.Handle("/files/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "file") }))
	s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "mcp") }))
	tests := []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/healthz", 200, "ok\n"},
		{"HEAD", "/healthz", 200, "ok\n"}, // a recorder keeps the body
		{"POST", "/healthz", 404, "not found\n"},
		{"GET", "/healthz/", 404, "not found\n"},
		{"GET", "/", 404, "not found\n"},
		{"GET", "/mcp", 200, "mcp"},
		{"GET", "/mcp/", 404, "not found\n"},
		{"GET", "/MCP", 404, "not found\n"},
		{"GET", "/files/x", 200, "file"},
		{"GET", "/files/x/", 200, "file"},
		{"GET", "/files", 404, "not found\n"},
		{"GET", "//files/x", 404, "not found\n"},
		{"GET", "/files//x", 404, "not found\n"},
		{"GET", "/files/../mcp", 404, "not found\n"},
		{"GET", "/x/../mcp", 404, "not found\n"},
		{"GET", "/files/%2e%2e/mcp", 404, "not found\n"},
		{"GET", "/./mcp", 404, "not found\n"},
		{"CONNECT", "/x/../mcp", 404, "not found\n"},
		{"GET", "*", 404, "not found\n"},
		{"GET", "", 404, "not found\n"},
	}
	for _, tt := range tests {
		path, err := url.PathUnescape(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		r := &http.Request{Method: tt.method, URL: &url.URL{Path: path, RawPath: tt.path}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != tt.status || w.Body.String() != tt.body {
			t.Errorf("%s %q: %d %q, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.body)
		}
		for _, h := range []string{"X-Request-Id", "X-Content-Type-Options", "Referrer-Policy", "Content-Security-Policy", "Cache-Control"} {
			if w.Header().Get(h) == "" {
				t.Errorf("%s %q: no %s", tt.method, tt.path, h)
			}
		}
	}
}

func TestMiddlewareOrder(t *testing.T) {
	var order []string
	note := func(name string) Middleware {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				order = append(order, name)
				next.ServeHTTP(w, r)
			})
		}
	}
	s := New(Options{})
	s.Handle("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { order = append(order, "handler") }), note("outer"), note("inner"))
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil))
	if got := strings.Join(order, " "); got != "outer inner handler" {
		t.Errorf("order: %s", got)
	}
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Handle("/short", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(shutdownGrace / 2)
			fmt.Fprint(w, "done ", r.Context().Err())
		}))
		s.Handle("/long", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			fmt.Fprint(w, "cancelled")
		}))
		l, stop := serve(t, s)
		var clients sync.WaitGroup
		for path, want := range map[string]string{"/short": "done <nil>", "/long": "cancelled"} {
			clients.Go(func() {
				conn := l.dial()
				defer conn.Close()
				if _, body := send(t, conn, "GET "+path+" HTTP/1.1\nHost: x\n\n"); body != want {
					t.Errorf("%s: %q, want %q", path, body, want)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		stop()
		clients.Wait()
		if took := time.Since(start); took < shutdownGrace || took > shutdownGrace+cancelGrace {
			t.Errorf("the shutdown took %v", took)
		}
	})
}
