package artifact_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

// workspaces are directories, one of them a sandbox's root. They behave as
// sandboxes do: they start when they are opened.
type workspaces struct {
	dir string

	mu      sync.Mutex
	running map[string]bool
	starts  int
	open    int
	fail    error
	writes  chan struct{} // receives when a write begins, if there is room
}

func newWorkspaces(t *testing.T, ids ...string) *workspaces {
	w := &workspaces{dir: t.TempDir(), running: map[string]bool{}, writes: make(chan struct{}, 1)}
	for _, id := range ids {
		if err := os.MkdirAll(filepath.Join(w.dir, id, "sandbox"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if w.open != 0 {
			t.Errorf("%d workspaces were not closed", w.open)
		}
	})
	return w
}

func (w *workspaces) Running(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[id]
}

func (w *workspaces) Open(ctx context.Context, id string) (artifact.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := os.Stat(filepath.Join(w.dir, id)); err != nil {
		return nil, artifact.ErrNotFound
	}
	if w.fail != nil {
		return nil, w.fail
	}
	if !w.running[id] {
		w.running[id] = true
		w.starts++
	}
	w.open++
	return &workspace{w, filepath.Join(w.dir, id)}, nil
}

func (w *workspaces) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.running)
}

func (w *workspaces) write(t *testing.T, id, path, content string) {
	t.Helper()
	file := filepath.Join(w.dir, id, path)
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

type workspace struct {
	w    *workspaces
	root string
}

func (w *workspace) Close() {
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	w.w.open--
}

func (w *workspace) Stat(ctx context.Context, path string) (artifact.LiveFile, error) {
	info, err := os.Stat(filepath.Join(w.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		err = artifact.ErrNotFound
	}
	if err != nil {
		return artifact.LiveFile{}, err
	}
	return live(info), nil
}

func live(info fs.FileInfo) artifact.LiveFile {
	return artifact.LiveFile{
		Dir: info.IsDir(), Regular: info.Mode().IsRegular(), Size: info.Size(), ModTime: info.ModTime(),
		Identity: "1", Version: fmt.Sprint(info.Size(), info.ModTime()),
	}
}

func (w *workspace) Read(ctx context.Context, path string, offset, length int64) (io.ReadCloser, artifact.LiveFile, error) {
	f, err := os.Open(filepath.Join(w.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		err = artifact.ErrNotFound
	}
	if err != nil {
		return nil, artifact.LiveFile{}, err
	}
	info, err := f.Stat()
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, live(info), err
}

func (w *workspace) Archive(ctx context.Context, path, format string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("packed as " + format)), nil
}

func (w *workspace) Write(ctx context.Context, path string, r io.Reader) error {
	to := filepath.Join(w.root, path)
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		return artifact.ErrRefused
	}
	select {
	case w.w.writes <- struct{}{}:
	default:
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

var secret = []byte("0123456789abcdef0123456789abcdef")

func newLinks(t *testing.T, o artifact.LinkOptions) *artifact.Links {
	t.Helper()
	if o.Secret == nil {
		o.Secret = secret
	}
	if o.Store == nil {
		o.Store = indextest.NewMemoryLinks()
	}
	l, err := artifact.NewLinks(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func share(t *testing.T, l *artifact.Links, id, path, suffix string) artifact.Link {
	t.Helper()
	link, err := l.Share(id, path, suffix, 0)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func uploadTo(t *testing.T, l *artifact.Links, id, path string, most int64) artifact.Link {
	t.Helper()
	link, err := l.Upload(id, path, most)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// get asks one of the two handlers.
func get(l *artifact.Links, method, url, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h := l.ShareHandler()
	if strings.Contains(url, artifact.UploadPrefix) {
		h = l.UploadHandler()
	}
	h.ServeHTTP(w, r)
	return w
}

func wantAnswer(t *testing.T, what string, w *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	if w.Code != status || !strings.Contains(w.Body.String(), body) {
		t.Errorf("%s: %d %q, want %d %q", what, w.Code, w.Body, status, body)
	}
}
