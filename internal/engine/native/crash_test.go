package native

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
)

// crashDir is the environment variable that makes the test binary a server
// to be killed, on the directory that it names.
const crashDir = "BELLJAR_TEST_CRASH_DIR"

// crashChild makes and removes sandboxes until it is killed.
func crashChild() {
	dir := os.Getenv(crashDir)
	var err error
	if fixture.agent, err = os.ReadFile(filepath.Join(dir, "../agent")); err != nil {
		panic(err)
	}
	fixture.dir = filepath.Dir(dir)
	ctx := context.Background()
	e, err := Open(ctx, Options{Dir: dir, Images: images{}, Agent: fixture.agent})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	fmt.Println("open")
	for i := 0; ; i++ {
		id := fmt.Sprintf("c%d-%d", os.Getpid(), i)
		spec := engine.Spec{ID: id, Image: "busybox", Limits: enginetest.Limits()}
		for _, f := range []func() error{
			func() error { return e.Create(ctx, spec) },
			func() error { return e.Start(ctx, id) },
			func() error {
				if i%3 == 0 {
					return nil // some stay
				}
				return e.Remove(ctx, id)
			},
		} {
			if err := f(); err != nil {
				fmt.Println("error:", err)
				os.Exit(1)
			}
		}
	}
}

// TestCrash kills a server at random points and looks at what its successor
// finds: everything can be removed, and then nothing is left.
func TestCrash(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(fixture.dir, "crash")
	for range 12 {
		delay := time.Duration(rand.N(250)) * time.Millisecond
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if lines.Scan(); lines.Text() != "open" {
			t.Fatalf("the server said %q", lines.Text())
		}
		// What is awaited here is time itself: any point will do.
		timer := time.AfterFunc(delay, func() { cmd.Process.Signal(syscall.SIGKILL) })
		for lines.Scan() {
			t.Errorf("the server said %q", lines.Text())
		}
		cmd.Wait()
		timer.Stop()
	}
	e, err := Open(t.Context(), Options{Dir: dir, Images: images{}, Agent: fixture.agent})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	all, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Error("no sandbox was there to be adopted")
	}
	for _, s := range all {
		if err := e.Remove(t.Context(), s.ID); err != nil {
			t.Errorf("removing %s, %s: %v", s.ID, s.State, err)
		}
	}
	wantNothingLeft(t, e)
}

// TestNoZombies wants what the runtime leaves to go to the host's init, which
// buries it, and not to this process, which would not.
func TestNoZombies(t *testing.T) {
	s := newSubject(t, options(t.TempDir(), ""))
	for i := range 3 {
		id := fmt.Sprintf("z%d", i)
		s.Start(t, engine.Spec{ID: id, Image: "busybox", Limits: enginetest.Limits()})
		if err := s.Engine.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		data, _ := os.ReadFile(file)
		if strings.Contains(string(data), fmt.Sprintf(") Z %d ", os.Getpid())) {
			t.Errorf("a zombie of this process: %s", data)
		}
	}
}
