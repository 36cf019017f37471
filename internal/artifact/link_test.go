package artifact_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

func TestShare(t *testing.T) {
	ws := newWorkspaces(t, "box-1")
	clk := newClock()
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, Now: clk.now, BaseURL: "https://host/x/"})
	ws.write(t, "box-1", "sandbox/page.html", "<script>alert(1)</script>")
	link := share(t, l, "box-1", "/sandbox/page.html", "")
	if !strings.HasPrefix(link.URL, "https://host/x/sandbox-share/") || !strings.HasSuffix(link.URL, "/page.html") || !link.Expires.Equal(clk.now().Add(7*24*time.Hour)) {
		t.Errorf("link %+v", link)
	}
	at := strings.TrimPrefix(link.URL, "https://host/x")
	w := get(l, "GET", at, "")
	wantAnswer(t, "a page", w, 200, "<script>alert(1)</script>")
	for name, want := range map[string]string{
		"Content-Type": "text/html", "Content-Disposition": "attachment; filename=\"page.html\"", "Content-Security-Policy": "sandbox; default-src 'none'",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes", "Content-Length": "25",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	etag := w.Header().Get("Etag")
	wantAnswer(t, "a range", get(l, "GET", at, "", "Range", "bytes=8-12"), 206, "alert")
	wantAnswer(t, "ranges", get(l, "GET", at, "", "Range", "bytes=0-1,3-4,-2"), 206, "Content-Range: bytes 23-24/25\r\nContent-Type: text/html\r\n\r\nt>")
	wantAnswer(t, "too many ranges", get(l, "GET", at, "", "Range", "bytes=0-0"+strings.Repeat(",2-2", 16)), 200, "<script>alert(1)</script>")
	wantAnswer(t, "a range beyond", get(l, "GET", at, "", "Range", "bytes=99-"), 416, "")
	wantAnswer(t, "the same version", get(l, "GET", at, "", "If-None-Match", etag), 304, "")
	if w := get(l, "HEAD", at, ""); w.Code != 200 || w.Body.Len() > 0 || w.Header().Get("Content-Length") != "25" {
		t.Errorf("HEAD: %d %q %v", w.Code, w.Body, w.Header())
	}
	// A changed file serves its new content, with its new type.
	ws.write(t, "box-1", "sandbox/page.html", "\x89PNG\r\n\x1a\n and more")
	w = get(l, "GET", at, "", "If-None-Match", etag)
	wantAnswer(t, "changed", w, 200, "PNG")
	if got := w.Header().Get("Content-Type"); got != "image/png" {
		t.Errorf("the new content is %s", got)
	}
	if err := os.Remove(filepath.Join(ws.dir, "box-1/sandbox/page.html")); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "deleted", get(l, "GET", at, ""), 410, "no longer there")
	wantAnswer(t, "POST", get(l, "POST", at, ""), 405, "method not allowed")
	clk.advance(7 * 24 * time.Hour)
	wantAnswer(t, "expired", get(l, "GET", at, ""), 410, "this link has expired")
}

func TestShareDirectory(t *testing.T) {
	ws := newWorkspaces(t, "b")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws})
	link := share(t, l, "b", "/sandbox", ".tar.gz").URL
	w := get(l, "GET", link, "")
	wantAnswer(t, "tar.gz", w, 200, "packed as tar.gz")
	if h := w.Header(); h.Get("Content-Type") != "application/gzip" || h.Get("Content-Disposition") != `attachment; filename="sandbox.tar.gz"` {
		t.Errorf("headers %v", h)
	}
	wantAnswer(t, "the same as zip", get(l, "GET", strings.TrimSuffix(link, ".tar.gz")+".zip", ""), 200, "packed as zip")
	wantAnswer(t, "as a file", get(l, "GET", strings.TrimSuffix(link, ".tar.gz"), ""), 404, "not found")
	if w := get(l, "HEAD", link, ""); w.Code != 200 || w.Body.Len() > 0 {
		t.Errorf("HEAD: %d %q", w.Code, w.Body)
	}
}

// TestTamperedLinks changes every bit of a token, and more: whatever is not
// ours gets one answer, to the byte.
func TestTamperedLinks(t *testing.T) {
	ws := newWorkspaces(t, "b")
	ws.write(t, "b", "sandbox/f", "content")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, Key: "k"})
	good := share(t, l, "b", "/sandbox/f", "").URL
	token := strings.Split(good, "/")[2]
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	tokens := []string{"", "x", token[1:], token[:len(token)-1], token + "A", token + "=", token[:9] + "\n" + token[9:], strings.Repeat("A", 10_000)}
	for i := range len(raw) * 8 {
		b := []byte(string(raw))
		b[i/8] ^= 1 << (i % 8)
		tokens = append(tokens, base64.RawURLEncoding.EncodeToString(b))
	}
	for i := range len(token) { // also those characters with bits to spare
		for _, c := range "AZ-_" {
			if byte(c) != token[i] {
				tokens = append(tokens, token[:i]+string(c)+token[i+1:])
			}
		}
	}
	urls := []string{"/sandbox-share/", good + "/", good + "x", "/sandbox-share/" + token, "/sandbox-share/" + token + "/", "/sandbox-share/" + token + "/../f"}
	for _, other := range tokens {
		urls = append(urls, "/sandbox-share/"+url.PathEscape(other)+"/f")
	}
	for name, o := range map[string]artifact.LinkOptions{
		"another key": {Key: "other"}, "no key": {}, "another secret": {Key: "k", Secret: []byte(strings.Repeat("x", 32))},
	} {
		o.Workspaces = ws
		other := newLinks(t, o)
		urls = append(urls, share(t, other, "b", "/sandbox/f", "").URL)
		wantAnswer(t, name, get(other, "GET", good, ""), 404, "not found\n")
	}
	// A link for one purpose is none for another.
	urls = append(urls, strings.Replace(uploadTo(t, l, "b", "/sandbox/f", 10).URL, "upload", "share", 1))
	wantAnswer(t, "a download's link", get(l, "PUT", strings.Replace(good, "share", "upload", 1), "x"), 404, "not found\n")
	want := get(l, "GET", "/sandbox-share/nothing/f", "")
	for _, u := range urls {
		w := httptest.NewRecorder()
		l.ShareHandler().ServeHTTP(w, &http.Request{Method: "GET", URL: parse(t, u), Header: http.Header{}})
		if w.Code != 404 || w.Body.String() != "not found\n" || fmt.Sprint(w.Header()) != fmt.Sprint(want.Header()) {
			t.Errorf("GET %s: %d %q", u, w.Code, w.Body)
		}
	}
	wantAnswer(t, "the link itself", get(l, "GET", good, ""), 200, "content")
}

func TestRevoke(t *testing.T) {
	ws := newWorkspaces(t, "b")
	ws.write(t, "b", "sandbox/f", "content")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, BaseURL: "http://h"})
	one, two := share(t, l, "b", "/sandbox/f", "").URL, share(t, l, "b", "/sandbox/f", "").URL
	up := uploadTo(t, l, "b", "/sandbox/g", 10).URL
	if one == two {
		t.Fatal("two links are the same")
	}
	for _, u := range []string{one, up} {
		if err := l.Revoke(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if err := l.Revoke(t.Context(), u); !errors.Is(err, artifact.ErrLinkEnded) {
			t.Errorf("revoked twice: %v", err)
		}
	}
	wantAnswer(t, "revoked", get(l, "GET", one, ""), 410, "revoked")
	wantAnswer(t, "the other", get(l, "GET", two, ""), 200, "content")
	wantAnswer(t, "an upload", get(l, "PUT", up, "x"), 410, "revoked")
	for _, u := range []string{"", "nonsense", "http://h/sandbox-share/x/y", "%zz", "/sandbox-out/" + strings.Repeat("A", 43) + "/f"} {
		if err := l.Revoke(t.Context(), u); !errors.Is(err, artifact.ErrNotFound) {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestLinksAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := indextest.NewMemoryLinks()
		l := newLinks(t, artifact.LinkOptions{Workspaces: newWorkspaces(t), Store: store})
		link := share(t, l, "b", "/f", "")
		if err := l.Revoke(t.Context(), link.URL); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.Run(ctx) })
		time.Sleep(time.Until(link.Expires))
		wantAnswer(t, "revoked and about to expire", get(l, "GET", link.URL, ""), 410, "")
		if err := l.Revoke(t.Context(), link.URL); !errors.Is(err, artifact.ErrLinkEnded) {
			t.Errorf("forgotten too soon: %v", err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if err := l.Revoke(t.Context(), link.URL); err != nil {
			t.Errorf("still known an hour after it expired: %v", err)
		}
		cancel()
		wg.Wait()
	})
}

// A file that is cut while it is sent makes a broken answer, not a whole one.
func TestShareBreaksOff(t *testing.T) {
	ws := newWorkspaces(t, "b")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws})
	srv := httptest.NewServer(l.ShareHandler())
	defer srv.Close()
	path := filepath.Join(ws.dir, "b/sandbox/f")
	ws.write(t, "b", "sandbox/f", "")
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(srv.URL + share(t, l, "b", "/sandbox/f", "").URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Errorf("%d bytes and a clean end", n)
	}
}

func TestLinkErrorsTellNothing(t *testing.T) {
	var log strings.Builder
	ws := newWorkspaces(t, "b")
	ws.fail = errors.New("dial unix /var/lib/secret")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, Log: slog.New(slog.NewTextHandler(&log, nil))})
	u := share(t, l, "b", "/sandbox/f", "").URL
	w := get(l, "GET", u, "")
	if w.Code != 503 || strings.Contains(w.Body.String(), "secret") || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if text := log.String(); !strings.Contains(text, "/var/lib/secret") || strings.Contains(text, strings.Split(u, "/")[2][:40]) {
		t.Errorf("log: %s", text)
	}
	wantAnswer(t, "a sandbox that is gone", get(l, "GET", share(t, l, "none", "/f", "").URL, ""), 410, "no longer there")
	for _, path := range []string{"", "relative", "/" + strings.Repeat("x", artifact.MaxLinkPath), "/a\x00b"} {
		if _, err := l.Share("b", path, "", 0); err == nil {
			t.Errorf("a link to %.20q", path)
		}
	}
	if _, err := l.Share("b", "/f", "", artifact.MaxLinkTTL+1); err == nil {
		t.Error("a link for ever")
	}
	long, err := l.Share(strings.Repeat("b", 255), "/"+strings.Repeat("x", artifact.MaxLinkPath-1), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "the longest", get(l, "GET", long.URL, ""), 410, "")
	if got := artifact.Redact(u); strings.Contains(got, strings.Split(u, "/")[2]) || !strings.HasSuffix(got, "/f") {
		t.Errorf("redacted: %s", got)
	}
	if got := artifact.Redact("/sandbox-upload/short/f"); got != "/sandbox-upload/…/f" {
		t.Errorf("redacted: %s", got)
	}
}

func TestLinkSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	first, err := artifact.LinkSecret(path)
	if err != nil || len(first) != 32 {
		t.Fatal(first, err)
	}
	if again, err := artifact.LinkSecret(path); err != nil || string(again) != string(first) {
		t.Errorf("%x became %x, %v", first, again, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left beside it: %v", names)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := artifact.LinkSecret(path); err == nil || !strings.Contains(err.Error(), "chmod it 600") {
		t.Errorf("a secret that others read: %v", err)
	}
	for _, content := range []string{"", "short", strings.Repeat("x", 33)} {
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := artifact.LinkSecret(path); err == nil || !strings.Contains(err.Error(), "32 bytes") {
			t.Errorf("a secret of %d bytes: %v", len(content), err)
		}
	}
	if other, err := artifact.LinkSecret(path + "2"); err != nil || string(other) == string(first) {
		t.Errorf("another server has the same secret: %v", err)
	}
}
