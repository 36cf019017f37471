package test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// TestForeignRequestsAreRefused: without sign-in /mcp is for this machine's
// programs, and for requests that came straight from them.
func TestForeignRequestsAreRefused(t *testing.T) {
	s := sharedServer(t)
	for _, header := range []http.Header{
		{"Host": {"evil.example"}},
		{"Host": {"169.254.169.254"}},
		{"Origin": {"https://evil.example"}},
		{"Origin": {"null"}},
		{"X-Forwarded-For": {"127.0.0.1"}},
		{"X-Forwarded-Host": {"localhost"}},
		{"X-Real-Ip": {"127.0.0.1"}},
		{"Forwarded": {"for=127.0.0.1"}},
		{"Via": {"1.1 proxy"}},
		{"Cf-Connecting-Ip": {"127.0.0.1"}},
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodOptions} {
			if res, body := do(t, method, s.url, header); res.StatusCode != http.StatusForbidden || len(body) == 0 {
				t.Errorf("%s with %v: %s %s", method, header, res.Status, body)
			}
		}
	}
	// Downloads may be public.
	f := s.succeed(t, "bash", `printf '\0' > output/x.bin`).file(t, "x.bin")
	res, body := do(t, http.MethodGet, f.URL, http.Header{"Host": {"lab.example"}, "X-Forwarded-For": {"1.2.3.4"}})
	if res.StatusCode != http.StatusOK || len(body) != 1 {
		t.Errorf("downloading through a proxy: %s", res.Status)
	}
}

// TestMCPTakesPOSTOnly: a client that waits on GET is told at once.
func TestMCPTakesPOSTOnly(t *testing.T) {
	s := sharedServer(t)
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut} {
		res, _ := do(t, method, s.url, http.Header{"Accept": {"text/event-stream"}})
		if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != http.MethodPost {
			t.Errorf("%s: %s, Allow: %q", method, res.Status, res.Header.Get("Allow"))
		}
	}
}

// TestUnknownLinksAreAlike: what is not there, has another name, or is not
// for asking, all get the same answer.
func TestUnknownLinksAreAlike(t *testing.T) {
	s := sharedServer(t)
	f := s.succeed(t, "bash", `printf '\0' > output/there.bin`).file(t, "there.bin")
	download(t, f)
	links := s.base() + "/sandbox-out/"
	unknown := strings.Repeat("A", len(f.token()))
	_, want := get(t, links+unknown+"/there.bin")
	for _, url := range []string{
		links, strings.TrimSuffix(links, "/"), links + unknown, links + f.token(), links + f.token() + "/",
		links + f.token() + "/other.bin", links + f.token() + "/there.bin/", links + f.token() + "//there.bin",
		links + f.token() + "/../" + f.token() + "/there.bin", links + f.token() + "/%2e%2e/belljar.db",
		links + "../belljar.db", links + "..%2fbelljar.db", links + ".staging/", links + "x",
		links + f.token()[1:] + "/there.bin", links + f.token() + "/there.bin%00",
		s.base() + "/", s.base() + "/favicon.ico", s.base() + "/.well-known/oauth-protected-resource",
	} {
		res, body := get(t, url)
		if res.StatusCode != http.StatusNotFound || !bytes.Equal(body, want) || res.Request.URL.String() != url {
			t.Errorf("%s: %s %q", url, res.Status, body)
		}
	}
	if string(want) != "not found\n" {
		t.Errorf("the answer: %q", want)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if res, _ := do(t, method, f.URL, nil); res.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, res.Status)
		}
	}
}

func TestHealthz(t *testing.T) {
	s := sharedServer(t)
	if res, body := get(t, s.base()+"/healthz"); res.StatusCode != http.StatusOK || string(body) != "ok\n" {
		t.Errorf("%s %s", res.Status, body)
	}
}

// TestTokensAreNotLogged: not even at the most talkative level, when a link
// is used, misspelt, or leads nowhere. Whether they are is checked when the
// server ends; see startServer.
func TestTokensAreNotLogged(t *testing.T) {
	s := startServer(t, "BELLJAR_LOG_LEVEL=debug")
	f := s.succeed(t, "bash", `printf '\0' > output/x.bin`).file(t, "x.bin")
	download(t, f)
	for _, suffix := range []string{"/", "?token=" + f.token(), "%00", "/../x.bin"} {
		get(t, f.URL+suffix)
	}
	get(t, s.base()+"/"+f.token())
	get(t, s.base()+"/wrong-prefix/"+f.token()+"/x.bin")
	do(t, http.MethodPut, f.URL, nil)
	do(t, http.MethodGet, s.url, http.Header{"Origin": {"http://evil.example/" + f.token()}, "X-Forwarded-Uri": {f.URL}})
	if len(s.tokens) != 1 || !strings.Contains(s.log.String(), "path=/sandbox-out/") {
		t.Errorf("this test shows nothing: %d tokens, log:\n%s", len(s.tokens), s.log)
	}
}

// TestOversizedRequest: a body above the limit is refused before it is read.
func TestOversizedRequest(t *testing.T) {
	s := startServer(t, "BELLJAR_INPUT_BYTES=1MiB")
	grown := growth(t, s.pid)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, bytes.NewReader(make([]byte, 64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s", res.Status)
		}
	}
	if n := grown(); n > allowedGrowth {
		t.Errorf("the server grew by %d MiB", n>>20)
	}
	if text := s.refused(t, "bash", "true", inputs(map[string]string{"big": strings.Repeat("x", 1<<20)})); !strings.Contains(text, "at most 1048576 are taken") {
		t.Errorf("refused with %q", text)
	}
}
