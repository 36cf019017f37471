package mcpserver

import (
	"context"

	"belljar/internal/access"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const sandboxStop = "sandbox_stop"

// sandboxEndArgs are the arguments of what ends a sandbox.
type sandboxEndArgs struct {
	Name    string `json:"name"`
	EndJobs bool   `json:"end_jobs,omitempty" jsonschema:"also if jobs run in it: end them"`
}

func readSandboxEnd(tool string, req *mcp.CallToolRequest) (a sandboxEndArgs, err error) {
	err = readArguments(tool, req.Params.Arguments, []argument{
		{"name", "a string", &a.Name},
		{"end_jobs", "true or false", &a.EndJobs},
	})
	if err == nil && a.Name == "" {
		err = refuse("argument %q: want the name of a sandbox; sandbox_list tells which there are", "name")
	}
	return a, err
}

func addSandboxStop(s *mcp.Server, o Options) {
	no := false
	addTool(s, o, &mcp.Tool{
		Name:         sandboxStop,
		Title:        "Stop a sandbox",
		Description:  "Ends what runs in a sandbox. Its files and packages stay; the next call that needs it starts it again.",
		Annotations:  &mcp.ToolAnnotations{IdempotentHint: true, OpenWorldHint: &no},
		InputSchema:  schemaFor[sandboxEndArgs](),
		OutputSchema: schemaFor[workspace.Info](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		a, err := readSandboxEnd(sandboxStop, req)
		if err != nil {
			return nil, err
		}
		w, err := o.Backend.StopSandbox(ctx, access.Owner, a.Name, a.EndJobs)
		if err != nil {
			return nil, err
		}
		return sandboxResult(w), nil
	})
}
