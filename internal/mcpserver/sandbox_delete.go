package mcpserver

import (
	"context"

	"belljar/internal/access"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const sandboxDelete = "sandbox_delete"

type sandboxDeleteOutput struct {
	Deleted string `json:"deleted" jsonschema:"the sandbox's name"`
}

func addSandboxDelete(s *mcp.Server, o Options) {
	yes, no := true, false
	addTool(s, o, &mcp.Tool{
		Name:         sandboxDelete,
		Title:        "Delete a sandbox",
		Description:  "Deletes a sandbox with all its files, for good.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no},
		InputSchema:  schemaFor[sandboxEndArgs](),
		OutputSchema: schemaFor[sandboxDeleteOutput](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		a, err := readSandboxEnd(sandboxDelete, req)
		if err != nil {
			return nil, err
		}
		if err := o.Backend.DeleteSandbox(ctx, access.Owner, a.Name, a.EndJobs); err != nil {
			return nil, err
		}
		return answer("deleted "+a.Name, sandboxDeleteOutput{a.Name}), nil
	})
}
