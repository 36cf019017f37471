package mcpserver

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"belljar/internal/engine/enginetest"
	"belljar/internal/job/jobtest"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// taskAnswer is an answer that may be a task.
type taskAnswer struct {
	ResultType     string
	TaskID         string
	Status         TaskStatus
	StatusMessage  string
	TTLMs          int64
	PollIntervalMs int64
	Result         json.RawMessage
}

// caller sends a request of a client that takes tasks, and returns the answer.
type caller func(t *testing.T, method string, params map[string]any) taskAnswer

// overHTTP calls a server as clients of the newest protocol do.
func overHTTP(t *testing.T, s *mcp.Server) caller {
	srv := serve(t, s)
	return func(t *testing.T, method string, params map[string]any) taskAnswer {
		t.Helper()
		_, answer := post(t, srv.URL, modern, method, declaring(params))
		return readTaskAnswer(t, answer)
	}
}

// overPipes calls a server over what stdio is: a line is a message.
func overPipes(t *testing.T, s *mcp.Server) caller {
	t.Helper()
	in, to := io.Pipe()
	from, out := io.Pipe()
	session, err := s.Connect(t.Context(), &mcp.IOTransport{Reader: in, Writer: out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		to.Close()
		from.Close()
		session.Wait()
	})
	lines := bufio.NewReader(from)
	return func(t *testing.T, method string, params map[string]any) taskAnswer {
		t.Helper()
		if err := json.NewEncoder(to).Encode(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": declaring(params)}); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return readTaskAnswer(t, line)
	}
}

func readTaskAnswer(t *testing.T, text string) taskAnswer {
	t.Helper()
	var a struct{ Result *taskAnswer }
	if err := json.Unmarshal([]byte(text), &a); err != nil || a.Result == nil {
		t.Fatalf("the answer has no result (%v): %s", err, text)
	}
	return *a.Result
}

// begin makes a call that is answered with a task, and returns its id.
func (c caller) begin(t *testing.T, tool string, args map[string]any) string {
	t.Helper()
	a := c(t, "tools/call", map[string]any{"name": tool, "arguments": args})
	if a.ResultType != "task" || a.Status != TaskWorking || a.TaskID == "" || a.TTLMs <= 0 || a.PollIntervalMs <= 0 || a.Result != nil {
		t.Fatalf("%s: %+v", tool, a)
	}
	if first := c.get(t, a.TaskID); first.TaskID != a.TaskID { // at once
		t.Errorf("tasks/get: %+v", first)
	}
	return a.TaskID
}

func (c caller) get(t *testing.T, id string) taskAnswer {
	t.Helper()
	a := c(t, "tasks/get", map[string]any{"taskId": id})
	if a.ResultType != "complete" {
		t.Errorf("tasks/get: %+v", a)
	}
	return a
}

// end polls a task until it is over, as often as the server likes.
func (c caller) end(t *testing.T, id string) (taskAnswer, *mcp.CallToolResult) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; {
		a := c.get(t, id)
		switch {
		case a.Status == TaskWorking && time.Now().After(limit):
			t.Fatalf("it does not end: %+v", a)
		case a.Status == TaskWorking:
			time.Sleep(time.Duration(a.PollIntervalMs) * time.Millisecond)
			continue
		case a.Result == nil:
			return a, nil
		}
		var r mcp.CallToolResult
		if err := json.Unmarshal(a.Result, &r); err != nil {
			t.Fatal(err)
		}
		return a, &r
	}
}

// Work that takes its time is a task, whose end is what the call would have
// been answered with.
func TestTasksThroughSandbox(t *testing.T) {
	for name, connect := range map[string]func(*testing.T, *mcp.Server) caller{"http": overHTTP, "pipes": overPipes} {
		t.Run(name, func(t *testing.T) {
			o := inMemory(t)
			o.TaskGrace = 50 * time.Millisecond
			call := connect(t, New(o))

			command := call.begin(t, "execute", map[string]any{"command": "echo so far; sleep 1; echo done; exit 3"})
			script := call.begin(t, "run_script", map[string]any{"runtime": "bash", "script": "echo so far; sleep 1; head -c 5000 /dev/zero >output/big"})
			for id, want := range map[string][]string{
				command: {"exit code 3", "stdout:\nso far\ndone\n"},
				script:  {"exit code 0", "- big (application/octet-stream, 5000 bytes): http://host/"},
			} {
				a, r := call.end(t, id)
				if a.Status != TaskCompleted || r == nil || r.IsError {
					t.Fatalf("at its end: %+v", a)
				}
				for _, w := range want {
					if text := textOf(t, r); !strings.Contains(text, w) {
						t.Errorf("%q is not in %q", w, text)
					}
				}
			}

			endless := call.begin(t, "execute", map[string]any{"command": "sleep 1000"})
			if a := call(t, "tasks/cancel", map[string]any{"taskId": endless}); a.ResultType != "complete" || a.TaskID != "" || a.Status != "" {
				t.Errorf("tasks/cancel: %+v", a)
			}
			if a, r := call.end(t, endless); a.Status != TaskCancelled || r != nil {
				t.Errorf("after tasks/cancel: %+v", a)
			}
		})
	}
}

// What is over at once is answered at once.
func TestNoTaskForQuickWork(t *testing.T) {
	o := inMemory(t)
	o.TaskGrace = time.Minute
	for tool, args := range map[string]map[string]any{
		"execute":    {"command": "echo here"},
		"run_script": {"runtime": "bash", "script": "echo here"},
	} {
		if a := overHTTP(t, New(o))(t, "tools/call", map[string]any{"name": tool, "arguments": args}); a.ResultType != "complete" || a.TaskID != "" {
			t.Errorf("%s: %+v", tool, a)
		}
	}
}

// A task outlives the server that began it.
func TestTaskAfterRestart(t *testing.T) {
	engine, records := enginetest.NewMemory(t), &jobtest.Memory{}
	o, stop := inMemoryOn(t, engine, records)
	o.TaskGrace = 50 * time.Millisecond
	id := overHTTP(t, New(o)).begin(t, "execute", map[string]any{"command": "echo before; until [ -e go ]; do sleep 0.1; done; echo after"})
	stop()

	o, _ = inMemoryOn(t, engine.Reopen(), records)
	call := overHTTP(t, New(o))
	// Its output is there once it has printed any.
	for limit := time.Now().Add(time.Minute); ; {
		a := call.get(t, id)
		if a.Status != TaskWorking || time.Now().After(limit) {
			t.Fatalf("after the restart: %+v", a)
		}
		if strings.HasSuffix(a.StatusMessage, ": before") {
			break
		}
	}
	call(t, "tools/call", map[string]any{"name": "execute", "arguments": map[string]any{"command": "touch go"}})
	a, r := call.end(t, id)
	if a.Status != TaskCompleted || r == nil || !strings.Contains(textOf(t, r), "exit code 0") || !strings.Contains(textOf(t, r), "before\nafter\n") {
		t.Errorf("at its end: %+v", a)
	}
}
