package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
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

// logged decodes the lines of a JSON log.
func logged(t *testing.T, log *bytes.Buffer) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for d := json.NewDecoder(bytes.NewReader(log.Bytes())); ; {
		var line map[string]any
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
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

func TestAccessLog(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	var seen string
	s.Handle("/sandbox-out/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = RequestID(r.Context())
		w.WriteHeader(http.StatusEarlyHints) // not the answer yet
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "12345")
	}))
	token := strings.Repeat("Ab1-_", 9)[:43]
	l, stop := serve(t, s)
	conn := l.dial()
	go io.WriteString(conn, "GET /sandbox-out/"+token+"/a.png?key=secret HTTP/1.1\r\nHost: x\r\n"+
		"X-Request-Id: chosen by the client\r\nAuthorization: Bearer secret\r\n\r\n")
	answers := bufio.NewReader(conn)
	if hints, err := http.ReadResponse(answers, nil); err != nil || hints.StatusCode != http.StatusEarlyHints {
		t.Fatalf("first came %v, %v", hints, err)
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	stop() // all is logged

	lines := logged(t, &log)
	if len(lines) != 1 {
		t.Fatalf("log: %s", &log)
	}
	line := lines[0]
	if id := res.Header.Get("X-Request-Id"); len(id) < 26 || id != seen || id != line["id"] {
		t.Errorf("the id is %q in the answer, %q in the handler, %q in the log", id, seen, line["id"])
	}
	if line["method"] != "GET" || line["path"] != "/sandbox-out/…/a.png" || line["status"] != 418.0 || line["bytes"] != 5.0 || line["duration"] == nil {
		t.Errorf("log: %s", &log)
	}
	if text := log.String(); strings.Contains(text, token) || strings.Contains(text, "secret") {
		t.Errorf("a secret is in the log: %s", text)
	}

	log.Reset()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/"+strings.Repeat("x/", 5000), nil))
	if log.Len() > 1000 {
		t.Errorf("a long path makes a log of %d bytes", log.Len())
	}
	log.Reset()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/healthz", nil))
	if log.Len() > 0 {
		t.Errorf("a health check is logged: %s", &log)
	}
}

func TestPanic(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	token := strings.Repeat("Ab1-_", 9)[:43]
	s.Handle("/before", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Content-Disposition", "attachment")
		panic("opening /out/" + token + ": secret")
	}))
	s.Handle("/after", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "half")
		w.(http.Flusher).Flush()
		panic("too late")
	}))
	srv := httptest.NewServer(s)
	defer srv.Close()

	res, err := http.Get(srv.URL + "/before")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	id := res.Header.Get("X-Request-Id")
	if err != nil || res.StatusCode != 500 || !strings.Contains(string(body), id) || strings.Contains(string(body), "secret") || res.Header.Get("Content-Disposition") != "" {
		t.Errorf("answer: %d %q %v %v", res.StatusCode, body, res.Header, err)
	}
	res, err = http.Get(srv.URL + "/after")
	if err != nil {
		t.Fatal(err)
	}
	body, err = io.ReadAll(res.Body)
	res.Body.Close()
	if err == nil {
		t.Errorf("an answer cut short by a panic looks whole: %q", body)
	}
	srv.Close() // all is logged
	lines := logged(t, &log)
	if len(lines) != 4 || lines[0]["id"] != id || lines[1]["status"] != 500.0 || lines[3]["aborted"] != true {
		t.Errorf("log: %s", &log)
	}
	if text := log.String(); strings.Contains(text, token) || !strings.Contains(text, "web_test.go") {
		t.Errorf("the log has a token, or no stack: %s", text)
	}
}

func TestBodyLimit(t *testing.T) {
	s := New(Options{MaxBody: 10})
	s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		fmt.Fprintf(w, "read %d", len(body))
	}))
	l, _ := serve(t, s)
	for _, tt := range []struct {
		request string
		status  int
		body    string
	}{
		{"Content-Length: 10\n\n0123456789", 200, "read 10"},
		{"Content-Length: 11\n\n0123456789x", 413, "the request is larger than 10 bytes\n"},
		{"Content-Length: 99999999999999\n\n", 413, "the request is larger than 10 bytes\n"},
		{"Transfer-Encoding: chunked\n\na\n0123456789\n0\n\n", 200, "read 10"},
		{"Transfer-Encoding: chunked\n\nb\n0123456789x\n0\n\n", 413, "read 10"},
	} {
		conn := l.dial()
		res, body := send(t, conn, "POST /mcp HTTP/1.1\nHost: localhost\n"+tt.request)
		if res.StatusCode != tt.status || body != tt.body {
			t.Errorf("%.40q: %d %q, want %d %q", tt.request, res.StatusCode, body, tt.status, tt.body)
		}
		conn.Close()
	}
}

// TestStreaming: an event reaches the client while the handler still runs,
// by either way of flushing, for longer than any timeout.
func TestStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			control := http.NewResponseController(w)
			for i := range 100 {
				time.Sleep(time.Minute)
				fmt.Fprintf(w, "event %d\n", i)
				if i%2 == 0 {
					w.(http.Flusher).Flush()
				} else if err := control.Flush(); err != nil {
					t.Error(err)
				}
				if r.Context().Err() != nil {
					t.Error("the request's context ended")
				}
			}
		}))
		l, stop := serve(t, s)
		conn := l.dial()
		start := time.Now()
		go io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		for i := range 100 {
			if !lines.Scan() || lines.Text() != fmt.Sprintf("event %d", i) {
				t.Fatalf("event %d: %q, %v", i, lines.Text(), lines.Err())
			}
			if got, want := time.Since(start), time.Duration(i+1)*time.Minute; got != want {
				t.Errorf("event %d came after %v, not %v", i, got, want)
			}
		}
		conn.Close()
		stop()
	})
}

// TestSlowClients: who stands still in the headers, in the body or between
// requests is cut off; who keeps sending is not.
func TestSlowClients(t *testing.T) {
	request := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
	tests := []struct {
		name, send string
		after      time.Duration
	}{
		{"nothing", "", headerTimeout},
		{"half of the headers", "POST /mcp HTTP/1.1\r\nHo", headerTimeout},
		{"half of the body", request + "half", bodyTimeout},
		{"a body that no handler reads", strings.Replace(request, "/mcp", "/unread", 1) + "half", bodyTimeout},
		{"no second request", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", idleTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.Copy(io.Discard, r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("reading the body: %v", err)
					}
				}))
				l, stop := serve(t, s)
				conn := l.dial()
				start := time.Now()
				go io.WriteString(conn, tt.send)
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Error(err)
				}
				if got := time.Since(start); got < tt.after || got > tt.after+time.Second {
					t.Errorf("cut off after %v, not %v", got, tt.after)
				}
				stop()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprint(w, len(body), err)
		}))
		l, stop := serve(t, s)
		conn := l.dial()
		go func() {
			io.WriteString(conn, request)
			for range 100 {
				time.Sleep(bodyTimeout - time.Second)
				io.WriteString(conn, "x")
			}
		}()
		if _, body := send(t, conn, ""); body != "100 <nil>" {
			t.Errorf("a slow but steady body: %s", body)
		}
		conn.Close()
		stop()
	})
}

// TestWriteDeadlineEndsWithItsRequest: a handler may set one; the next
// request on the connection does not inherit it.
func TestWriteDeadlineEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Handle("/deadline", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
				t.Error(err)
			}
		}))
		l, stop := serve(t, s)
		conn := l.dial()
		send(t, conn, "GET /deadline HTTP/1.1\nHost: x\n\n")
		time.Sleep(time.Minute)
		if res, _ := send(t, conn, "GET /healthz HTTP/1.1\nHost: x\n\n"); res.StatusCode != 200 {
			t.Errorf("the second request: %d", res.StatusCode)
		}
		conn.Close()
		stop()
	})
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

// TestDownload passes a file through by io.ReaderFrom, whole and counted.
func TestDownload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := New(Options{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	s.Handle("/big", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("the way to sendfile is closed")
		}
		http.ServeFile(w, r, path)
	}))
	srv := httptest.NewServer(s)
	res, err := http.Get(srv.URL + "/big")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(content), err)
	}
	srv.Close() // all is logged
	if lines := logged(t, &log); len(lines) != 1 || lines[0]["bytes"] != float64(len(content)) {
		t.Errorf("log: %s", &log)
	}
}
