package mcpserver

import (
	"context"
	"fmt"
	"strings"

	"belljar/internal/access"
	"belljar/internal/job"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const jobList = "job_list"

type jobListOutput struct {
	Jobs []job.Job `json:"jobs"`
}

func addJobList(s *mcp.Server, o Options) {
	addTool(s, o, &mcp.Tool{
		Name:         jobList,
		Title:        "List jobs",
		Description:  "Lists the jobs that run and the latest that ended, the newest first.",
		Annotations:  readOnly(),
		InputSchema:  schemaFor[struct{}](),
		OutputSchema: schemaFor[jobListOutput](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if err := readArguments(jobList, req.Params.Arguments, nil); err != nil {
			return nil, err
		}
		list, err := o.Backend.List(ctx, access.Owner)
		if err != nil {
			return nil, err
		}
		return answer(jobsText(list), jobListOutput{list}), nil
	})
}

func jobsText(list []job.Job) string {
	if len(list) == 0 {
		return "no jobs"
	}
	var b strings.Builder
	for _, j := range list {
		fmt.Fprintf(&b, "%s %s, %s s", j.ID, j.Status, fmt.Sprintf("%.1f", j.Seconds))
		if j.Sandbox != "" {
			fmt.Fprintf(&b, ", in %s", j.Sandbox)
		}
		fmt.Fprintf(&b, ": %s\n", j.Title)
	}
	return b.String()
}
