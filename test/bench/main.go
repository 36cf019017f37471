// Bench measures what Belljar adds to a run: print(1) through HTTP, in a fresh
// sandbox each time, beside the same OCI runtime running python3 by hand with
// the configuration, mounts and limits of a real sandbox. The two take turns,
// so that a busy machine disturbs both alike; what counts is the ratio.
//
//	bench BELLJAR [N]
//
// The state directory (BELLJAR_STATE_DIR) must have the image.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: bench BELLJAR [N]")
		os.Exit(2)
	}
	n := 50
	if len(os.Args) > 2 {
		n, _ = strconv.Atoi(os.Args[2])
	}
	if err := bench(os.Args[1], max(n, 1)); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(belljar string, n int) (err error) {
	s, err := start(belljar)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	bare, clear, err := s.bareRuntime()
	if err != nil {
		return err
	}
	defer clear()
	run := func() error { return s.call("print(1)") }
	var bareTimes, runTimes []time.Duration
	for i := range n + 5 {
		b, errB := timed(bare)
		r, errR := timed(run)
		if err := errors.Join(errB, errR); err != nil {
			return err
		}
		if i >= 5 { // the first ones warm caches
			bareTimes, runTimes = append(bareTimes, b), append(runTimes, r)
		}
	}
	b, r := median(bareTimes), median(runTimes)
	fmt.Printf("print(1), median of %d, fresh each time\n  %-32s %6.1f ms\n  %-32s %6.1f ms\n  ratio %.2f\n", n,
		s.runtime+" by hand", ms(b), "run_script through HTTP", ms(r), float64(r)/float64(b))
	return nil
}

func timed(f func() error) (time.Duration, error) {
	begun := time.Now()
	err := f()
	return time.Since(begun), err
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// server is a belljar that this program started.
type server struct {
	cmd     *exec.Cmd
	url     string
	runtime string // path of the OCI runtime
	state   string
}

var (
	chosen  = regexp.MustCompile(`chosen".* path=(\S+)`)
	serving = regexp.MustCompile(`url=(\S+/mcp)`)
)

func start(belljar string) (*server, error) {
	s := &server{cmd: exec.Command(belljar, "serve", "--port", "0"), state: os.Getenv("BELLJAR_STATE_DIR")}
	if s.state == "" {
		s.state = "/var/lib/belljar"
	}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	var said strings.Builder
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if m := chosen.FindStringSubmatch(lines.Text()); m != nil {
			s.runtime = m[1]
		}
		if m := serving.FindStringSubmatch(lines.Text()); m != nil {
			s.url = m[1]
			go io.Copy(io.Discard, log)
			return s, nil
		}
	}
	return nil, fmt.Errorf("the server did not start: %w\n%s", s.cmd.Wait(), said.String())
}

func (s *server) stop() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	return s.cmd.Wait()
}

// call runs a Python script through HTTP and wants it to succeed.
func (s *server) call(script string) error { return s.callContext(context.Background(), script) }

func (s *server) callContext(ctx context.Context, script string) error {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{
		"name": "run_script", "arguments": map[string]any{"runtime": "python", "script": script}}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(answer, []byte(`"success":true`)) {
		err = fmt.Errorf("the script failed: %s", answer)
	}
	return err
}

// bareRuntime returns a function that runs python3 in a container like that
// of a live sandbox, on its root filesystem, and one that clears it away.
func (s *server) bareRuntime() (run func() error, clear func(), err error) {
	ctx, end := context.WithCancel(context.Background())
	go s.callContext(ctx, "import time; time.sleep(250)") // holds the sandbox
	config, err := s.liveConfig()
	if err != nil {
		end()
		return nil, nil, err
	}
	config.Process.Args = []string{"python3", "-c", "print(1)"}
	config.Linux.CgroupsPath += "-bench"
	bundle, err := os.MkdirTemp("", "belljar-bench-")
	if err != nil {
		end()
		return nil, nil, err
	}
	clear = func() { end(); os.RemoveAll(bundle) }
	data, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
	}
	if err != nil {
		clear()
		return nil, nil, err
	}
	mounts, err := s.mountNamespace()
	if err != nil {
		clear()
		return nil, nil, err
	}
	n := 0
	return func() error {
		n++
		cmd := exec.Command(s.runtime, "--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, fmt.Sprintf("bench-%d", n))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := inNamespace(mounts, cmd.Run); err != nil || out.String() != "1\n" {
			return fmt.Errorf("%s: %w: %s", s.runtime, err, out.String())
		}
		return nil
	}, clear, nil
}

// liveConfig waits for the sandbox that runs and returns its configuration.
func (s *server) liveConfig() (*specs.Spec, error) {
	pattern := filepath.Join(s.state, "native/sandboxes/*/pid")
	for range 500 {
		if found, _ := filepath.Glob(pattern); len(found) == 1 {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "config.json"))
			if err != nil {
				return nil, err
			}
			config := new(specs.Spec)
			return config, json.Unmarshal(data, config)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("no sandbox at %s", pattern)
}

// mountNamespace opens the namespace that has the sandboxes' mounts; the
// server holds it by a descriptor.
func (s *server) mountNamespace() (*os.File, error) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "mnt:[") {
			return os.Open(fd)
		}
	}
	return nil, errors.New("the server holds no mount namespace")
}

// inNamespace runs f on a thread inside a mount namespace.
func inNamespace(ns *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
