package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/image"
)

// fixture is what all tests share: the agent, and an image that consists of
// busybox and the prober.
var fixture struct {
	dir   string
	agent []byte
}

func TestMain(m *testing.M) {
	if os.Getenv(crashDir) != "" {
		crashChild()
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // each test skips by itself
	}
	dir, err := os.MkdirTemp("", "belljar-native-")
	if err == nil {
		err = makeFixture(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making the image for the tests:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func makeFixture(dir string) error {
	fixture.dir = dir
	rootfs := filepath.Join(dir, "rootfs")
	agent := filepath.Join(dir, "agent")
	for _, b := range []struct{ out, pkg string }{
		{agent, "belljar/cmd/belljar-agent"},
		{filepath.Join(rootfs, "bin/prober"), "./testdata/prober"},
		{filepath.Join(dir, "belljar"), "belljar/cmd/belljar"},
	} {
		cmd := exec.Command("go", "build", "-o", b.out, b.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w: %s", b.pkg, err, out)
		}
	}
	var err error
	if fixture.agent, err = os.ReadFile(agent); err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w (apt-get install busybox-static)", err)
	}
	script := `cd "$1" && mkdir -p etc proc sys dev tmp root mnt usr/bin && cp "$2" bin/busybox &&
		for tool in $(bin/busybox --list); do [ -e bin/$tool ] || ln -s busybox bin/$tool; done &&
		echo root:x:0:0:root:/root:/bin/sh >etc/passwd && cp bin/prober usr/bin/euid && chmod 4755 usr/bin/euid`
	if out, err := exec.Command("sh", "-c", script, "sh", rootfs, busybox).CombinedOutput(); err != nil {
		return fmt.Errorf("making the image: %w: %s", err, out)
	}
	return nil
}

// images is a store with the one image of the tests and those added to it.
type images map[string]string

func (m images) Acquire(ref string) (image.Image, func(), error) {
	rootfs := filepath.Join(fixture.dir, "rootfs")
	if other, ok := m[ref]; ok {
		rootfs = other
	} else if ref != "busybox" && ref != "sha256:busybox" {
		return image.Image{}, nil, image.ErrNotFound
	}
	return image.Image{Digest: "sha256:" + strings.TrimPrefix(ref, "sha256:"), Rootfs: rootfs}, func() {}, nil
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func needRuntime(t *testing.T, name string) {
	t.Helper()
	needRoot(t)
	if _, err := exec.LookPath(sbin(name)); err != nil {
		t.Skipf("needs %s", name)
	}
}

func options(dir, runtime string) Options {
	o := Options{Dir: dir, Images: images{}, Agent: fixture.agent, Runtime: runtime,
		Network: []string{filepath.Join(fixture.dir, "belljar"), "net"}, Build: "test"}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return o
}

// newSubject opens an engine, to be closed and cleared when the test ends.
func newSubject(t *testing.T, o Options) *enginetest.Subject {
	t.Helper()
	needRoot(t)
	e, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &enginetest.Subject{Engine: e, Image: "busybox", Absent: "absent"}
	s.Reopen = func() engine.Engine {
		if err := s.Engine.Close(); err != nil {
			t.Error(err)
		}
		e, err := Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	t.Cleanup(func() {
		e := s.Engine.(*Engine)
		e.Close()
		wantNothingLeft(t, e)
	})
	return s
}

// wantNothingLeft looks for what an engine makes on the host.
func wantNothingLeft(t *testing.T, e *Engine) {
	t.Helper()
	entries, err := os.ReadDir(e.sandboxDir(""))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, entry := range entries {
		t.Errorf("left: %s", entry.Name())
	}
	for _, dir := range e.cg.dirs(e.group("")) {
		groups, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, g := range groups {
			t.Errorf("cgroup left: %s", filepath.Dir(g))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, e.dir) || strings.Contains(line, runDir) {
			t.Errorf("mount left: %s", line)
		}
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range backing {
		if data, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(data), e.dir) {
			t.Errorf("loop device left: %s: %s", file, data)
		}
	}
	for pid, uid := range users(t) {
		if _, ours := e.ids.slotOf(uid); ours {
			t.Errorf("process left: %d of user %d", pid, uid)
		}
	}
}

// users returns the user id of every process.
func users(t *testing.T) map[int]uint32 {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	m := map[int]uint32{}
	for _, entry := range entries {
		var pid int
		if n, _ := fmt.Sscanf(entry.Name(), "%d", &pid); n == 1 {
			// One that ended and waits for its parent to notice is no process.
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if uid, ok := userOf(pid); ok && err == nil && !strings.Contains(string(stat), ") Z ") {
				m[pid] = uid
			}
		}
	}
	return m
}

func TestContract(t *testing.T) {
	for _, runtime := range candidates {
		t.Run(runtime, func(t *testing.T) {
			needRuntime(t, runtime)
			enginetest.Run(t, func(t *testing.T) *enginetest.Subject {
				return newSubject(t, options(t.TempDir(), runtime))
			})
		})
	}
}

// A server that ends while it replaces a record has one, whole.
func TestRecordThatWasBeingReplaced(t *testing.T) {
	s, _ := started(t, nil)
	path := filepath.Join(s.Engine.(*Engine).sandboxDir("inside"), recordFile)
	if err := os.Rename(path, path+recordPart); err != nil {
		t.Fatal(err)
	}
	s.Engine = s.Reopen()
	list, err := s.Engine.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != engine.Running {
		t.Errorf("after a restart: %+v, %v", list, err)
	}
	if err := s.Engine.Remove(t.Context(), "inside"); err != nil {
		t.Error(err)
	}
}

// The namespace lives as long as the server: what a sandbox leaves there adds
// up.
func TestNothingIsLeftInTheNamespace(t *testing.T) {
	s, _ := started(t, nil)
	e := s.Engine.(*Engine)
	if err := e.Remove(t.Context(), "inside"); err != nil {
		t.Fatal(err)
	}
	dirs := []string{runDir, ociState}
	if unified := e.cg.hybrid(); unified != "" {
		dirs = append(dirs, filepath.Join(unified, e.group("")))
	}
	err := e.ns.do(func() error {
		for _, dir := range dirs {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				if !strings.HasPrefix(entry.Name(), ".") { // what the runtime keeps for all
					t.Errorf("left in %s: %s", dir, entry.Name())
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRuntimeIsChosenByRunning(t *testing.T) {
	needRoot(t)
	// One that says it is crun, and cannot run a container.
	bin := t.TempDir()
	fake := "#!/bin/sh\n[ \"$1\" = --version ] && echo crun version 99 && exit\necho 'no such luck' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "crun"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var log strings.Builder
	o := options(t.TempDir(), "")
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := newSubject(t, o)
	if got := s.Engine.Properties().Engine; !strings.Contains(got, "runc") {
		t.Errorf("engine is %q, want runc", got)
	}
	if !strings.Contains(log.String(), "passed over") || !strings.Contains(log.String(), "no such luck") {
		t.Errorf("the log does not say why crun was passed over:\n%s", log.String())
	}
	o = options(t.TempDir(), "crun")
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("opening with a runtime that does not work: %v", err)
	}
}

func TestRuntimeByPath(t *testing.T) {
	needRoot(t)
	path, err := exec.LookPath(sbin("crun"))
	if err != nil {
		t.Skip("needs crun")
	}
	s := newSubject(t, options(t.TempDir(), path))
	if got := s.Engine.Properties().Engine; !strings.Contains(got, "crun") {
		t.Errorf("engine is %q, want crun", got)
	}
}

// TestOthersAreSpared makes two servers hold the same window, as one in a
// container with a /run of its own may, and has one look for strays.
func TestOthersAreSpared(t *testing.T) {
	one := newSubject(t, options(t.TempDir(), ""))
	one.Start(t, engine.Spec{ID: "alive", Image: "busybox", Limits: enginetest.Limits()})
	other := newSubject(t, options(t.TempDir(), "")).Engine.(*Engine)
	first := other.ids.first
	other.ids.first = one.Engine.(*Engine).ids.first
	if err := other.killStrays(); err != nil {
		t.Error(err)
	}
	if ids, err := other.ids.take(); err != nil || ids.slot == other.ids.first {
		t.Errorf("the other's range was dealt out: %+v, %v", ids, err)
	}
	other.ids.first = first
	if _, err := one.Connect(t, "alive").Health(t.Context()); err != nil {
		t.Errorf("the sandbox of the other server: %v", err)
	}
}

func TestHostFull(t *testing.T) {
	o := options(t.TempDir(), "")
	o.MinFree = 1 << 60
	s := newSubject(t, o)
	spec := engine.Spec{ID: "a", Image: "busybox", Limits: enginetest.Limits()}
	var full *engine.HostFullError
	if err := s.Engine.Create(t.Context(), spec); !errors.As(err, &full) {
		t.Fatalf("creating on a full host: %v, want *HostFullError", err)
	}
	if full.Need < o.MinFree+spec.Limits.Disk || full.Free <= 0 {
		t.Errorf("the error says %+v", full)
	}
}

func TestTwoServersShareNoIDs(t *testing.T) {
	a := newSubject(t, options(t.TempDir(), "")).Engine.(*Engine)
	b := newSubject(t, options(t.TempDir(), "")).Engine.(*Engine)
	if a.ids.window() == b.ids.window() {
		t.Errorf("both hold window %d", a.ids.window())
	}
}

// A spare sandbox gives way to others; its claim ends that, before anything
// else runs in it.
func TestSpareGivesWay(t *testing.T) {
	needRoot(t)
	s := newSubject(t, options(t.TempDir(), ""))
	e := s.Engine.(*Engine)
	weight := func(id string) float64 {
		t.Helper()
		b, err := e.find(id, "looking at")
		if err != nil {
			t.Fatal(err)
		}
		if e.cg.v2() {
			return readNumber(b.process.groups.v2, "cpu.weight") / 100
		}
		return readNumber(b.process.groups.dir["cpu"], "cpu.shares") / 1024
	}
	spec := engine.Spec{ID: "plain", Image: s.Image, Limits: enginetest.Limits()}
	s.Start(t, spec)
	spec.ID, spec.Spare = "spare", true
	s.Start(t, spec)
	if w := weight("plain"); w != 1 {
		t.Errorf("the weight of a sandbox is %v", w)
	}
	if w := weight("spare"); w <= 0 || w > 0.1 {
		t.Errorf("the weight of a spare one is %v, want at most 0.1", w)
	}
	if err := e.Claim(t.Context(), "spare", nil, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if w := weight("spare"); w != 1 {
		t.Errorf("after the claim its weight is %v", w)
	}
}

// Where there is room for one sandbox, one of two that ask at once gets it,
// and a spare one does not take it.
func TestRoomForOne(t *testing.T) {
	needRoot(t)
	o := options(t.TempDir(), "")
	var st unix.Statfs_t
	if err := unix.Statfs(o.Dir, &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * st.Bsize
	limits := enginetest.Limits()
	limits.Disk = free / 8 >> 20 << 20 // files of others come and go
	o.MinFree = free - limits.Disk*3/2
	s := newSubject(t, o)
	for range 20 {
		var errs [2]error
		var both sync.WaitGroup
		for i, id := range []string{"one", "two"} {
			both.Go(func() {
				errs[i] = s.Engine.Create(t.Context(), engine.Spec{ID: id, Image: s.Image, Limits: limits})
			})
		}
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("got %v and %v, want one success", errs[0], errs[1])
		}
		for _, id := range []string{"one", "two"} {
			if err := s.Engine.Remove(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	var full *engine.HostFullError
	if err := s.Engine.Create(t.Context(), engine.Spec{ID: "spare", Image: s.Image, Limits: limits, Spare: true}); !errors.As(err, &full) {
		t.Errorf("a spare sandbox took the last room: %v", err)
	}
}

func TestRangesAreUsedUp(t *testing.T) {
	needRoot(t)
	s := newSubject(t, options(t.TempDir(), ""))
	e := s.Engine.(*Engine)
	var slots []int
	for range windowSlots {
		ids, err := e.ids.take()
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, ids.slot)
	}
	spec := engine.Spec{ID: "one", Image: s.Image, Limits: enginetest.Limits()}
	var full *engine.HostFullError
	if err := e.Create(t.Context(), spec); !errors.As(err, &full) || !strings.Contains(full.Error(), "256 ranges of user ids") {
		t.Errorf("got %v, want a HostFullError", err)
	}
	e.ids.release(slots[0])
	if err := errors.Join(e.Create(t.Context(), spec), e.Remove(t.Context(), spec.ID)); err != nil {
		t.Error(err)
	}
}
