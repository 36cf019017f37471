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
	"strings"
	"syscall"
	"time"
)

// server is a belljar that this program started.
type server struct {
	cmd     *exec.Cmd
	state   string // its state directory
	url     string // of MCP
	runtime string // path of the OCI runtime
	client  *http.Client
}

var (
	chosen  = regexp.MustCompile(`chosen".* path=(\S+)`)
	serving = regexp.MustCompile(`url=(\S+/mcp)`)
)

// start starts a server with the given settings beside the defaults.
func start(belljar, state, image string, settings ...string) (*server, error) {
	s := &server{
		cmd:    exec.Command(belljar, "serve", "--port", "0"),
		state:  state,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	s.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "BELLJAR_STATE_DIR=" + state, "SANDBOX_IMAGE=" + image}, settings...)
	s.cmd.Dir = state // where no file .env is
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
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	return nil
}

// run runs a workload through MCP and HTTP, and checks what came of it.
func (s *server) run(ctx context.Context, w workload) error {
	answer, err := s.script(ctx, w.language, w.script, 0)
	if err != nil {
		return err
	}
	if w.makes != "" && !bytes.Contains(answer, []byte(`"name":"`+w.makes+`"`)) {
		return fmt.Errorf("%s gave no %s back: %s", w.name, w.makes, answer)
	}
	return nil
}

// script runs a script, which must succeed, and returns the answer.
func (s *server) script(ctx context.Context, runtime, script string, timeout time.Duration) ([]byte, error) {
	// The call is to last as long as the script.
	arguments := map[string]any{"runtime": runtime, "script": script, "wait": holdTime.Seconds()}
	if timeout > 0 {
		arguments["timeout"] = timeout.Seconds()
	}
	answer, err := s.call(ctx, "run_script", arguments)
	if err == nil && !bytes.Contains(answer, []byte(`"success":true`)) {
		err = fmt.Errorf("the script failed: %s", answer)
	}
	return answer, err
}

// call calls a tool, which must not refuse, and returns the answer.
func (s *server) call(ctx context.Context, tool string, arguments map[string]any) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": arguments}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	answer, err := s.do(req)
	if err == nil && bytes.Contains(answer, []byte(`"isError":true`)) {
		err = fmt.Errorf("%s: %s", tool, tail(string(answer)))
	}
	return answer, err
}

func (s *server) do(req *http.Request) ([]byte, error) {
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// id is the server's name in cgroups.
func (s *server) id() (string, error) {
	id, err := os.ReadFile(filepath.Join(s.state, "native/id"))
	return string(id), err
}

// sandboxes counts those that are there, the half-made and half-removed ones
// included.
func (s *server) sandboxes() (int, error) {
	entries, err := os.ReadDir(filepath.Join(s.state, "native/sandboxes"))
	return len(entries), err
}

// rss is the server's resident memory, in bytes.
func (s *server) rss() (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(data)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("no VmRSS in the status of the server")
}
