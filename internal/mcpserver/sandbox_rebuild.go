package mcpserver

import (
	"context"

	"belljar/internal/access"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const sandboxRebuild = "sandbox_rebuild"

type sandboxRebuildArgs struct {
	Name    string `json:"name"`
	Image   string `json:"image,omitempty" jsonschema:"the newest of its own name if absent"`
	EndJobs bool   `json:"end_jobs,omitempty" jsonschema:"also if jobs run in it: end them"`
}

func addSandboxRebuild(s *mcp.Server, o Options) {
	yes, no := true, false
	addTool(s, o, &mcp.Tool{
		Name:         sandboxRebuild,
		Title:        "Rebuild a sandbox",
		Description:  "Puts a sandbox onto a newer or another image. /sandbox stays; packages installed and files changed elsewhere are gone.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no},
		InputSchema:  schemaFor[sandboxRebuildArgs](),
		OutputSchema: schemaFor[workspace.Info](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a sandboxRebuildArgs
		err := readArguments(sandboxRebuild, req.Params.Arguments, []argument{
			{"name", "a string", &a.Name},
			{"image", "a string", &a.Image},
			{"end_jobs", "true or false", &a.EndJobs},
		})
		if err == nil && a.Name == "" {
			err = refuse("argument %q: want the name of a sandbox; sandbox_list tells which there are", "name")
		}
		if err != nil {
			return nil, err
		}
		w, err := o.Backend.RebuildSandbox(ctx, access.Owner, a.Name, a.Image, a.EndJobs)
		if err != nil {
			return nil, err
		}
		return sandboxResult(w), nil
	})
}
