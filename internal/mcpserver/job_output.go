package mcpserver

import (
	"context"
	"fmt"
	"strings"

	"belljar/internal/access"
	"belljar/internal/job"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const jobOutput = "job_output"

type jobOutputArgs struct {
	JobID string  `json:"job_id"`
	Since string  `json:"since,omitempty" jsonschema:"cursor of an earlier answer; from the beginning if absent"`
	Wait  float64 `json:"wait,omitempty" jsonschema:"seconds to wait for something new; 0 if absent"`
}

// maxOutputWait bounds how long a call waits for news, in seconds.
const maxOutputWait = 50

func addJobOutput(s *mcp.Server, o Options) {
	addTool(s, o, &mcp.Tool{
		Name:         jobOutput,
		Title:        "Read a job's output",
		Description:  "Returns what a job has printed, or what it has printed since a cursor.",
		Annotations:  readOnly(),
		InputSchema:  schemaFor[jobOutputArgs](),
		OutputSchema: schemaFor[job.Output](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a jobOutputArgs
		err := readArguments(jobOutput, req.Params.Arguments, []argument{
			{"job_id", "a string", &a.JobID},
			{"since", "a string", &a.Since},
			{"wait", "a number of seconds", &a.Wait},
		})
		if err != nil {
			return nil, err
		}
		if a.Wait < 0 {
			return nil, refuse("wait %g: want 0 or more seconds", a.Wait)
		}
		out, err := o.Backend.Output(ctx, access.Owner, a.JobID, a.Since, duration(min(a.Wait, maxOutputWait)))
		if err != nil {
			return nil, err
		}
		return answer(outputText(out), out), nil
	})
}

func outputText(out job.Output) string {
	var b strings.Builder
	fmt.Fprintf(&b, "status: %s; cursor: %s", out.Status, out.Cursor)
	if out.More {
		b.WriteString("; there is more to read")
	}
	b.WriteString("\n")
	if out.Missing > 0 {
		fmt.Fprintf(&b, "note: %d bytes before these are not kept\n", out.Missing)
	}
	section(&b, "stdout", out.Stdout)
	section(&b, "stderr", out.Stderr)
	return b.String()
}
