package mcpserver

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// taskResult is a task as an answer: of a call, where ResultType is "task", or
// of tasks/get, where it is "complete" and all of the task is there.
type taskResult struct {
	mcp.ResultBase
	ResultType    string     `json:"resultType"`
	TaskID        string     `json:"taskId"`
	Status        TaskStatus `json:"status"`
	StatusMessage string     `json:"statusMessage,omitempty"`
	CreatedAt     string     `json:"createdAt"`
	LastUpdatedAt string     `json:"lastUpdatedAt"`
	// TTLMs is from CreatedAt; null would be for ever.
	TTLMs          int64               `json:"ttlMs"`
	PollIntervalMs int64               `json:"pollIntervalMs,omitempty"`
	InputRequests  mcp.InputRequestMap `json:"inputRequests,omitempty"`
	Result         json.RawMessage     `json:"result,omitempty"`
	Error          *taskError          `json:"error,omitempty"`
}

// taskError is a JSON-RPC error within a result.
type taskError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// acknowledgement is the answer of tasks/update and tasks/cancel.
type acknowledgement struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// newTaskResult shows a task. The answer of a call has its state alone: how it
// ended, and what it asks, is for tasks/get.
func newTaskResult(resultType string, t Task) (*taskResult, error) {
	r := &taskResult{
		ResultType: resultType, TaskID: t.ID, Status: t.Status, StatusMessage: t.Message,
		CreatedAt: timestamp(t.Created), LastUpdatedAt: timestamp(t.Updated),
		TTLMs: t.Kept.Milliseconds(), PollIntervalMs: t.Poll.Milliseconds(),
	}
	if resultType == "task" {
		return r, nil
	}
	switch t.Status {
	case TaskInputRequired:
		r.InputRequests = t.InputRequests
	case TaskFailed:
		r.Error = newTaskError(t.Error)
	case TaskCompleted:
		data, err := json.Marshal(t.Result)
		if err != nil {
			return nil, fmt.Errorf("encoding the result of a task: %w", err)
		}
		// Every result says its type. The SDK adds that to those it sends
		// itself, and keeps the field from others.
		r.Result = append([]byte(`{"resultType":"complete",`), data[1:]...)
	}
	return r, nil
}

func newTaskError(e *jsonrpc.Error) *taskError {
	return &taskError{Code: e.Code, Message: e.Message, Data: e.Data}
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
