package sandbox

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/lang"
)

func TestMain(m *testing.M) {
	agent.RunHelper()
	os.Exit(m.Run())
}

// bench is a Manager with what it stands on.
type bench struct {
	*Manager
	mem   *enginetest.Memory
	store *artifact.Store
	files http.Handler // serves the store
	log   *lockedBuffer
}

var testLimits = engine.Limits{Memory: 2 << 30, CPUs: 2, PIDs: 512, Tmp: 512 << 20, Disk: 1 << 30, Inodes: 65536}

// newBench returns a Manager on the in-memory engine, after its start. It is
// closed at the end of the test, and then no sandbox may be left.
func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	mem := enginetest.NewMemory(t)
	b := newBenchOn(t, mem, change...)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
		if ids := sandboxes(t, mem); len(ids) > 0 {
			t.Errorf("left behind: %q", ids)
		}
	})
	return b
}

func newBenchOn(t *testing.T, mem *enginetest.Memory, change ...func(*Options)) *bench {
	t.Helper()
	table, err := lang.Load()
	if err != nil {
		t.Fatal(err)
	}
	store, err := artifact.Open(t.Context(), indextest.NewMemory(), artifact.Options{Dir: t.TempDir(), BaseURL: "http://host"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log := &lockedBuffer{}
	o := Options{
		Engine: mem, Store: store, Table: table, ServerID: "server-1", Image: "mini", Limits: testLimits,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, f := range change {
		f(&o)
	}
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{Manager: m, mem: mem, store: store, files: store.Handler(), log: log}
}

// lockedBuffer takes the log of many goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func sandboxes(t *testing.T, e engine.Engine) []string {
	t.Helper()
	list, err := e.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

func bash(script string) Request {
	return Request{Subject: access.Owner, Runtime: "bash", Script: script}
}

// must runs a request that is to be carried out.
func (b *bench) must(t *testing.T, r Request) *Result {
	t.Helper()
	res, err := b.Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// file returns an output file by name, with its content as downloaded.
func (b *bench) file(t *testing.T, res *Result, name string) (File, []byte) {
	t.Helper()
	i := slices.IndexFunc(res.OutputFiles, func(f File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no output file %q among %+v; notes %q", name, res.OutputFiles, res.Notes)
	}
	f := res.OutputFiles[i]
	if f.Text != nil {
		return f, []byte(*f.Text)
	}
	path, ok := strings.CutPrefix(f.URL, "http://host")
	if !ok {
		t.Fatalf("URL of %q: %q", name, f.URL)
	}
	w := httptest.NewRecorder()
	b.files.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
	data, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: status %d, %v", f.URL, w.Code, err)
	}
	return f, data
}

func names(res *Result) []string {
	var all []string
	for _, f := range res.OutputFiles {
		all = append(all, f.Name)
	}
	return all
}

// wantNote checks that one of the notes holds all of the words.
func wantNote(t *testing.T, res *Result, words ...string) {
	t.Helper()
	for _, note := range res.Notes {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(note, w) }) {
			return
		}
	}
	t.Errorf("no note says %q: %q", words, res.Notes)
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// faultyEngine is an engine with some methods changed.
type faultyEngine struct {
	engine.Engine
	create  func(context.Context, engine.Spec) error
	connect func(context.Context, string) (net.Conn, error)
	inspect func(context.Context, string) (engine.Receipt, error)
	remove  func(context.Context, string) error
}

func (f *faultyEngine) Create(ctx context.Context, s engine.Spec) error {
	if f.create != nil {
		return f.create(ctx, s)
	}
	return f.Engine.Create(ctx, s)
}

func (f *faultyEngine) Connect(ctx context.Context, id string) (net.Conn, error) {
	if f.connect != nil {
		return f.connect(ctx, id)
	}
	return f.Engine.Connect(ctx, id)
}

func (f *faultyEngine) Inspect(ctx context.Context, id string) (engine.Receipt, error) {
	if f.inspect != nil {
		return f.inspect(ctx, id)
	}
	return f.Engine.Inspect(ctx, id)
}

func (f *faultyEngine) Remove(ctx context.Context, id string) error {
	if f.remove != nil {
		return f.remove(ctx, id)
	}
	return f.Engine.Remove(ctx, id)
}

// hanging makes the agents of spare sandboxes stop answering while hang is
// true.
func hanging(hang *atomic.Bool) func(*Options) {
	return func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, connect: func(ctx context.Context, id string) (net.Conn, error) {
			conn, err := real.Connect(ctx, id)
			if err == nil && strings.HasPrefix(id, kindSpare) {
				conn = &hangingConn{Conn: conn, hang: hang, closed: make(chan struct{})}
			}
			return conn, err
		}}
	}
}

type hangingConn struct {
	net.Conn
	hang   *atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *hangingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.hang.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *hangingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
