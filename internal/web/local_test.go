package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// ask sends headers to an endpoint that is local, through a whole server.
func ask(t *testing.T, l *pipes, request string) (int, string) {
	t.Helper()
	conn := l.dial()
	defer conn.Close()
	res, body := send(t, conn, request+"\n\n")
	return res.StatusCode, body
}

func localServer(t *testing.T) *pipes {
	t.Helper()
	s := New(Options{PublicURL: &url.URL{Scheme: "https", Host: "lab.example.org"}})
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in") })
	s.Handle("/mcp", ok, s.Local())
	s.Handle("/sandbox-out/", ok)
	l, _ := serve(t, s)
	return l
}

func TestLocalHosts(t *testing.T) {
	l := localServer(t)
	for _, host := range []string{
		"localhost", "localhost:8815", "LOCALHOST:80", "LocalHost",
		"127.0.0.1", "127.0.0.1:1", "127.0.0.1:65535", "[::1]", "[::1]:80",
	} {
		if status, body := ask(t, l, "POST /mcp HTTP/1.1\nHost: "+host); status != 200 {
			t.Errorf("Host %q: %d %s", host, status, body)
		}
	}
	for _, host := range []string{
		"evil.com", "evil.com:8815", "127.0.0.1.evil.com", "127.0.0.1.evil.com:80", "localhost.evil.com", "evil.localhost",
		"localhost.", "localhost.:80", "127.0.0.1.", "[::1].evil.com", "[::1]evil.com", "[::1]x:80", "::1", "[::1", "[::1]]",
		"localhost:", "localhost:x", "localhost:80:80", "localhost:-1", "localhost:+80", "localhost:123456", "127.0.0.1:80.evil.com",
		"127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.2", "0.0.0.0", "0", "[::]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]",
		"user@localhost", "localhost@evil.com", "localhost:80@evil.com", "evil.com#localhost", "localhost,evil.com", "evil.com,localhost",
		"lo\u0441alhost", "localhost%2eevil.com", "169.254.169.254", "192.168.1.1:8815", "lab.example.org", "lab.example.org:443",
	} {
		status, body := ask(t, l, "POST /mcp HTTP/1.1\nHost: "+host)
		switch {
		case status == 400: // net/http itself refuses what cannot be a host
		case status != 403 || !strings.Contains(body, "SANDBOX_PUBLIC_URL"):
			t.Errorf("Host %q: %d %s", host, status, body)
		}
	}
}

// TestLocalRequestLines are requests whose Host header alone would pass, or
// is missing, doubled or contradicted.
func TestLocalRequestLines(t *testing.T) {
	l := localServer(t)
	for _, tt := range []struct {
		request string
		status  int
	}{
		{"GET http://evil.com/mcp HTTP/1.1\nHost: localhost", 403},
		{"GET http://localhost@evil.com/mcp HTTP/1.1\nHost: localhost", 403},
		{"GET http://localhost/mcp HTTP/1.1\nHost: localhost", 200},
		{"GET /mcp HTTP/1.1", 400},
		{"GET /mcp HTTP/1.1\nHost:", 403},
		{"GET /mcp HTTP/1.1\nHost: localhost\nHost: evil.com", 400},
		{"GET /mcp HTTP/1.1\nHost: localhost\nHost: localhost", 400},
		{"GET /mcp HTTP/1.1\nHost : localhost", 400},
		{"GET /mcp HTTP/1.0", 403},
		{"GET /mcp HTTP/1.0\nHost: localhost", 403}, // a proxy with default settings
		{"GET /mcp HTTP/1.1\nHost: localhost\nConnection: keep-alive\nUser-Agent: x", 200},
		{"OPTIONS /mcp HTTP/1.1\nHost: localhost\nOrigin: https://evil.com\nAccess-Control-Request-Method: POST", 403},
		{"OPTIONS * HTTP/1.1\nHost: evil.com", 404},
		{"GET /x/../mcp HTTP/1.1\nHost: evil.com", 404},
		{"GET /mcp?x HTTP/1.1\nHost: evil.com", 403},
		// What needs no sign-in is public.
		{"GET /sandbox-out/x HTTP/1.1\nHost: evil.com\nOrigin: https://evil.com\nX-Forwarded-For: 1.2.3.4", 200},
		{"GET /sandbox-out/x HTTP/1.0", 200},
		{"GET /healthz HTTP/1.1\nHost: 10.0.0.1", 200},
	} {
		if status, body := ask(t, l, tt.request); status != tt.status {
			t.Errorf("%q: %d %q, want %d", tt.request, status, body, tt.status)
		}
	}
}

func TestLocalOrigins(t *testing.T) {
	l := localServer(t)
	for _, tt := range []struct {
		origins []string
		status  int
	}{
		{nil, 200},
		{[]string{"http://localhost"}, 200},
		{[]string{"http://localhost:6274"}, 200},
		{[]string{"https://127.0.0.1:8815"}, 200},
		{[]string{"http://[::1]:3000"}, 200},
		{[]string{""}, 403},
		{[]string{"null"}, 403},
		{[]string{"https://evil.com"}, 403},
		{[]string{"https://lab.example.org"}, 403},
		{[]string{"http://localhost.evil.com"}, 403},
		{[]string{"http://localhost."}, 403},
		{[]string{"http://evil.com:80@localhost"}, 403},
		{[]string{"http://localhost@evil.com"}, 403},
		{[]string{"http://localhost/"}, 403},
		{[]string{"http://localhost#.evil.com"}, 403},
		{[]string{"http://localhost http://evil.com"}, 403},
		{[]string{"http://localhost, http://evil.com"}, 403},
		{[]string{"localhost"}, 403},
		{[]string{"//localhost"}, 403},
		{[]string{"http:localhost"}, 403},
		{[]string{"file://localhost"}, 403},
		{[]string{"chrome-extension://abcdef"}, 403},
		{[]string{"vscode-webview://localhost"}, 403},
		{[]string{"http://127.0.0.2"}, 403},
		{[]string{"http://localhost", "http://localhost"}, 403},
		{[]string{"http://localhost", "https://evil.com"}, 403},
	} {
		request := "POST /mcp HTTP/1.1\nHost: localhost"
		for _, o := range tt.origins {
			request += "\nOrigin: " + o
		}
		if status, body := ask(t, l, request); status != tt.status {
			t.Errorf("Origin %q: %d %q, want %d", tt.origins, status, body, tt.status)
		}
	}
}

func TestLocalForwarded(t *testing.T) {
	l := localServer(t)
	for _, header := range []string{
		"Forwarded: for=1.2.3.4", "forwarded: for=127.0.0.1", "X-Forwarded-For: 127.0.0.1", "x-forwarded-host: localhost",
		"X-FORWARDED-PROTO: https", "X-Forwarded-Anything: x", "X-Forwarded: x", "X-Real-IP: 127.0.0.1", "Via: 1.1 proxy",
		"CF-Connecting-IP: 1.2.3.4", "Cf-Ray: x", "CDN-Loop: cloudflare", "True-Client-IP: 1.2.3.4", "Fly-Client-IP: 1.2.3.4",
		"X-Envoy-External-Address: x", "X-Original-Host: x", "Tailscale-User-Login: x", "X_Forwarded_For: 1.2.3.4",
		"X-Forwarded-For:", // empty, but it was added by someone
	} {
		status, body := ask(t, l, "POST /mcp HTTP/1.1\nHost: localhost\n"+header)
		if status != 403 || !strings.Contains(body, "proxy") {
			t.Errorf("%q: %d %q", header, status, body)
		}
	}
	for _, header := range []string{"Mcp-Session-Id: x", "X-Custom: x", "Accept: */*", "Viable: x", "X-Request-Id: x"} {
		if status, body := ask(t, l, "POST /mcp HTTP/1.1\nHost: localhost\n"+header); status != 200 {
			t.Errorf("%q: %d %q", header, status, body)
		}
	}
}

// TestRefusalIsHarmless: what a refusal repeats of a request is quoted and
// short, and the refusal names itself for the log.
func TestRefusalIsHarmless(t *testing.T) {
	l := localServer(t)
	conn := l.dial()
	defer conn.Close()
	res, body := send(t, conn, "POST /mcp HTTP/1.1\nHost: localhost\nOrigin: <script>"+strings.Repeat("x", 5000)+"\n\n")
	if res.StatusCode != 403 || len(body) > 300 || !strings.Contains(body, res.Header.Get("X-Request-Id")) {
		t.Errorf("%d, %d bytes: %.300s", res.StatusCode, len(body), body)
	}
	if res.Header.Get("Content-Type") != "text/plain; charset=utf-8" || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", res.Header)
	}
}
