package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
	if text := log.String(); strings.Contains(text, token) || !strings.Contains(text, "TestPanic") {
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

func TestBodyLimitOfATree(t *testing.T) {
	s := New(Options{MaxBody: 10})
	s.LimitBody("/large/", 100)
	count := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	s.Handle("/large/", count)
	s.Handle("/small/", count)
	for path, status := range map[string]int{"/large/x": 200, "/small/x": 413, "/large": 413} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("PUT", path, strings.NewReader(strings.Repeat("x", 100))))
		if w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("PUT", "/large/x", io.MultiReader(strings.NewReader(strings.Repeat("x", 101)))))
	if !strings.HasPrefix(w.Body.String(), "100 http: request body too large") {
		t.Errorf("above the bound: %s", w.Body)
	}
}

// TestStreaming: an event reaches the client while the handler still runs,
// by either way of flushing, for longer than any timeout.
func TestStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Handle("/mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 2 { // reading beyond the end must not set a deadline
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
			}
			control := http.NewResponseController(w)
			for i := range 100 {
				time.Sleep(time.Minute)
				if err := r.Context().Err(); err != nil {
					t.Errorf("before event %d: %v", i, err)
				}
				fmt.Fprintf(w, "event %d\n", i)
				if i%2 == 0 {
					w.(http.Flusher).Flush()
				} else if err := control.Flush(); err != nil {
					t.Error(err)
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
