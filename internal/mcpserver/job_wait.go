package mcpserver

import (
	"context"

	"belljar/internal/access"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const jobWait = "job_wait"

type jobWaitArgs struct {
	JobID string   `json:"job_id"`
	Wait  *float64 `json:"wait,omitempty"`
}

func addJobWait(s *mcp.Server, o Options) {
	input := schemaFor[jobWaitArgs]()
	o.describeWait(input)
	addTool(s, o, &mcp.Tool{
		Name:         jobWait,
		Title:        "Wait for a job",
		Description:  "Waits for a job of execute or run_script, and returns its result as that tool does.",
		Annotations:  readOnly(),
		InputSchema:  input,
		OutputSchema: anyReplySchema(),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a jobWaitArgs
		err := readArguments(jobWait, req.Params.Arguments, []argument{
			{"job_id", "a string", &a.JobID},
			{"wait", "a number of seconds", &a.Wait},
		})
		if err != nil {
			return nil, err
		}
		w, err := o.wait(ctx, req, a.Wait, 0)
		if err != nil {
			return nil, err
		}
		reply, err := o.Backend.Await(ctx, access.Owner, a.JobID, w)
		if err != nil {
			return nil, err
		}
		return o.replyResult(reply), nil
	})
}

// readOnly are the annotations of a tool that changes nothing.
func readOnly() *mcp.ToolAnnotations {
	no := false
	return &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: &no}
}
