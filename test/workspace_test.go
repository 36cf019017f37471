package test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// command is what execute and job_wait return of a command. It is declared
// here anew: this is what clients rely on.
type command struct {
	Status     string         `json:"status"`
	JobID      string         `json:"job_id"`
	ExitCode   int            `json:"exit_code"`
	TimedOut   bool           `json:"timed_out"`
	Stdout     string         `json:"stdout"`
	Stderr     string         `json:"stderr"`
	DurationMS int64          `json:"duration_ms"`
	Notes      []string       `json:"notes"`
	Error      string         `json:"error"`
	Limits     map[string]any `json:"limits"`
}

func (c *command) String() string {
	data, _ := json.MarshalIndent(c, "", "  ")
	return tail(string(data), 4000)
}

// tool calls a tool that must not refuse, and reads its structured content.
func (s *server) tool(t testing.TB, name string, arguments args, into any) *mcp.CallToolResult {
	t.Helper()
	res, err := s.call(t.Context(), modern, name, arguments)
	if err != nil {
		t.Fatal(err)
	}
	if res.IsError {
		t.Fatalf("%s refused: %s", name, texts(res.Content))
	}
	data, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// execute runs a command in the default workspace.
func (s *server) execute(t testing.TB, text string, more ...args) *command {
	t.Helper()
	all := args{"command": text, "wait": 170}
	for _, m := range more {
		maps.Copy(all, m)
	}
	var c command
	s.tool(t, "execute", all, &c)
	return &c
}

// does runs a command that must end well, and returns what it prints.
func (s *server) does(t testing.TB, text string, more ...args) string {
	t.Helper()
	c := s.execute(t, text, more...)
	if c.Status != "exited" || c.ExitCode != 0 {
		t.Fatalf("%s\nended with %s", text, c)
	}
	return c.Stdout
}

func (s *server) jobWait(t testing.TB, id string) *command {
	t.Helper()
	var c command
	s.tool(t, "job_wait", args{"job_id": id, "wait": 170}, &c)
	return &c
}

// deleteWorkspaces removes what would outlive the server.
func (s *server) deleteWorkspaces() error {
	if s.cmd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := s.call(ctx, modern, "sandbox_list", nil)
	if err != nil {
		return nil // it offers no such tools
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return err
	}
	var list struct{ Sandboxes []struct{ Name string } }
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for _, w := range list.Sandboxes {
		res, err := s.call(ctx, modern, "sandbox_delete", args{"name": w.Name, "end_jobs": true})
		if err != nil {
			return err
		}
		if res.IsError {
			return fmt.Errorf("deleting a workspace: %s", texts(res.Content))
		}
	}
	return nil
}

// What is in a workspace stays, wherever it was written; what runs in it does
// until it is stopped.
func TestWorkspaceStays(t *testing.T) {
	s := startServer(t)
	if got := s.does(t, "id -u; pwd; echo $HOME; ls -A | wc -l"); got != "0\n/sandbox\n/root\n0\n" {
		t.Errorf("it begins as %q", got)
	}
	s.does(t, "for d in /sandbox /root /tmp /usr/local/bin /etc/apt /var/lib; do echo $d >$d/note; done; ln -s /sandbox/note /note")
	s.does(t, "setsid nohup sh -c 'while sleep 0.1; do date >>/sandbox/clock; done' >/dev/null 2>&1 &")
	ticks := func() string { return s.does(t, "wc -l <clock 2>/dev/null || echo 0") }
	first := ""
	if !eventually(func() bool { first = ticks(); return strings.TrimSpace(first) != "0" }) {
		t.Fatal("the process that was left behind does nothing")
	}
	if !eventually(func() bool { return ticks() != first }) {
		t.Error("the process that was left behind has died with its call")
	}
	res, err := s.call(t.Context(), modern, "sandbox_stop", args{"name": "default"})
	if err != nil || !res.IsError || !strings.Contains(texts(res.Content), "processes running") {
		t.Errorf("stopping a busy one: %+v, %v", res, err)
	}
	s.tool(t, "sandbox_stop", args{"name": "default", "end_jobs": true}, &struct{}{})
	for _, between := range []func(){func() {}, func() {
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s.restart(t)
	}, func() {
		s.kill(t)
		s.restart(t)
	}} {
		between()
		want := "/sandbox\n/root\n/tmp\n/usr/local/bin\n/etc/apt\n/var/lib\n/sandbox\n"
		if got := s.does(t, "cat /sandbox/note /root/note /tmp/note /usr/local/bin/note /etc/apt/note /var/lib/note /note"); got != want {
			t.Errorf("the notes: %q", got)
		}
	}
}

// TestJobSurvivesKill: a server that is killed loses neither a command nor a
// byte of what it prints. A job of two hours differs in its length alone.
func TestJobSurvivesKill(t *testing.T) {
	s := startServer(t)
	c := s.execute(t, "for i in $(seq 200); do echo line $i; sleep 0.05; done; echo over >&2; exit 7", args{"timeout": 7200, "wait": 0.3})
	if c.Status != "running" || c.JobID == "" || !strings.HasPrefix(c.Stdout, "line 1\n") {
		t.Fatalf("it began as %s", c)
	}
	s.kill(t)
	s.restart(t)
	var out struct{ Status, Stdout, Cursor string }
	s.tool(t, "job_output", args{"job_id": c.JobID}, &out)
	if out.Status != "running" || !strings.HasPrefix(out.Stdout, c.Stdout) {
		t.Errorf("after the restart: %+v", out)
	}
	end := s.jobWait(t, c.JobID)
	want := ""
	for i := range 200 {
		want += fmt.Sprintf("line %d\n", i+1)
	}
	if end.Status != "exited" || end.ExitCode != 7 || end.Stdout != want || end.Stderr != "over\n" {
		t.Errorf("the end: %s", end)
	}
	if again := s.jobWait(t, c.JobID); again.ExitCode != 7 || again.Stdout != want {
		t.Errorf("asked again: %s", again)
	}
}

// A call that would outlast its client answers in time; the work goes on.
func TestBoundedWait(t *testing.T) {
	s := startServer(t)
	c := s.execute(t, "read -r line; echo got $line", args{"interactive": true, "wait": 0.2})
	if c.Status != "running" {
		t.Fatalf("it began as %s", c)
	}
	s.tool(t, "job_input", args{"job_id": c.JobID, "text": "a line\n"}, &struct{}{})
	if end := s.jobWait(t, c.JobID); end.Stdout != "got a line\n" {
		t.Errorf("the end: %s", end)
	}
	// The same of a run.
	var r struct {
		Status string
		JobID  string `json:"job_id"`
	}
	s.tool(t, "run_script", args{"runtime": "bash", "script": "sleep 1; echo x >output/file", "wait": 0.2}, &r)
	if r.Status != "running" || r.JobID == "" {
		t.Fatalf("the run began as %+v", r)
	}
	var end result
	s.tool(t, "job_wait", args{"job_id": r.JobID, "wait": 60}, &end)
	if !end.Success || len(end.Files) != 1 {
		t.Errorf("the run's end: %s", &end)
	}
}

// smallWorkspace are settings that a test can exhaust.
var smallWorkspace = []string{
	"BELLJAR_WORKSPACE_MEMORY=256MiB", "BELLJAR_WORKSPACE_PIDS=100", "BELLJAR_WORKSPACE_DISK=256MiB", "BELLJAR_WORKSPACE_INODES=4096",
}

// Whatever a command does with its workspace, the next one finds it working,
// and the host does not notice.
func TestWorkspaceLimits(t *testing.T) {
	s := startServer(t, smallWorkspace...)
	for _, tc := range []struct {
		name, command string
		want          string // in its output
	}{
		{"processes", `for i in $(seq 200); do sleep 30 & done 2>&1 | tail -1; kill $(jobs -p) 2>/dev/null; echo`, ""},
		{"memory", `head -c 1G /dev/zero | tail | wc -c; echo code ${PIPESTATUS[1]}`, "code 137"},
		{"shared memory", `head -c 1G /dev/zero >/dev/shm/x; rm /dev/shm/x`, "o space left"},
		{"disk", `head -c 1G /dev/zero >fill; ls -l fill | wc -l; rm fill`, "o space left"},
		{"disk by /tmp", `head -c 1G /dev/zero >/tmp/fill; rm /tmp/fill`, "o space left"},
		{"inodes", `mkdir many; for i in $(seq 6000); do : >many/$i || break; done; rm -r many`, "o space left"},
		{"descriptors", `ulimit -n 100000 || echo refused`, "refused"},
		{"output", `timeout 20 head -c 500M /dev/zero | tr '\0' x; echo; echo end`, "bytes dropped"},
		{"one line to stderr", `head -c 100M /dev/zero >&2; echo end`, "end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := s.execute(t, tc.command, args{"timeout": 120})
			if c.Status != "exited" || !strings.Contains(c.Stdout+c.Stderr, tc.want) {
				t.Errorf("ended with %s", c)
			}
			if got := s.does(t, "echo fine"); got != "fine\n" {
				t.Errorf("afterwards it prints %q", got)
			}
		})
	}
	// What a fork bomb leaves fills the sandbox; the words say what helps.
	bomb := s.execute(t, `bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 2; echo lives`)
	if res, err := s.call(t.Context(), modern, "execute", args{"command": "true"}); err != nil || res.IsError && !strings.Contains(texts(res.Content), "those that an earlier job has left") {
		t.Errorf("after a fork bomb: %+v, %v", res, err)
	}
	s.tool(t, "job_kill", args{"job_id": bomb.JobID}, &struct{}{})
	if got := s.does(t, "echo fine"); got != "fine\n" {
		t.Errorf("after a fork bomb was ended: %q", got)
	}
	var list struct{ Jobs []struct{ Status string } }
	s.tool(t, "job_list", args{}, &list)
	for _, j := range list.Jobs {
		if j.Status != "exited" {
			t.Errorf("a job is still %s", j.Status)
		}
	}
}

// Nothing that a command has started is left after its time limit, whatever it
// does to stay.
func TestWorkspaceTimeout(t *testing.T) {
	s := startServer(t, smallWorkspace...)
	c := s.execute(t, `trap '' TERM INT HUP
setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &
(setsid sh -c 'sleep 1000 & sleep 1000' &) &
echo begun; while :; do sleep 1; done`, args{"timeout": 2})
	if !c.TimedOut || c.ExitCode != 124 || c.Stdout != "begun\n" {
		t.Errorf("ended with %s", c)
	}
	if got := s.does(t, `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline | grep -E 'sleep|while' ; done | grep -v grep; true`); strings.Contains(got, "sleep 1000") || strings.Contains(got, "trap") {
		t.Errorf("still there:\n%s", got)
	}
}

// A client that goes away ends no command, and finds it again.
func TestWorkspaceDisconnect(t *testing.T) {
	s := startServer(t)
	s.does(t, "true")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.call(ctx, modern, "execute", args{"command": "until [ -e go ]; do sleep 0.1; done; echo done"}); err == nil {
		t.Fatal("the call was answered")
	}
	var list struct {
		Jobs []struct {
			ID     string `json:"job_id"`
			Status string
			Title  string
		}
	}
	s.tool(t, "job_list", args{}, &list)
	if len(list.Jobs) != 2 || list.Jobs[0].Status != "running" || !strings.HasPrefix(list.Jobs[0].Title, "until") {
		t.Fatalf("jobs: %+v", list)
	}
	s.does(t, "touch go")
	if end := s.jobWait(t, list.Jobs[0].ID); end.Stdout != "done\n" {
		t.Errorf("the end: %s", end)
	}
}

// The command line works on the same sandboxes and jobs, byte by byte.
func TestExecCommand(t *testing.T) {
	s := startServer(t)
	binary := strings.Repeat("\x00\xff\n", 100_000)
	if out, errs, code := output(t, s.state, binary, "exec", "cat >f; wc -c <f; echo err >&2; exit 3"); out != "300000\n" || !strings.HasPrefix(errs, "err\n") || code != 3 {
		t.Errorf("exec: %q, %q, %d", out, errs, code)
	}
	if out, _, code := output(t, s.state, "", "exec", "cat", "f"); out != binary || code != 0 {
		t.Errorf("%d bytes came back, code %d", len(out), code)
	}
	if out, _, _ := output(t, s.state, "", "exec", "printf", "%s|", "a b", "$HOME", "it's"); out != "a b|$HOME|it's|" {
		t.Errorf("words arrive as %q", out)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "in.bin")
	if err := os.WriteFile(file, []byte(binary), 0o751); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{file, ":"}, {":in.bin", filepath.Join(dir, "out.bin")}, {"default:/sandbox/in.bin", dir + "/"}} {
		if _, errs, code := output(t, s.state, "", "cp", c[0], c[1]); code != 0 {
			t.Errorf("cp %s %s: %s", c[0], c[1], errs)
		}
	}
	for _, name := range []string{"in.bin", "out.bin"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if data, readErr := os.ReadFile(filepath.Join(dir, name)); err != nil || readErr != nil || string(data) != binary || st.Mode() != 0o751 {
			t.Errorf("%s: %d bytes, %v, %v", name, len(data), st, err)
		}
	}
	if _, errs, code := output(t, s.state, "", "cp", "a", "b"); code != 1 || !strings.Contains(errs, "must be in a sandbox") {
		t.Errorf("cp a b: %d %s", code, errs)
	}
	if _, errs, code := output(t, s.state, "", "cp", ":nowhere", dir); code != 1 || !strings.Contains(errs, "does not exist") {
		t.Errorf("cp of nothing: %d %s", code, errs)
	}
	id, _, code := output(t, s.state, "", "exec", "-d", "echo begun; sleep 1000")
	if code != 0 {
		t.Fatalf("exec -d: %d", code)
	}
	id = strings.TrimSpace(id)
	var said struct{ Stdout string }
	if s.tool(t, "job_output", args{"job_id": id, "wait": 50}, &said); said.Stdout != "begun\n" {
		t.Errorf("it has printed %q", said.Stdout)
	}
	if out, _, _ := output(t, s.state, "", "ps"); !strings.Contains(out, id+"  running") {
		t.Errorf("ps: %s", out)
	}
	if _, errs, code := output(t, s.state, "", "sandbox", "stop", "default"); code != 1 || !strings.Contains(errs, "processes running") {
		t.Errorf("stopping a busy one: %d %s", code, errs)
	}
	if _, errs, code := output(t, s.state, "", "kill", id); code != 0 {
		t.Errorf("kill: %s", errs)
	}
	if out, _, code := output(t, s.state, "", "logs", id); out != "begun\n" || code != 0 {
		t.Errorf("logs: %q, %d", out, code)
	}
	if _, errs, code := output(t, s.state, "", "sandbox", "create", "second"); code != 0 {
		t.Errorf("create: %s", errs)
	}
	if out, _, _ := output(t, s.state, "", "sandbox", "ls"); !strings.Contains(out, "second") || !strings.Contains(out, "default") {
		t.Errorf("ls: %s", out)
	}
	if out, _, _ := output(t, s.state, "", "exec", "-s", "second", "ls -A /sandbox"); out != "" {
		t.Errorf("the second one has %q", out)
	}
}
