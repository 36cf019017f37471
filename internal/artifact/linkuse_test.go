package artifact_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar/internal/artifact"
)

func TestUpload(t *testing.T) {
	ws := newWorkspaces(t, "b")
	clk := newClock()
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, Now: clk.now})
	want := func(name, content string) {
		t.Helper()
		if data, _ := os.ReadFile(filepath.Join(ws.dir, "b/sandbox", name)); string(data) != content {
			t.Errorf("%s holds %q, want %q", name, data, content)
		}
	}
	u := uploadTo(t, l, "b", "/sandbox/in.csv", 10).URL
	wantAnswer(t, "GET", get(l, "GET", u, ""), 405, "curl -T FILE")
	wantAnswer(t, "another name", get(l, "PUT", u+"x", "x"), 404, "not found")
	wantAnswer(t, "too large", get(l, "PUT", u, "0123456789x"), 413, "larger than 10 bytes")
	unknown := httptest.NewRequest("PUT", u, io.MultiReader(strings.NewReader("0123456789x"))) // chunked
	w := httptest.NewRecorder()
	l.UploadHandler().ServeHTTP(w, unknown)
	wantAnswer(t, "too large in the end", w, 413, "larger than 10 bytes")
	want("in.csv", "")
	wantAnswer(t, "the right size", get(l, "PUT", u, "0123456789"), 201, "stored 10 bytes as \"/sandbox/in.csv\"\n")
	wantAnswer(t, "a second time", get(l, "PUT", u, "other"), 410, "used already")
	want("in.csv", "0123456789")

	u = uploadTo(t, l, "b", "/sandbox", 10).URL
	wantAnswer(t, "over a directory", get(l, "PUT", u, "x"), 409, "did not take")
	u = uploadTo(t, l, "b", "/sandbox/late", 10).URL
	clk.advance(time.Hour)
	wantAnswer(t, "too late", get(l, "PUT", u, "x"), 410, "expired")
	want("late", "")
}

// Of two uploads by one link at a time, one is taken; one that breaks off does
// not use the link up.
func TestUploadOnce(t *testing.T) {
	ws := newWorkspaces(t, "b")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws})
	srv := httptest.NewServer(l.UploadHandler())
	defer srv.Close()
	u := uploadTo(t, l, "b", "/sandbox/f", 100).URL
	begun, body := io.Pipe()
	broken := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		r, _ := http.NewRequestWithContext(ctx, "PUT", srv.URL+u, begun)
		_, err := http.DefaultClient.Do(r)
		broken <- err
	}()
	if _, err := body.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	<-ws.writes
	wantAnswer(t, "the second of two", get(l, "PUT", u, "other"), 410, "used already")
	cancel()
	body.CloseWithError(errors.New("the source broke"))
	if err := <-broken; err == nil {
		t.Error("a broken upload was taken")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // nothing tells when the server noticed
		w := get(l, "PUT", u, "whole")
		if w.Code == 201 {
			break
		}
		if w.Code != 410 || time.Now().After(end) {
			t.Fatalf("after a broken upload: %d %s", w.Code, w.Body)
		}
	}
}

// Links start a stopped workspace, but not without end, and those who come
// while it starts use nothing up.
func TestStartsAreBounded(t *testing.T) {
	ids := []string{"b"}
	for i := range 30 {
		ids = append(ids, fmt.Sprint("b", i))
	}
	ws := newWorkspaces(t, ids...)
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws})
	links := map[string]string{}
	for _, id := range ids {
		ws.write(t, id, "sandbox/f", "content")
		links[id] = share(t, l, id, "/sandbox/f", "").URL
	}
	for range 4 {
		ws.stop()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { wantAnswer(t, "a start", get(l, "GET", links["b"], ""), 200, "content") })
		}
		wg.Wait()
	}
	if ws.starts != 4 {
		t.Errorf("started %d times", ws.starts)
	}
	ws.stop()
	w := get(l, "GET", links["b"], "")
	wantAnswer(t, "one start too many", w, 503, "started too often")
	if after := w.Header().Get("Retry-After"); len(after) != 2 {
		t.Errorf("Retry-After %q", after)
	}
	refused := 0
	for _, id := range ids[1:] {
		if w := get(l, "GET", links[id], ""); w.Code == 503 {
			refused++
		}
	}
	if ws.starts > 22 || refused < 10 {
		t.Errorf("%d starts in all, %d refused", ws.starts, refused)
	}
	ws.mu.Lock()
	ws.running["b"] = true // somebody else has started it
	ws.mu.Unlock()
	wantAnswer(t, "running", get(l, "GET", links["b"], ""), 200, "content")
}

func TestTransfersAreBounded(t *testing.T) {
	ws := newWorkspaces(t, "a", "b", "c")
	l := newLinks(t, artifact.LinkOptions{Workspaces: ws, MaxTransfers: 4})
	srv := httptest.NewServer(l.ShareHandler())
	defer srv.Close()
	links := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		ws.write(t, id, "sandbox/f", "")
		if err := os.Truncate(filepath.Join(ws.dir, id, "sandbox/f"), 64<<20); err != nil { // more than the sockets' buffers hold
			t.Fatal(err)
		}
		links[id] = share(t, l, id, "/sandbox/f", "").URL
	}
	start := func(id string) *http.Response {
		res, err := http.Get(srv.URL + links[id])
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	var going []*http.Response
	for _, tt := range []struct {
		id     string
		status int
	}{{"a", 200}, {"a", 200}, {"a", 503}, {"b", 200}, {"b", 200}, {"c", 503}} {
		res := start(tt.id)
		defer res.Body.Close()
		if res.StatusCode != tt.status || tt.status == 503 && res.Header.Get("Retry-After") != "10" {
			t.Errorf("%s: %d %v", tt.id, res.StatusCode, res.Header)
		}
		if tt.status == 200 {
			going = append(going, res)
		}
	}
	for _, res := range going {
		if n, err := io.Copy(io.Discard, res.Body); n != 64<<20 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the handlers return by themselves
		if w := get(l, "HEAD", links["c"], ""); w.Code == 200 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("when all have ended: %d", w.Code)
		}
	}
}
