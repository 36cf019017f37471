package mcpserver

import (
	"context"

	"belljar/internal/access"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const sandboxCreate = "sandbox_create"

type sandboxCreateArgs struct {
	Name  string `json:"name" jsonschema:"1 to 40 of a-z, 0-9, - and _"`
	Image string `json:"image,omitempty" jsonschema:"what it starts from; the server's usual one if absent"`
}

func addSandboxCreate(s *mcp.Server, o Options) {
	no := false
	addTool(s, o, &mcp.Tool{
		Name:         sandboxCreate,
		Title:        "Create a sandbox",
		Description:  "Makes another persistent sandbox, for execute and the tools for files to be told by its name.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no},
		InputSchema:  schemaFor[sandboxCreateArgs](),
		OutputSchema: schemaFor[workspace.Info](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a sandboxCreateArgs
		err := readArguments(sandboxCreate, req.Params.Arguments, []argument{
			{"name", "a string", &a.Name},
			{"image", "a string", &a.Image},
		})
		if err != nil {
			return nil, err
		}
		w, err := o.Backend.CreateSandbox(ctx, access.Owner, a.Name, a.Image)
		if err != nil {
			return nil, err
		}
		return sandboxResult(w), nil
	})
}
