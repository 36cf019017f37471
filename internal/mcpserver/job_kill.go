package mcpserver

import (
	"context"

	"belljar/internal/access"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const jobKill = "job_kill"

type jobKillArgs struct {
	JobID  string `json:"job_id"`
	Signal string `json:"signal,omitempty" jsonschema:"such as INT or TERM, for the command's process group; KILL if absent, for all that the job has started"`
}

func addJobKill(s *mcp.Server, o Options) {
	yes, no := true, false
	addTool(s, o, &mcp.Tool{
		Name:         jobKill,
		Title:        "End a job",
		Description:  "Ends a job with all that it has started, or sends it a signal. Returns its result, or that it goes on.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no},
		InputSchema:  schemaFor[jobKillArgs](),
		OutputSchema: anyReplySchema(),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a jobKillArgs
		err := readArguments(jobKill, req.Params.Arguments, []argument{
			{"job_id", "a string", &a.JobID},
			{"signal", "a string", &a.Signal},
		})
		if err != nil {
			return nil, err
		}
		reply, err := o.Backend.Kill(ctx, access.Owner, a.JobID, a.Signal)
		if err != nil {
			return nil, err
		}
		return o.replyResult(reply), nil
	})
}
