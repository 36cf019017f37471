package workspace

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/artifact"
)

func TestList(t *testing.T) {
	p := newPlace(t, FilesOptions{MaxEntries: 4})
	for _, name := range []string{"a.js", "b.ts", "c.py", "d/e.ts", "d/f.js"} {
		p.put(t, name, name)
	}
	must(t, os.Symlink("d", p.file("link")))
	list := func(path, glob string, depth int) string {
		t.Helper()
		l, err := p.List(testContext(t), ListRequest{FileRef: ref(path), Glob: glob, Depth: depth})
		must(t, err)
		var b strings.Builder
		for _, e := range l.Entries {
			if e.Modified.IsZero() {
				t.Errorf("%s has no time", e.Path)
			}
			fmt.Fprintf(&b, "%s %s %d %s;", e.Path, e.Kind, e.Bytes, e.Target)
		}
		return b.String() + fmt.Sprint(l.More, l.Notes)
	}
	for _, tt := range []struct {
		path, glob string
		depth      int
		want       string
	}{
		{"", "", 0, "a.js file 4 ;b.ts file 4 ;c.py file 4 ;d dir 0 ;1 [1 more entries are left out; narrow the pattern, the path or the depth]"},
		{"d", "", 0, "e.ts file 6 ;f.js file 6 ;0 []"},
		{"", "**/*.ts", 0, "b.ts file 4 ;d/e.ts file 6 ;0 []"},
		{"", "**/*.ts", 1, "b.ts file 4 ;0 []"},
		{"", "{,d/}*.{ts,js}", 0, "a.js file 4 ;b.ts file 4 ;d/e.ts file 6 ;d/f.js file 6 ;0 []"},
		{"", "**/*.{js,ts,t?}", 0, "a.js file 4 ;b.ts file 4 ;d/e.ts file 6 ;d/f.js file 6 ;0 []"},
		{"", "link", 0, "link link 0 d;0 []"},
	} {
		if got := list(tt.path, tt.glob, tt.depth); got != tt.want {
			t.Errorf("%q %q %d:\n%s, want\n%s", tt.path, tt.glob, tt.depth, got, tt.want)
		}
	}
	for glob, part := range map[string]string{"[": "want names with", "../*": "no ..", "{a": "not within each other", "{a,{b,c}}": "not within", strings.Repeat("{a,b}", 5): "more than 16"} {
		_, err := p.List(testContext(t), ListRequest{Glob: glob, FileRef: ref("")})
		wantRefusal(t, err, part)
	}
	_, err := p.List(testContext(t), ListRequest{FileRef: ref("a.js")})
	wantRefusal(t, err, "is a file and not a directory")
}

func serveLinks(t *testing.T, p *place) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle(artifact.SharePrefix, p.links.ShareHandler())
	mux.Handle(artifact.UploadPrefix, p.links.UploadHandler())
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	p.links.SetBaseURL(srv.URL)
	return srv
}

func fetch(t *testing.T, method, url string, body io.Reader, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(testContext(t), method, url, body)
	must(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	must(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(data)
}

func TestShare(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	serveLinks(t, p)
	content := strings.Repeat("0123456789\n", 100_000)
	p.put(t, "data set.csv", content)
	s, err := p.Share(testContext(t), ShareRequest{FileRef: ref("data set.csv"), Expires: time.Hour})
	must(t, err)
	url := s.URL
	s.URL, s.Expires = "", time.Time{}
	want := &Shared{Name: "data set.csv", Path: "/sandbox/data set.csv", Kind: "file", Bytes: int64(len(content)), MIME: "text/csv",
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(content))), ExpiresIn: 3600}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	if status, body := fetch(t, "GET", url, nil); status != 200 || body != content {
		t.Errorf("%d, %d bytes", status, len(body))
	}
	if status, body := fetch(t, "GET", url, nil, "Range", "bytes=11-13,-4"); status != 206 || !strings.Contains(body, "\r\n\r\n012\r\n") || !strings.Contains(body, "\r\n\r\n789\n\r\n") {
		t.Errorf("ranges: %d %q", status, body)
	}
	p.lender.mu.Lock()
	p.lender.running = false // stopped meanwhile
	p.lender.mu.Unlock()
	if status, body := fetch(t, "GET", url, nil, "Range", "bytes=0-9"); status != 206 || body != "0123456789" || p.lender.starts != 2 {
		t.Errorf("a stopped workspace: %d %q, %d starts", status, body, p.lender.starts)
	}
	must(t, os.Remove(p.file("data set.csv")))
	if status, _ := fetch(t, "GET", url, nil); status != 410 {
		t.Errorf("a deleted file: %d", status)
	}
	must(t, os.Symlink("/dev/zero", p.file("data set.csv")))
	if status, _ := fetch(t, "GET", url, nil); status != 410 {
		t.Errorf("a device in its place: %d", status)
	}
	must(t, p.Unshare(testContext(t), url))
	if status, body := fetch(t, "GET", url, nil); status != 410 || body != "this link was revoked\n" {
		t.Errorf("revoked: %d %q", status, body)
	}
	must(t, p.Unshare(testContext(t), url))
	wantRefusal(t, p.Unshare(testContext(t), strings.Replace(url, "share/", "share/x", 1)), "no link of this server")
}

func TestShareDirectory(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	serveLinks(t, p)
	p.put(t, "d/a", "content of a")
	s, err := p.Share(testContext(t), ShareRequest{FileRef: ref("d"), Format: "zip"})
	must(t, err)
	if s.Name != "d.zip" || s.Kind != "dir" || s.MIME != "application/zip" || s.ExpiresIn != 7*24*3600 || s.SHA256 != "" {
		t.Errorf("%+v", s)
	}
	for url, magic := range map[string]string{s.URL: "PK\x03\x04", strings.TrimSuffix(s.URL, "zip") + "tar.gz": "\x1f\x8b"} {
		if status, body := fetch(t, "GET", url, nil); status != 200 || !strings.HasPrefix(body, magic) {
			t.Errorf("%d %.100q", status, body)
		}
	}
	p.put(t, "file", "x")
	must(t, os.Symlink("nowhere", p.file("dangling")))
	for _, tt := range []struct {
		r    ShareRequest
		part string
	}{
		{ShareRequest{FileRef: ref("none")}, "does not exist"},
		{ShareRequest{FileRef: ref("dangling")}, "leads nowhere"},
		{ShareRequest{FileRef: ref("file"), Expires: time.Second}, "expires_in: want 60 to"},
		{ShareRequest{FileRef: ref("file"), Expires: 9000 * time.Hour}, "expires_in: want 60 to"},
		{ShareRequest{FileRef: ref("d"), Format: "rar"}, "tar.gz or zip"},
	} {
		_, err := p.Share(testContext(t), tt.r)
		wantRefusal(t, err, tt.part)
	}
	must(t, os.Truncate(p.file("file"), maxHashed))
	if s, err := p.Share(testContext(t), ShareRequest{FileRef: ref("file")}); err != nil || s.SHA256 != "" || s.Bytes != maxHashed {
		t.Errorf("a large file: %+v, %v", s, err)
	}
}

func TestUpload(t *testing.T) {
	p := newPlace(t, FilesOptions{MaxUpload: 1 << 20})
	serveLinks(t, p)
	u, err := p.UploadURL(testContext(t), UploadRequest{FileRef: ref("in/data.csv")})
	must(t, err)
	if u.Path != "/sandbox/in/data.csv" || u.MaxBytes != 1<<20 || u.ExpiresIn != 3600 || u.Replaces || u.Command != "curl -T FILE '"+u.URL+"'" {
		t.Errorf("%+v", u)
	}
	status, body := fetch(t, "PUT", u.URL, io.LimitReader(zeros{}, 1<<20+1))
	if status != 413 {
		t.Errorf("too large: %d %s", status, body)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the agent says nothing of it
		names, err := os.ReadDir(p.file(""))
		if err == nil && len(names) == 0 {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("left behind: %v, %v", names, err)
		}
	}
	if status, body = fetch(t, "PUT", u.URL, strings.NewReader("a,b\n")); status != 201 || body != "stored 4 bytes as \"/sandbox/in/data.csv\"\n" {
		t.Errorf("%d %s", status, body)
	}
	p.has(t, "in/data.csv", "a,b\n")
	if status, body = fetch(t, "PUT", u.URL, strings.NewReader("other")); status != 410 {
		t.Errorf("a second time: %d %s", status, body)
	}
	u, err = p.UploadURL(testContext(t), UploadRequest{FileRef: ref("in/data.csv"), MaxBytes: 3})
	must(t, err)
	if !u.Replaces || u.MaxBytes != 3 {
		t.Errorf("%+v", u)
	}
	must(t, os.Remove(p.file("in/data.csv")))
	must(t, os.Mkdir(p.file("in/data.csv"), 0o755))
	if status, body = fetch(t, "PUT", u.URL, strings.NewReader("x")); status != 409 || !strings.Contains(body, "a directory is in its place") {
		t.Errorf("a directory in its place: %d %s", status, body)
	}
	for _, tt := range []struct {
		r    UploadRequest
		part string
	}{
		{UploadRequest{FileRef: ref("in")}, "is a directory"},
		{UploadRequest{FileRef: ref("in/")}, "names a directory"},
		{UploadRequest{FileRef: ref("x"), MaxBytes: 1<<20 + 1}, "max_bytes: want 1 to 1048576"},
	} {
		_, err := p.UploadURL(testContext(t), tt.r)
		wantRefusal(t, err, tt.part)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
