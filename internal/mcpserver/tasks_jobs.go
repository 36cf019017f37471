package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"belljar/internal/access"
	"belljar/internal/job"
	"belljar/internal/sandbox"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// carryOut answers a call that begins a job. begin does so, and waits for it.
//
// A client that takes tasks is answered with one, unless the work is over within
// a moment, or the call says itself how long to wait: then the model wants to go
// on by that time, and is told of the job as everybody is.
func (o Options) carryOut(ctx context.Context, req *mcp.CallToolRequest, wait *float64, timeout time.Duration,
	begin func(context.Context, job.Wait) (job.Reply, error),
) (*mcp.CallToolResult, error) {
	w, err := o.wait(ctx, req, wait, timeout)
	if err != nil {
		return nil, err
	}
	asTask := wait == nil && TakesTask(ctx)
	if asTask {
		w.For = o.TaskGrace
	}
	reply, err := begin(ctx, w)
	switch {
	case err != nil:
		return nil, err
	case asTask && reply.Status == job.Running:
		return o.answerWithJob(ctx, reply)
	}
	return o.replyResult(reply), nil
}

// answerWithJob answers a call with its job as a task. Only what tasks/get
// finds may be one, so it is looked up.
func (o Options) answerWithJob(ctx context.Context, r job.Reply) (*mcp.CallToolResult, error) {
	t, err := jobTasks{o}.Task(ctx, access.Owner, r.ID)
	switch {
	case err != nil:
		o.Log.Error("a job was not found as a task", "job", r.ID, "err", err)
		return o.replyResult(r), nil
	case t.Status == TaskCompleted: // meanwhile
		return t.Result, nil
	}
	return AnswerWithTask(ctx, t)
}

// jobTasks are jobs as tasks. A task's id is its job's; there is no other state
// of it, so a task outlives the server as far as its job does.
type jobTasks struct{ o Options }

// Task implements Tasks.
func (j jobTasks) Task(ctx context.Context, s access.Subject, id string) (Task, error) {
	state, err := j.o.Backend.Inspect(ctx, s, id)
	if err != nil {
		return Task{}, noTask(err)
	}
	t := Task{
		ID: state.ID, Created: state.Begun, Updated: state.Ended, Kept: state.Kept.Sub(state.Begun),
		Status: TaskCompleted,
	}
	switch {
	case state.Status == job.Running:
		elapsed := duration(state.Seconds)
		t.Status, t.Updated, t.Poll = TaskWorking, state.Begun.Add(elapsed), pollInterval(elapsed)
		if state.Progress != nil {
			t.Message = progressText(*state.Progress, 0)
		}
	case state.Cancelled:
		t.Status, t.Message = TaskCancelled, "ended by request"
	case state.Fault:
		t.Status, t.Message = TaskFailed, state.Refused
		t.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error: " + state.Refused}
	case state.Reply == nil:
		t.Result = refusal(state.Refused)
	default:
		t.Result = j.o.replyResult(*state.Reply)
	}
	return t, nil
}

// pollInterval grows with what was waited already, so that a short job's end
// is known soon, and a long one costs little.
func pollInterval(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, time.Second), 10*time.Second)
}

// UpdateTask implements Tasks. A job asks nothing of the client: what it reads,
// job_input writes.
func (j jobTasks) UpdateTask(ctx context.Context, s access.Subject, id string, _ map[string]json.RawMessage) error {
	_, err := j.o.Backend.Inspect(ctx, s, id)
	return noTask(err)
}

// CancelTask implements Tasks.
func (j jobTasks) CancelTask(ctx context.Context, s access.Subject, id string) error {
	return noTask(j.o.Backend.Cancel(ctx, s, id))
}

// noTask turns what the backend says of a job that does not exist into
// ErrNoTask.
func noTask(err error) error {
	var refused *sandbox.RequestError
	if errors.As(err, &refused) {
		return ErrNoTask
	}
	return err
}
