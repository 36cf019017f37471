package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const tasksExtension = "io.modelcontextprotocol/tasks"

// taskAnswer is the result of a request of a client that takes tasks.
type taskAnswer struct {
	ResultType        string `json:"resultType"`
	TaskID            string `json:"taskId"`
	Status            string `json:"status"`
	PollIntervalMS    int64  `json:"pollIntervalMs"`
	StructuredContent struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
	} `json:"structuredContent"`
	Result *taskAnswer `json:"result"`
}

// taskMessage is a request of a client that takes tasks.
func taskMessage(t *testing.T, method string, params args) []byte {
	t.Helper()
	params["_meta"] = args{
		"io.modelcontextprotocol/protocolVersion":    modern,
		"io.modelcontextprotocol/clientCapabilities": args{"extensions": args{tasksExtension: args{}}},
	}
	data, err := json.Marshal(args{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	return append(data, '\n')
}

func readTaskAnswer(t *testing.T, data []byte) *taskAnswer {
	t.Helper()
	var a struct{ Result *taskAnswer }
	if err := json.Unmarshal(data, &a); err != nil || a.Result == nil {
		t.Fatalf("no result (%v): %s", err, data)
	}
	return a.Result
}

// ask sends a request to the server as a client that takes tasks does.
func (s *server) ask(t *testing.T, method string, params args) *taskAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, bytes.NewReader(taskMessage(t, method, params)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {modern}, "Mcp-Method": {method},
	}
	for _, key := range []string{"name", "taskId"} {
		if name, ok := params[key].(string); ok {
			req.Header.Set("Mcp-Name", name)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, event, ok := bytes.Cut(data, []byte("data: ")); ok {
		data = event
	}
	return readTaskAnswer(t, data)
}

// poll asks for a task, by ask, until it is over.
func poll(t *testing.T, id string, ask func(method string, params args) *taskAnswer) *taskAnswer {
	t.Helper()
	for limit := time.Now().Add(patience); ; {
		a := ask("tasks/get", args{"taskId": id})
		if a.Status != "working" {
			return a
		}
		if time.Now().After(limit) {
			t.Fatalf("task %s does not end", id)
		}
		time.Sleep(time.Duration(a.PollIntervalMS) * time.Millisecond)
	}
}

// TestInspectorPollsATask: the official Inspector, which takes tasks, gets the
// result of a command that takes several seconds by polling.
func TestInspectorPollsATask(t *testing.T) {
	s := startServer(t)
	dir := installInspector(t)
	var mu sync.Mutex
	var methods []string
	target, err := url.Parse(s.base())
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		mu.Lock()
		defer mu.Unlock()
		methods = append(methods, r.In.Header.Get("Mcp-Method"))
	}})
	defer listener.Close()
	out := inspect(t, dir, listener.URL+"/mcp", "modern", "--method", "tools/call", "--tool-name", "execute",
		"--tool-arg", "command=echo begun; sleep 6; echo done; exit 3")
	var a taskAnswer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if r := a.StructuredContent; r.ExitCode != 3 || r.Stdout != "begun\ndone\n" {
		t.Errorf("the Inspector got %s", out)
	}
	mu.Lock()
	defer mu.Unlock()
	call := slices.Index(methods, "tools/call")
	if polls := count(methods[max(0, call):], "tasks/get"); call < 0 || polls < 2 {
		t.Errorf("it has asked %d times: %v", polls, methods)
	}
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// TestTaskSurvivesACrash: a task of a command goes on while the server is down,
// and is found by its id afterwards, also by those who come over stdio.
func TestTaskSurvivesACrash(t *testing.T) {
	s := startServer(t)
	a := s.ask(t, "tools/call", args{"name": "execute", "arguments": args{"command": "echo before; until [ -e go ]; do sleep 0.1; done; echo after; exit 4"}})
	if a.ResultType != "task" || a.Status != "working" {
		t.Fatalf("%+v", a)
	}
	s.kill(t)
	s.restart(t)
	if b := s.ask(t, "tasks/get", args{"taskId": a.TaskID}); b.ResultType != "complete" || b.Status != "working" {
		t.Errorf("after the restart: %+v", b)
	}
	ask := overStdio(t, s.state)
	ask("tools/call", args{"name": "execute", "arguments": args{"command": "touch go"}})
	for name, end := range map[string]*taskAnswer{
		"stdio": poll(t, a.TaskID, ask),
		"http":  poll(t, a.TaskID, func(method string, params args) *taskAnswer { return s.ask(t, method, params) }),
	} {
		if end.Status != "completed" || end.Result == nil || end.Result.StructuredContent.ExitCode != 4 ||
			end.Result.StructuredContent.Stdout != "before\nafter\n" {
			t.Errorf("%s: %+v %+v", name, end, end.Result)
		}
	}
	// A run is a task as well, and can be cancelled there.
	run := ask("tools/call", args{"name": "run_script", "arguments": args{"runtime": "bash", "script": "sleep 987654", "timeout": 100}})
	if run.ResultType != "task" {
		t.Fatalf("a run: %+v", run)
	}
	if ack := ask("tasks/cancel", args{"taskId": run.TaskID}); ack.ResultType != "complete" || ack.Status != "" {
		t.Errorf("tasks/cancel: %+v", ack)
	}
	if end := poll(t, run.TaskID, ask); end.Status != "cancelled" || end.Result != nil {
		t.Errorf("after tasks/cancel: %+v", end)
	}
}

// overStdio speaks to a `belljar stdio` beside the server of a state directory.
func overStdio(t *testing.T, state string) func(method string, params args) *taskAnswer {
	t.Helper()
	cmd := exec.Command(belljar(t), "stdio", "--port", "0")
	cmd.Dir = t.TempDir()
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	log := newLogBuffer()
	cmd.Stderr = log
	to, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		to.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, log)
		}
	})
	lines := bufio.NewReader(from)
	return func(method string, params args) *taskAnswer {
		t.Helper()
		if _, err := to.Write(taskMessage(t, method, params)); err != nil {
			t.Fatal(err)
		}
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v\n%s", err, log)
			}
			if strings.Contains(line, `"id":1`) { // and no notification
				return readTaskAnswer(t, []byte(line))
			}
		}
	}
}
