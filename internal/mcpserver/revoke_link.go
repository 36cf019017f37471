package mcpserver

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const revokeLink = "revoke_link"

type revokeLinkArgs struct {
	URL string `json:"url" jsonschema:"the link"`
}

// revoked is the structured result of revoke_link.
type revoked struct {
	Revoked bool `json:"revoked"`
}

func addRevokeLink(s *mcp.Server, o Options) {
	no, yes := false, true
	addFileTool(s, o, &mcp.Tool{
		Name:         revokeLink,
		Title:        "Revoke a link",
		Description:  "Ends a link of share_file or upload_url before its time. Other links to the same file stay.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, IdempotentHint: true, OpenWorldHint: &no},
		InputSchema:  inputFor[revokeLinkArgs](),
		OutputSchema: schemaFor[revoked](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a revokeLinkArgs
		if err := readArguments(revokeLink, raw, []argument{{"url", "a string", &a.URL}}); err != nil {
			return nil, err
		}
		if err := o.Files.Unshare(ctx, a.URL); err != nil {
			return nil, err
		}
		return answer("the link is revoked\n", revoked{true}), nil
	})
}
