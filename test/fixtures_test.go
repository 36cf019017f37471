package test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"belljar/internal/access"
	"belljar/internal/mcpserver"
)

// fixtures are the tasks of the tools that the conformance suite asks for. They
// are in memory.
type fixtures struct {
	mu    sync.Mutex
	tasks map[string]*fixture
}

// fixture is a task; its owner's lock guards it.
type fixture struct {
	mcpserver.Task
	cancel   context.CancelFunc
	answers  map[string]json.RawMessage
	answered chan struct{} // closed when all that was asked is answered
}

var _ mcpserver.Tasks = (*fixtures)(nil)

func (f *fixtures) Task(_ context.Context, _ access.Subject, id string) (mcpserver.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tasks[id]
	if t == nil {
		return mcpserver.Task{}, mcpserver.ErrNoTask
	}
	task := t.Task
	task.InputRequests = mcp.InputRequestMap{}
	for key, q := range t.InputRequests {
		task.InputRequests[key] = q
	}
	return task, nil
}

func (f *fixtures) UpdateTask(_ context.Context, _ access.Subject, id string, answers map[string]json.RawMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tasks[id]
	if t == nil {
		return mcpserver.ErrNoTask
	}
	for key, a := range answers {
		if t.InputRequests[key] == nil {
			continue
		}
		t.answers[key] = a
		delete(t.InputRequests, key)
		if len(t.InputRequests) == 0 {
			t.Status = mcpserver.TaskWorking
			close(t.answered)
		}
	}
	return nil
}

func (f *fixtures) CancelTask(_ context.Context, _ access.Subject, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tasks[id]
	if t == nil {
		return mcpserver.ErrNoTask
	}
	t.cancel()
	return nil
}

// begin answers a call with a task, in which work is done.
func (f *fixtures) begin(ctx context.Context, work func(context.Context, *fixture) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	if !mcpserver.TakesTask(ctx) {
		return mcpserver.AnswerWithTask(ctx, mcpserver.Task{}) // which says what is missing
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	now := time.Now()
	t := &fixture{
		Task: mcpserver.Task{ID: rand.Text(), Status: mcpserver.TaskWorking, Created: now, Updated: now,
			Kept: time.Hour, Poll: 100 * time.Millisecond},
		cancel: cancel, answers: map[string]json.RawMessage{}, answered: make(chan struct{}),
	}
	first := t.Task
	f.mu.Lock()
	f.tasks[t.ID] = t
	f.mu.Unlock()
	go func() {
		defer cancel()
		res, err := work(ctx, t)
		f.mu.Lock()
		defer f.mu.Unlock()
		t.Updated, t.InputRequests = time.Now(), nil
		switch {
		case ctx.Err() != nil:
			t.Status = mcpserver.TaskCancelled
		case err != nil:
			t.Status, t.Error = mcpserver.TaskFailed, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
		default:
			t.Status, t.Result = mcpserver.TaskCompleted, res
		}
	}()
	return mcpserver.AnswerWithTask(ctx, first)
}

// ask asks the client and waits for its answers.
func (f *fixtures) ask(ctx context.Context, t *fixture, questions mcp.InputRequestMap) (map[string]json.RawMessage, error) {
	f.mu.Lock()
	t.Status, t.InputRequests = mcpserver.TaskInputRequired, questions
	f.mu.Unlock()
	select {
	case <-t.answered:
		return t.answers, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func question(field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: "Please enter " + field, RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{field: map[string]any{"type": kind}}, "required": []string{field},
	}}
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tools are what the scenarios ask for, as they describe it.
func (f *fixtures) tools() map[string]mcp.ToolHandler {
	type arguments struct {
		Name    string  `json:"name"`
		Seconds float64 `json:"seconds"`
	}
	read := func(req *mcp.CallToolRequest) (a arguments, err error) {
		return a, json.Unmarshal(req.Params.Arguments, &a)
	}
	return map[string]mcp.ToolHandler{
		"greet": func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			a, err := read(req)
			return said("Hello, " + a.Name + "!"), err
		},
		"slow_compute": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			a, err := read(req)
			if err != nil {
				return nil, err
			}
			work := func(ctx context.Context, _ *fixture) (*mcp.CallToolResult, error) {
				return said("computed"), pause(ctx, time.Duration(a.Seconds*float64(time.Second)))
			}
			if a.Seconds == 0 || !mcpserver.TakesTask(ctx) {
				return work(ctx, nil)
			}
			return f.begin(ctx, work)
		},
		"failing_job": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.begin(ctx, func(ctx context.Context, _ *fixture) (*mcp.CallToolResult, error) {
				res := said("it failed")
				res.IsError = true
				return res, pause(ctx, time.Second)
			})
		},
		"protocol_error_job": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.begin(ctx, func(context.Context, *fixture) (*mcp.CallToolResult, error) {
				return nil, errors.New("a fault of the server")
			})
		},
		"confirm_delete": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.begin(ctx, func(ctx context.Context, t *fixture) (*mcp.CallToolResult, error) {
				answers, err := f.ask(ctx, t, mcp.InputRequestMap{"confirm-1": question("confirm", "boolean")})
				return said("answered: " + string(answers["confirm-1"])), err
			})
		},
		"multi_input": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.begin(ctx, func(ctx context.Context, t *fixture) (*mcp.CallToolResult, error) {
				answers, err := f.ask(ctx, t, mcp.InputRequestMap{"name-1": question("name", "string"), "confirm-1": question("confirm", "boolean")})
				return said("answered: " + string(answers["name-1"]) + string(answers["confirm-1"])), err
			})
		},
		"test_tool_with_task": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			answer, ok := req.Params.InputResponses["user_name"]
			if !ok {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user_name": question("name", "string")}}, nil
			}
			return f.begin(ctx, func(context.Context, *fixture) (*mcp.CallToolResult, error) {
				data, err := json.Marshal(answer)
				return said("the answer: " + string(data)), err
			})
		},
	}
}
