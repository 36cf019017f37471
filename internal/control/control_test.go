package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/access"
	"belljar/internal/image"
	"belljar/internal/job"
	"belljar/internal/sandbox"
)

// asOther is the environment variable that makes the test binary a caller
// with another user's rights, on the socket that it names.
const asOther = "BELLJAR_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(asOther); path != "" {
		callAsOther(path)
		return
	}
	os.Exit(m.Run())
}

// jobs looks after one job.
type jobs struct {
	*host
	state     job.State
	cancelled string
}

func (j *jobs) Inspect(_ context.Context, s access.Subject, id string) (job.State, error) {
	if id != j.state.ID || s != access.Owner {
		return job.State{}, &sandbox.RequestError{Message: "there is no job " + id}
	}
	return j.state, nil
}

func (j *jobs) Cancel(ctx context.Context, s access.Subject, id string) error {
	_, err := j.Inspect(ctx, s, id)
	j.cancelled = id
	return err
}

func TestJobs(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 1e6, time.UTC)
	h := &jobs{host: &host{}}
	c := dial(t, serveBackend(t, h.host, h))
	for name, state := range map[string]job.State{
		"running": {Job: job.Job{ID: "job-1", Status: job.Running, Begun: noon, Seconds: 1.5}, Kept: noon.Add(time.Hour),
			Progress: &job.Progress{Elapsed: 1500 * time.Millisecond, Limit: time.Hour, Line: "half of it"}},
		"over": {Job: job.Job{ID: "job-1", Kind: job.Command, Status: job.Exited, Title: "x", Sandbox: "default", Begun: noon}, Ended: noon.Add(time.Minute), Kept: noon.Add(time.Hour),
			Reply: &job.Reply{ID: "job-1", Status: job.Exited, Command: &job.Result{ExitCode: 137}}, Cancelled: true},
		"faulty": {Job: job.Job{ID: "job-1", Begun: noon}, Kept: noon, Ended: noon, Refused: "it broke", Fault: true},
	} {
		h.state = state
		got, err := c.Inspect(t.Context(), access.Subject{}, "job-1")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(state, got); d != "" {
			t.Errorf("%s (-sent +received):\n%s", name, d)
		}
	}
	if err := c.Cancel(t.Context(), access.Subject{}, "job-1"); err != nil || h.cancelled != "job-1" {
		t.Errorf("cancelling: %v, %q", err, h.cancelled)
	}
	var refused *sandbox.RequestError
	if _, err := c.Inspect(t.Context(), access.Owner, "job-2"); !errors.As(err, &refused) {
		t.Errorf("another job: %v", err)
	}
	if err := c.Cancel(t.Context(), access.Owner, "job-2"); !errors.As(err, &refused) {
		t.Errorf("cancelling another job: %v", err)
	}
}

// host is what stands behind the socket: it keeps what it was asked for.
type host struct {
	Backend // for what no test asks of it
	asked   sandbox.Request
	abort   bool // breaks the connection off, as being killed does
	result  *sandbox.Result
	err     error
	images  []image.Image
	builds  []image.BuildOptions
}

func (h *host) Run(_ context.Context, r sandbox.Request, w job.Wait) (job.Reply, error) {
	h.asked = r
	if h.abort {
		panic(http.ErrAbortHandler)
	}
	if w.Tell != nil {
		w.Tell(job.Progress{Elapsed: w.Every, Line: "half of it"})
	}
	return job.Reply{Status: job.Exited, Script: h.result}, h.err
}

func (h *host) Runtimes(context.Context) ([]sandbox.RuntimeInfo, error) {
	return []sandbox.RuntimeInfo{{Name: "bash"}}, h.err
}

// shelf is the host's images.
type shelf struct{ *host }

func (h shelf) List() ([]image.Image, error) { return h.images, h.err }

func (h shelf) Remove(_ context.Context, ref string) error {
	for i, img := range h.images {
		if img.Names[0] == ref {
			h.images = append(h.images[:i:i], h.images[i+1:]...)
			return nil
		}
	}
	return image.ErrNotFound
}

func (h shelf) Build(_ context.Context, o image.BuildOptions, p image.Progress) (image.Image, error) {
	h.builds = append(h.builds, o)
	for i := range 3 {
		p(image.Event{Step: i + 1, Steps: 3, Text: "step"})
	}
	return image.Image{Names: []string{o.Name}, Digest: "sha256:1"}, h.err
}

func (h shelf) Pull(_ context.Context, ref string, p image.Progress) (image.Image, error) {
	return image.Image{Names: []string{ref}}, h.err
}

func (h shelf) Load(_ context.Context, path string, p image.Progress) ([]image.Image, error) {
	return []image.Image{{Names: []string{path}}, {Names: []string{"b"}}}, h.err
}

// serve serves h and returns the socket's path.
func serve(t *testing.T, h *host) string { return serveBackend(t, h, h) }

// serveBackend is serve with another backend.
func serveBackend(t *testing.T, h *host, b Backend) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Info:    func() Info { return Info{Version: "v", PID: 7} },
		Backend: b, Images: shelf{h},
		Sweep: func(context.Context) (int, error) { return 3, h.err },
		Artifacts: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, r.Method+" "+r.URL.Path)
		}),
		ArtifactPrefix: "/files/", Log: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return path
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCalls(t *testing.T) {
	text := "kept"
	h := &host{result: &sandbox.Result{
		Success: true, Stdout: "out\n", OutputFiles: []sandbox.File{{Name: "a", Text: &text}},
		Images: []sandbox.Image{{Name: "p.png", MIME: "image/png", Data: []byte{0, 1, 255}}},
	}}
	c := dial(t, serve(t, h))
	ctx := t.Context()
	request := sandbox.Request{Subject: access.Subject{ID: "somebody"}, Runtime: "bash", Script: "x",
		Inputs: []sandbox.Input{{Name: "d/f", Data: []byte{0, 200}}}, Timeout: 90}
	var told []job.Progress
	got, err := c.Run(ctx, request, job.Wait{For: time.Minute, Every: time.Second, Tell: func(p job.Progress) { told = append(told, p) }})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]job.Progress{{Elapsed: time.Second, Line: "half of it"}}, told); d != "" {
		t.Errorf("progress (-sent +received):\n%s", d)
	}
	if d := cmp.Diff(h.result, got.Script); d != "" {
		t.Errorf("result (-sent +received):\n%s", d)
	}
	request.Subject = access.Owner // whatever a caller says it is
	if d := cmp.Diff(request, h.asked); d != "" {
		t.Errorf("request (-sent +received):\n%s", d)
	}
	if all, err := c.Runtimes(ctx); err != nil || len(all) != 1 || all[0].Name != "bash" {
		t.Errorf("runtimes: %v, %v", all, err)
	}
	if n, err := c.Sweep(ctx); n != 3 || err != nil {
		t.Errorf("sweep: %d, %v", n, err)
	}
	body, err := c.Artifact(ctx, "https://elsewhere.example/files/tok/a%20b.png")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, _ := io.ReadAll(body); string(got) != "GET /files/tok/a b.png" {
		t.Errorf("the artifact handler saw %q", got)
	}
}

func TestImages(t *testing.T) {
	h := &host{images: []image.Image{{Names: []string{"ghcr.io/a/b:c"}}, {Names: []string{"mini"}}}}
	c := dial(t, serve(t, h))
	ctx := t.Context()
	if err := c.RemoveImage(ctx, "ghcr.io/a/b:c"); err != nil {
		t.Errorf("removing: %v", err)
	}
	if all, err := c.Images(ctx); err != nil || len(all) != 1 || all[0].Names[0] != "mini" {
		t.Errorf("images: %v, %v", all, err)
	}
	var events []image.Event
	o := image.BuildOptions{Name: "n", Containerfile: "/c", Args: map[string]string{"A": "b"}}
	img, err := c.Build(ctx, o, func(e image.Event) { events = append(events, e) })
	if err != nil || img.Digest != "sha256:1" || len(events) != 3 || events[2].Step != 3 {
		t.Errorf("build: %+v, %v, %v", img, err, events)
	}
	if d := cmp.Diff([]image.BuildOptions{o}, h.builds); d != "" {
		t.Errorf("build options (-sent +received):\n%s", d)
	}
	if all, err := c.Load(ctx, "/a.tar", func(image.Event) {}); err != nil || len(all) != 2 {
		t.Errorf("load: %v, %v", all, err)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	h := &host{err: &sandbox.RequestError{Message: "timeout 900 s: the maximum is 300 s"}}
	c := dial(t, serve(t, h))
	_, err := c.Run(t.Context(), sandbox.Request{}, job.Wait{For: time.Minute})
	var request *sandbox.RequestError
	if !errors.As(err, &request) || request.Message != "timeout 900 s: the maximum is 300 s" {
		t.Errorf("a refusal became %#v", err)
	}
	h.err = errors.New("disk on fire")
	if _, err := c.Run(t.Context(), sandbox.Request{}, job.Wait{For: time.Minute}); err == nil || errors.As(err, &request) || err.Error() != "disk on fire" {
		t.Errorf("a failure became %#v", err)
	}
	if _, err := c.Build(t.Context(), image.BuildOptions{}, func(image.Event) {}); err == nil || err.Error() != "disk on fire" {
		t.Errorf("a failed build: %v", err)
	}
}

func TestServerEndsDuringACall(t *testing.T) {
	_, err := dial(t, serve(t, &host{abort: true})).Run(t.Context(), sandbox.Request{}, job.Wait{})
	if err == nil || !strings.Contains(err.Error(), "the server ended in the middle of the work") {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	if _, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v, want os.ErrNotExist", err)
	}
	// What a killed server left is replaced.
	path := filepath.Join(t.TempDir(), "s")
	for range 2 {
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v; want mode 0660", info.Mode(), err)
	}
}

// callAsOther makes every call and prints what came of it.
func callAsOther(path string) {
	ctx := context.Background()
	c, err := Dial(ctx, path)
	if err != nil {
		fmt.Println("dial:", err)
		return
	}
	nothing := func(image.Event) {}
	_, run := c.Run(ctx, sandbox.Request{}, job.Wait{For: time.Minute})
	_, list := c.Images(ctx)
	_, build := c.Build(ctx, image.BuildOptions{}, nothing)
	_, pull := c.Pull(ctx, "x", nothing)
	_, load := c.Load(ctx, "/etc/shadow", nothing)
	_, gc := c.Sweep(ctx)
	fmt.Println("run:", run)
	fmt.Println("list:", list)
	fmt.Println("build:", build)
	fmt.Println("pull:", pull)
	fmt.Println("load:", load)
	fmt.Println("rm:", c.RemoveImage(ctx, "x"))
	fmt.Println("gc:", gc)
}

// TestOtherUsers calls with the rights of another user: by the group's, what
// it may and may not; without them, nothing at all.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to call as another user")
	}
	h := &host{result: &sandbox.Result{}}
	path := serve(t, h)
	for dir := filepath.Dir(path); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	const group = 64001
	if err := os.Chown(path, 0, group); err != nil {
		t.Fatal(err)
	}
	call := func(gid uint32) string {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(filepath.Dir(path), fmt.Sprint("caller", gid))
		if err := os.WriteFile(program, self, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), asOther+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64000, Gid: gid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	const no = "this is for root and the user that the server runs as: use sudo"
	want := "run: <nil>\nlist: <nil>\n"
	for _, denied := range []string{"build", "pull", "load", "rm", "gc"} {
		want += denied + ": " + no + "\n"
	}
	if d := cmp.Diff(want, call(group)); d != "" {
		t.Errorf("a member of the group (-want +got):\n%s", d)
	}
	if got := call(64002); !strings.Contains(got, "permission denied") {
		t.Errorf("somebody else: %s", got)
	}
	if len(h.builds) != 0 {
		t.Errorf("a denied build was carried out: %v", h.builds)
	}
}

// typist is a backend that keeps what is written to a job.
type typist struct {
	Backend
	got string
}

func (b *typist) Input(_ context.Context, _ access.Subject, _, text string, _ bool) (int64, error) {
	b.got += text
	return int64(len(text)), nil
}

// What is written to a job arrives byte by byte.
func TestInputBytes(t *testing.T) {
	b := &typist{}
	h := &host{Backend: b}
	want := "\x00\xff\xfe text"
	if n, err := dial(t, serve(t, h)).Input(t.Context(), access.Owner, "job", want, true); err != nil || n != int64(len(want)) {
		t.Errorf("%d bytes taken, %v", n, err)
	}
	if b.got != want {
		t.Errorf("arrived as %q", b.got)
	}
}
