package artifact_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// do sends one request straight to the handler.
func do(s *artifact.Store, method, url string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func wantStatus(t *testing.T, s *artifact.Store, a artifact.Artifact, status int) *httptest.ResponseRecorder {
	t.Helper()
	w := do(s, http.MethodGet, s.URL(a))
	if w.Code != status {
		t.Errorf("GET %s: %d, want %d", a.Path, w.Code, status)
	}
	return w
}

// TestTranscripts compares whole answers, as they stand on the wire, with
// testdata. TOKEN stands for the token of the file.
func TestTranscripts(t *testing.T) {
	clk := newClock()
	s := openStore(t, indextest.NewMemory(), artifact.Options{Now: clk.now})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	content := map[string]string{
		"notes.txt":     "0123456789\n",
		"figure.png":    "\x89PNG\r\n\x1a\n",
		"page.html":     "<html><script>alert(1)</script>",
		"drawing.svg":   `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`,
		"Ω \"1\" %.csv": "x,y\n",
		"empty.txt":     "",
	}
	files := map[string]artifact.Artifact{}
	for name, body := range content {
		files[name] = stage(t, s, name, body)
	}
	clk.advance(10*time.Minute + 500*time.Millisecond)
	sum := func(name string) string { return `"` + files[name].SHA256 + `"` }
	created := "Sun, 01 Mar 2026 12:00:00 GMT"

	tests := []struct {
		golden, method, file string
		headers              []string
	}{
		{"text", "GET", "notes.txt", nil},
		{"text-head", "HEAD", "notes.txt", nil},
		{"picture", "GET", "figure.png", nil},
		{"html", "GET", "page.html", nil},
		{"svg", "GET", "drawing.svg", nil},
		{"odd-name", "GET", "Ω \"1\" %.csv", nil},
		{"empty", "GET", "empty.txt", nil},
		{"post", "POST", "notes.txt", nil},
		{"options", "OPTIONS", "notes.txt", nil},
		{"range", "GET", "notes.txt", []string{"Range: bytes=2-4"}},
		{"range-open", "GET", "notes.txt", []string{"Range: bytes=8-"}},
		{"range-suffix", "GET", "notes.txt", []string{"Range: bytes=-3"}},
		{"range-beyond", "GET", "notes.txt", []string{"Range: bytes=99-"}},
		{"range-head", "HEAD", "notes.txt", []string{"Range: bytes=0-0"}},
		{"range-bad", "GET", "notes.txt", []string{"Range: bytes=x"}},
		{"range-many", "GET", "notes.txt", []string{"Range: " + "bytes=0-" + strings.Repeat(",0-", 500)}},
		{"if-none-match", "GET", "notes.txt", []string{"If-None-Match: " + sum("notes.txt")}},
		{"if-none-match-other", "GET", "notes.txt", []string{`If-None-Match: "other"`}},
		{"if-match-other", "GET", "notes.txt", []string{`If-Match: "other"`}},
		{"if-range", "GET", "notes.txt", []string{"Range: bytes=0-1", "If-Range: " + sum("notes.txt")}},
		{"if-range-other", "GET", "notes.txt", []string{"Range: bytes=0-1", `If-Range: "other"`}},
		{"if-modified-since", "GET", "notes.txt", []string{"If-Modified-Since: " + created}},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			a := files[tt.file]
			request := fmt.Sprintf("%s %s HTTP/1.1\nHost: localhost\n", tt.method, s.URL(a))
			for _, h := range tt.headers {
				request += h + "\n"
			}
			got := request + "\n" + exchange(t, srv, request)
			got = strings.ReplaceAll(got, a.Token, "TOKEN")
			got = regexp.MustCompile(`(?m)^Date: .*\n`).ReplaceAllString(got, "")
			path := filepath.Join("testdata", tt.golden+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// exchange sends a request given as text, and returns the answer as text.
func exchange(t *testing.T, srv *httptest.Server, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, strings.ReplaceAll(request+"Connection: close\n\n", "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(answer), "\r\n", "\n")
}

// TestOneAnswerForEverythingElse: whatever is asked, and whatever the reason,
// the refusal is the same to the byte.
func TestOneAnswerForEverythingElse(t *testing.T) {
	dir := t.TempDir()
	clk := newClock()
	s := openStore(t, indextest.NewMemory(), artifact.Options{Dir: dir, Now: clk.now})
	expired := stage(t, s, "expired.txt", "x")
	clk.advance(time.Hour)
	a, other := stage(t, s, "a.txt", "alpha"), stage(t, s, "b.txt", "beta")
	deleted, lost, damaged := stage(t, s, "deleted.txt", "x"), stage(t, s, "lost.txt", "x"), stage(t, s, "damaged.txt", "xx")
	link, dirLink, special, isDir := stage(t, s, "link.txt", "beta"), stage(t, s, "b.txt", "beta"), stage(t, s, "fifo", ""), stage(t, s, "dir", "")
	at := func(a artifact.Artifact) string { return filepath.Join(dir, a.Token, a.File) }
	for _, err := range []error{
		s.Delete(t.Context(), deleted.Token),
		os.Remove(at(lost)),
		os.Truncate(at(damaged), 1),
		// A symlink that stays within the store, to a file of the same size.
		os.Remove(at(link)), os.Symlink("../"+other.Token+"/b.txt", at(link)),
		os.RemoveAll(filepath.Join(dir, dirLink.Token)), os.Symlink(other.Token, filepath.Join(dir, dirLink.Token)),
		os.Remove(at(isDir)), os.Mkdir(at(isDir), 0o755),
		os.Remove(at(special)), mkfifo(at(special)),
		os.Symlink("/etc/passwd", filepath.Join(dir, a.Token, "passwd")),
		os.WriteFile(filepath.Join(dir, a.Token, "extra.txt"), []byte("x"), 0o644),
		os.WriteFile(filepath.Join(dir, "root.txt"), []byte("x"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var urls []string
	for _, a := range []artifact.Artifact{expired, deleted, lost, damaged, link, dirLink, special, isDir} {
		urls = append(urls, s.URL(a))
	}
	t1 := "/sandbox-out/" + a.Token
	urls = append(urls,
		"/sandbox-out/", "/sandbox-out", "/", t1, t1+"/",
		"/sandbox-out/"+strings.Repeat("A", 43)+"/a.txt",
		"/sandbox-out/"+a.Token[:42]+"/a.txt", "/sandbox-out/"+a.Token+"x/a.txt", "/sandbox-out/"+strings.ToLower(a.Token)+"/a.txt",
		t1+"/A.txt", t1+"/a.tx", t1+"/a.txt/", t1+"/a.txt/x", t1+"//a.txt", "/sandbox-out//"+a.Token+"/a.txt",
		t1+"/passwd", t1+"/extra.txt",
		t1+"/.", t1+"/..", t1+"/../"+a.Token+"/a.txt", t1+"/./a.txt", t1+"/../root.txt", "/sandbox-out/../root.txt",
		t1+"/%2e%2e%2froot.txt", t1+"/..%2froot.txt", t1+"/%2e%2e/root.txt", t1+"/..%5croot.txt", t1+`/..\root.txt`,
		t1+"/%252e%252e%252froot.txt", t1+"/..%c0%afroot.txt", t1+"/a.txt%00", t1+"/%00", t1+"/a.txt%0a",
		"/sandbox-out%2f"+a.Token+"%2fa.txt", t1+"%2fa.txt", "/sandbox-out/.staging/x", "/sandbox-out/%2estaging/x",
		"/sandbox-out/./root.txt", "/sandbox-out/"+fmt.Sprintf("%%%02X", a.Token[0])+a.Token[1:]+"/a.txt",
		"/SANDBOX-OUT/"+a.Token+"/a.txt", "/x"+t1+"/a.txt",
	)
	want := do(s, "GET", "/sandbox-out/nothing")
	if want.Code != 404 || want.Body.String() != "not found\n" {
		t.Fatalf("the plain answer is %d %q", want.Code, want.Body)
	}
	for _, u := range urls {
		r := &http.Request{Method: "GET", URL: parse(t, u), Header: http.Header{"Range": {"bytes=0-"}}}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != want.Code || w.Body.String() != want.Body.String() || cmp.Diff(want.Header(), w.Header()) != "" {
			t.Errorf("GET %s: %d %q %v", artifact.Redact(u), w.Code, w.Body, w.Header())
		}
	}
	wantStatus(t, s, a, 200) // so the URLs failed for the right reason
	if got := do(s, "GET", t1+"/%61.txt?download=1").Code; got != 200 {
		t.Errorf("another escaping of the name, with a query: %d", got)
	}

	// The sweep takes what was planted, and not what it points to.
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, s, other, 200)
}

// parse takes a URL apart as the server does.
func parse(t *testing.T, u string) *url.URL {
	t.Helper()
	parsed, err := url.ParseRequestURI(u)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestConcurrentDownloads reads one file from many sides, whole and in parts,
// and finds the bytes that the hash names.
func TestConcurrentDownloads(t *testing.T) {
	s := openStore(t, indextest.NewMemory(), artifact.Options{})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<15) // 512 KiB
	a := stage(t, s, "data.bin", string(content))
	get := func(ranges string) []byte {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", srv.URL+s.URL(a), nil)
		if ranges != "" {
			r.Header.Set("Range", ranges)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return body
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if got := fmt.Sprintf("%x", sha256.Sum256(get(""))); got != a.SHA256 {
				t.Errorf("the whole file hashes to %s", got)
			}
			from := i * 1000
			if got := get(fmt.Sprintf("bytes=%d-%d", from, from+999)); !bytes.Equal(got, content[from:from+1000]) {
				t.Errorf("part %d differs", i)
			}
		})
	}
	wg.Wait()
}

// TestDownloadOutlivesSweep: a download that has begun is served to its end,
// after the file has expired and is gone from disk.
func TestDownloadOutlivesSweep(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	s := openStore(t, indextest.NewMemory(), artifact.Options{Dir: dir, Now: clk.now})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	const size = 64 * mib // more than the sockets' buffers hold
	a, err := s.Stage(t.Context(), artifact.File{Path: "big", MaxBytes: size}, io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(srv.URL + s.URL(a))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	clk.advance(time.Hour)
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
		t.Fatalf("Sweep = %d, %v", n, err)
	}
	wantTree(t, dir)
	sum := sha256.New()
	if n, err := io.Copy(sum, res.Body); n != size || err != nil || fmt.Sprintf("%x", sum.Sum(nil)) != a.SHA256 {
		t.Errorf("read %d bytes of %d, %v", n, int64(size), err)
	}
	wantStatus(t, s, a, 404)
}

// TestDispositionParses: what a browser makes of the header is the name that
// is stored, whatever the script called its file.
func TestDispositionParses(t *testing.T) {
	s := openStore(t, indextest.NewMemory(), artifact.Options{})
	for _, path := range []string{"a.csv", `"; filename="b.exe`, "x\r\nSet-Cookie: a=b", "é€.csv", "100%41.csv", "it's (1).csv", ";=.csv", "\xff.csv", "👩‍🔬.csv"} {
		a := stage(t, s, path, "x")
		w := wantStatus(t, s, a, 200)
		_, params, err := mime.ParseMediaType(w.Header().Get("Content-Disposition"))
		if err != nil || params["filename"] != a.File {
			t.Errorf("%q: a browser reads %q, %v; want %q", path, params["filename"], err, a.File)
		}
		if slices.Contains(w.Header()["Set-Cookie"], "a=b") {
			t.Errorf("%q made a header", path)
		}
	}
}

func TestBrokenIndexAnswersNoDetails(t *testing.T) {
	ix := &brokenIndex{Memory: indextest.NewMemory()}
	s := openStore(t, ix, artifact.Options{})
	a := stage(t, s, "a.txt", "x")
	ix.get = errors.New("disk I/O error in /var/lib")
	w := wantStatus(t, s, a, 500)
	if w.Body.String() != "internal error\n" {
		t.Errorf("body %q", w.Body)
	}
}
