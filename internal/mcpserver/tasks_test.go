package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/job"
	"belljar/internal/sandbox"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ledger is a backend whose jobs are entries that a test makes.
type ledger struct {
	Backend // for what no test asks of it

	mu        sync.Mutex
	jobs      map[string]job.State
	waited    []time.Duration // for how long the calls were to wait
	cancelled []string
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newLedger has a job in each state that a job can be in.
func newLedger() *ledger {
	l := &ledger{jobs: map[string]job.State{}}
	ended := job.Job{Status: job.Exited, Begun: noon, Seconds: 90}
	for id, s := range map[string]job.State{
		"job-running": {Job: job.Job{Status: job.Running, Begun: noon, Seconds: 30},
			Progress: &job.Progress{Elapsed: 30 * time.Second, Limit: time.Minute, Line: "half of it"}},
		"job-command":   {Job: ended, Reply: &job.Reply{ID: "job-command", Status: job.Exited, Command: &job.Result{ExitCode: 3, Stdout: "done\n"}}},
		"job-script":    {Job: ended, Reply: &job.Reply{Status: job.Exited, Script: &sandbox.Result{Success: true, Stdout: "42\n", OutputFiles: []sandbox.File{}}}},
		"job-refused":   {Job: ended, Refused: "there is no room; ask again later"},
		"job-fault":     {Job: ended, Refused: "the script could not be run to its end", Fault: true},
		"job-cancelled": {Job: ended, Cancelled: true, Reply: &job.Reply{Status: job.Exited, Command: &job.Result{ExitCode: 137}}},
	} {
		s.ID, s.Kept = id, noon.Add(2*time.Hour)
		if s.Status == job.Exited {
			s.Ended = noon.Add(90 * time.Second)
		}
		l.jobs[id] = s
	}
	return l
}

// Execute begins job-running, unless the command is over at once.
func (l *ledger) Execute(_ context.Context, r job.CommandRequest, w job.Wait) (job.Reply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited = append(l.waited, w.For)
	switch r.Command {
	case "quick":
		return job.Reply{ID: "job-quick", Status: job.Exited, Command: &job.Result{Stdout: "at once\n"}}, nil
	case "soon": // it ends between the wait and the look at it
		return job.Reply{ID: "job-command", Status: job.Running}, nil
	case "broken": // it is begun, and cannot be looked at
		return job.Reply{ID: "job-broken", Status: job.Running}, nil
	}
	return job.Reply{ID: "job-running", Status: job.Running, Stdout: "half of it\n", Elapsed: 30 * time.Second}, nil
}

func (l *ledger) Inspect(_ context.Context, s access.Subject, id string) (job.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, ok := l.jobs[id]
	switch {
	case id == "job-broken":
		return job.State{}, errors.New("open /secret/database: broken")
	case !ok || s != access.Owner:
		return job.State{}, &sandbox.RequestError{Message: "there is no such job"}
	}
	return state, nil
}

func (l *ledger) Cancel(ctx context.Context, s access.Subject, id string) error {
	if _, err := l.Inspect(ctx, s, id); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled = append(l.cancelled, id)
	return nil
}

// declaring adds to parameters that the client takes tasks.
func declaring(params map[string]any) map[string]any {
	all := maps.Clone(params)
	all["_meta"] = modernMeta(map[string]any{"extensions": map[string]any{TasksExtension: map[string]any{}}})
	return all
}

func command(text string, more ...map[string]any) map[string]any {
	args := map[string]any{"command": text}
	for _, m := range more {
		maps.Copy(args, m)
	}
	return map[string]any{"name": "execute", "arguments": args}
}

// What is said, in every state of a task, to those who declare the extension
// and to those who do not.
func TestTaskTranscript(t *testing.T) {
	var log bytes.Buffer
	o := testOptions(newLedger())
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	srv := serve(t, New(o))
	task := func(id string) map[string]any { return map[string]any{"taskId": id} }
	var b strings.Builder
	record := func(version, method string, params map[string]any) {
		shown := maps.Clone(params)
		who := "> " + version
		if shown["_meta"] != nil {
			who += " with tasks"
			delete(shown, "_meta")
		}
		data, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		status, answer := post(t, srv.URL, version, method, params)
		answer = regexp.MustCompile(`id [A-Z2-7]{8};`).ReplaceAllString(answer, "id ID;")
		fmt.Fprintf(&b, "%s: %s %s\n< %d\n%s\n\n", who, method, data, status, indent(answer))
	}
	record(modern, "tools/call", declaring(command("slow")))
	record(modern, "tools/call", declaring(command("quick")))
	record(modern, "tools/call", declaring(command("soon")))
	record(modern, "tools/call", declaring(command("broken")))
	record(modern, "tools/call", declaring(command("slow", map[string]any{"wait": 5})))
	record(modern, "tools/call", command("slow"))
	record(legacy, "tools/call", command("slow"))
	for _, id := range []string{"job-running", "job-command", "job-script", "job-refused", "job-fault", "job-cancelled", "job-nobody's", "job-broken"} {
		record(modern, "tasks/get", declaring(task(id)))
	}
	record(modern, "tasks/cancel", declaring(task("job-running")))
	record(modern, "tasks/cancel", declaring(task("job-command")))
	record(modern, "tasks/cancel", declaring(task("job-nobody's")))
	record(modern, "tasks/update", declaring(map[string]any{"taskId": "job-running", "inputResponses": map[string]any{"unasked": map[string]any{"action": "accept"}}}))
	record(modern, "tasks/update", declaring(task("job-nobody's")))
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		record(modern, method, task("job-running"))
		record(legacy, method, task("job-running"))
	}
	for _, method := range []string{"tasks/result", "tasks/list"} { // of an earlier version of the extension
		record(modern, method, declaring(task("job-running")))
	}
	golden(t, "transcript-tasks.txt", []byte(b.String()))
	if !strings.Contains(log.String(), "/secret/database") || strings.Contains(b.String(), "secret") {
		t.Errorf("an internal error's text belongs into the log alone:\n%s", &log)
	}
}

// A call that says how long to wait is answered by then, with the job; of the
// others, only those of clients that take tasks are answered early.
func TestTaskGrace(t *testing.T) {
	l := newLedger()
	o := testOptions(l)
	o.Wait, o.TaskGrace = 40*time.Second, 3*time.Second
	noJobs := o
	noJobs.Sets = []string{SetWorkspace}
	for _, tc := range []struct {
		name   string
		o      Options
		params map[string]any
		want   time.Duration
		task   bool
	}{
		{"with tasks", o, declaring(command("slow")), 3 * time.Second, true},
		{"without", o, command("slow"), 40 * time.Second, false},
		{"with tasks and a wait", o, declaring(command("slow", map[string]any{"wait": 7})), 7 * time.Second, false},
		{"with tasks and no wait", o, declaring(command("slow", map[string]any{"wait": 0})), 0, false},
		{"with tasks, where there are no tools for jobs", noJobs, declaring(command("slow")), 3 * time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, answer := post(t, serve(t, New(tc.o)).URL, modern, "tools/call", tc.params)
			if got := l.waited[len(l.waited)-1]; got != tc.want {
				t.Errorf("the call waits for %v, want %v", got, tc.want)
			}
			if got := strings.Contains(answer, `"resultType":"task"`); got != tc.task {
				t.Errorf("answered with a task: %v, want %v: %s", got, tc.task, answer)
			}
		})
	}
}

// Only an object in the request itself declares the extension.
func TestTaskDeclaration(t *testing.T) {
	for _, tc := range []struct {
		name         string
		capabilities any
		want         bool
	}{
		{"an object", map[string]any{"extensions": map[string]any{TasksExtension: map[string]any{}}}, true},
		{"with settings to come", map[string]any{"extensions": map[string]any{TasksExtension: map[string]any{"x": 1}}}, true},
		{"null", map[string]any{"extensions": map[string]any{TasksExtension: nil}}, false},
		{"true", map[string]any{"extensions": map[string]any{TasksExtension: true}}, false},
		{"another", map[string]any{"extensions": map[string]any{"io.modelcontextprotocol/ui": map[string]any{}}}, false},
		{"the earlier capability", map[string]any{"tasks": map[string]any{"requests": map[string]any{}}}, false},
	} {
		meta := mcp.Meta(modernMeta(nil))
		meta[mcp.MetaKeyClientCapabilities] = tc.capabilities
		if got := declaresTasks(meta); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		delete(meta, mcp.MetaKeyProtocolVersion)
		if declaresTasks(meta) {
			t.Errorf("%s: of a request of an earlier protocol", tc.name)
		}
	}
}

// The header by which requests are routed names the task.
func TestTaskHeader(t *testing.T) {
	srv := serve(t, New(testOptions(newLedger())))
	send := func(change func(http.Header), params map[string]any) (int, string) {
		t.Helper()
		req := request(t, srv.URL, modern, "tasks/get", declaring(params))
		change(req.Header)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(res.Body); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, b.String()
	}
	running := map[string]any{"taskId": "job-running"}
	for _, tc := range []struct {
		name   string
		change func(http.Header)
		params map[string]any
		status int
		want   string
	}{
		{"as it is", func(http.Header) {}, running, 200, `"status":"working"`},
		{"another name", func(h http.Header) { h.Set("Mcp-Name", "job-command") }, running, 400, `"code":-32020`},
		{"no name", func(h http.Header) { h.Del("Mcp-Name") }, running, 400, `"code":-32020`},
		{"another method", func(h http.Header) { h.Set("Mcp-Method", "tasks/cancel") }, running, 400, `"code":-32020`},
		{"a method without names", func(h http.Header) { h.Set("Mcp-Method", "tools/list"); h.Set("Mcp-Name", "x") }, running, 400, `"code":-32020`},
		{"a name in another case besides", func(h http.Header) { h.Set("Mcp-Name", "job-command") },
			map[string]any{"taskId": "job-running", "taskid": "job-command"}, 400, `"code":-32020`},
		{"too large", func(http.Header) {}, map[string]any{"taskId": "job-running", "inputResponses": map[string]any{"a": strings.Repeat("x", maxTaskBody)}}, 413, "exceeds"},
	} {
		status, answer := send(tc.change, tc.params)
		if status != tc.status || !strings.Contains(answer, tc.want) {
			t.Errorf("%s: %d %s, want %d with %s", tc.name, status, answer, tc.status, tc.want)
		}
	}
}

// A request to cancel reaches the job.
func TestTaskCancel(t *testing.T) {
	l := newLedger()
	post(t, serve(t, New(testOptions(l))).URL, modern, "tasks/cancel", declaring(map[string]any{"taskId": "job-running"}))
	if len(l.cancelled) != 1 || l.cancelled[0] != "job-running" {
		t.Errorf("cancelled: %v", l.cancelled)
	}
}

// The longer a job has run, the less often it is asked for.
func TestPollInterval(t *testing.T) {
	for elapsed, want := range map[time.Duration]time.Duration{
		0: time.Second, 9 * time.Second: time.Second, 25 * time.Second: 2500 * time.Millisecond, time.Hour: 10 * time.Second,
	} {
		if got := pollInterval(elapsed); got != want {
			t.Errorf("after %v: %v, want %v", elapsed, got, want)
		}
	}
}
