package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"belljar/internal/access"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TasksExtension is the identifier of the Tasks extension. Its specification
// for the 2026-07-28 protocol is what the code here follows: a call may be
// answered with a task, a name for work that goes on, which the client polls.
const TasksExtension = "io.modelcontextprotocol/tasks"

// The methods of the extension.
const (
	tasksGet    = "tasks/get"
	tasksUpdate = "tasks/update"
	tasksCancel = "tasks/cancel"
)

// Tasks are what clients of the extension poll, answer and cancel. A task of
// another subject is answered as one that does not exist. Methods are safe for
// concurrent use.
type Tasks interface {
	// Task returns a task as it is now, or ErrNoTask.
	Task(ctx context.Context, s access.Subject, id string) (Task, error)
	// UpdateTask takes answers to a task's InputRequests, by their keys. Keys
	// that nothing was asked under are ignored. ErrNoTask if there is none.
	UpdateTask(ctx context.Context, s access.Subject, id string, answers map[string]json.RawMessage) error
	// CancelTask asks for a task's end, and does not wait for it. It is no error
	// that the task is over, but ErrNoTask if there is none.
	CancelTask(ctx context.Context, s access.Subject, id string) error
}

// ErrNoTask says that there is no such task, or not any more.
var ErrNoTask = errors.New("no such task")

// TaskStatus is the state of a task. The last three are final.
type TaskStatus string

// The states of a task.
const (
	TaskWorking       TaskStatus = "working"
	TaskInputRequired TaskStatus = "input_required"
	TaskCompleted     TaskStatus = "completed" // also if the tool's result is an error
	TaskFailed        TaskStatus = "failed"    // by a fault of the server
	TaskCancelled     TaskStatus = "cancelled"
)

// A Task is one as it is at one moment.
type Task struct {
	ID     string
	Status TaskStatus
	// Message describes the state to people and models; none if "".
	Message string
	Created time.Time
	Updated time.Time
	// Kept is for how long after Created the task can be asked for, at least.
	Kept time.Duration
	// Poll is the time to leave between two polls; the client decides if zero.
	Poll time.Duration
	// One of these goes with a status: InputRequests with TaskInputRequired,
	// Result with TaskCompleted, Error with TaskFailed.
	InputRequests mcp.InputRequestMap
	Result        *mcp.CallToolResult
	Error         *jsonrpc.Error
}

// ServeTasks adds the extension to s, whose capabilities must name it. Clients
// before the 2026-07-28 protocol do not see it.
func ServeTasks(s *mcp.Server, t Tasks, log *slog.Logger) {
	s.AddReceivingMiddleware(offerTasks)
	h := taskHandler{t, log}
	for _, err := range []error{
		mcp.AddReceivingCustomMethod(s, tasksGet, h.get),
		mcp.AddReceivingCustomMethod(s, tasksUpdate, h.update),
		mcp.AddReceivingCustomMethod(s, tasksCancel, h.cancel),
	} {
		if err != nil {
			panic(err) // the SDK knows such a method by now
		}
	}
}

// offer is where a tool leaves the task that its call is to be answered with.
type offer struct{ task *Task }

type offerKey struct{}

// offerTasks lets tools answer with a task, where the request says that its
// client takes one.
func offerTasks(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok || call.Params == nil || !declaresTasks(call.Params.Meta) {
			res, err := next(ctx, method, req)
			if hello, ok := res.(*mcp.InitializeResult); ok && err == nil {
				hideTasks(hello)
			}
			return res, err
		}
		o := &offer{}
		res, err := next(context.WithValue(ctx, offerKey{}, o), method, req)
		if err == nil && o.task != nil {
			return newTaskResult("task", *o.task)
		}
		return res, err
	}
}

// TakesTask reports whether the call that ctx is of may be answered with a
// task.
func TakesTask(ctx context.Context) bool { return ctx.Value(offerKey{}) != nil }

// AnswerWithTask is what a tool returns to answer its call with a task, which
// Tasks must know by now. The error, to be returned as well, tells a client
// that takes no tasks that this call needs one.
func AnswerWithTask(ctx context.Context, t Task) (*mcp.CallToolResult, error) {
	o, ok := ctx.Value(offerKey{}).(*offer)
	if !ok {
		return nil, errTasksNeeded
	}
	o.task = &t
	return &mcp.CallToolResult{}, nil // in whose place the task goes
}

var errTasksNeeded = &jsonrpc.Error{
	Code:    mcp.CodeMissingRequiredClientCapabilities,
	Message: "the request does not declare the capability for tasks, which this needs",
	Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + TasksExtension + `":{}}}}`),
}

// declaresTasks reports whether a request says that its client takes tasks.
// What an earlier request said does not count.
func declaresTasks(meta mcp.Meta) bool {
	if !isModern(meta) {
		return false
	}
	capabilities, _ := meta[mcp.MetaKeyClientCapabilities].(map[string]any)
	extensions, _ := capabilities["extensions"].(map[string]any)
	settings, _ := extensions[TasksExtension].(map[string]any)
	return settings != nil
}

// isModern reports whether a request is of the protocol that has extensions:
// only there each says which version it is of.
func isModern(meta mcp.Meta) bool {
	version, _ := meta[mcp.MetaKeyProtocolVersion].(string)
	return version != ""
}

// hideTasks keeps the extension from clients that could not use it.
func hideTasks(hello *mcp.InitializeResult) {
	if hello.Capabilities == nil {
		return
	}
	c := *hello.Capabilities
	c.Extensions = maps.Clone(c.Extensions)
	delete(c.Extensions, TasksExtension)
	hello.Capabilities = &c
}

// taskParams are the parameters of every method of the extension.
type taskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
	// InputResponses are of tasks/update.
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// taskHandler answers the methods of the extension. Until there is sign-in,
// every caller is the owner.
type taskHandler struct {
	tasks Tasks
	log   *slog.Logger
}

func (h taskHandler) get(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*taskResult, error) {
	if err := h.check(tasksGet, p); err != nil {
		return nil, err
	}
	t, err := h.tasks.Task(ctx, access.Owner, p.TaskID)
	if err != nil {
		return nil, h.failure(tasksGet, p, err)
	}
	res, err := newTaskResult("complete", t)
	if err != nil {
		return nil, h.failure(tasksGet, p, err)
	}
	return res, nil
}

func (h taskHandler) update(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*acknowledgement, error) {
	if err := h.check(tasksUpdate, p); err != nil {
		return nil, err
	}
	if err := h.tasks.UpdateTask(ctx, access.Owner, p.TaskID, p.InputResponses); err != nil {
		return nil, h.failure(tasksUpdate, p, err)
	}
	return &acknowledgement{ResultType: "complete"}, nil
}

func (h taskHandler) cancel(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*acknowledgement, error) {
	if err := h.check(tasksCancel, p); err != nil {
		return nil, err
	}
	if err := h.tasks.CancelTask(ctx, access.Owner, p.TaskID); err != nil {
		return nil, h.failure(tasksCancel, p, err)
	}
	return &acknowledgement{ResultType: "complete"}, nil
}

// check refuses requests of clients that do not take tasks.
func (h taskHandler) check(method string, p *taskParams) error {
	switch {
	case p == nil || !isModern(p.Meta):
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("method not found: %q", method)}
	case !declaresTasks(p.Meta):
		return errTasksNeeded
	}
	return nil
}

// failure is the protocol's error for err. Of an internal one the caller learns
// the id only, under which it is logged.
func (h taskHandler) failure(method string, p *taskParams, err error) error {
	if errors.Is(err, ErrNoTask) {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("there is no task %.100q (any more)", p.TaskID)}
	}
	if errors.Is(err, context.Canceled) {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cancelled"}
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: internalError(h.log, method, err)}
}
