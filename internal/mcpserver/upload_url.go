package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"

	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const uploadURL = "upload_url"

type uploadURLArgs struct {
	fileArgs
	MaxBytes int64 `json:"max_bytes,omitempty" jsonschema:"most that the file may have; the server's limit if absent"`
}

func addUploadURL(s *mcp.Server, o Options) {
	no, yes := false, true
	in := inputFor[uploadURLArgs]()
	in.Properties["path"].Description = "where the file is to be: absolute, or below /sandbox"
	atLeast(in, "max_bytes", 1)
	addFileTool(s, o, &mcp.Tool{
		Name:         uploadURL,
		Title:        "Link for an upload",
		Description:  "Gives a link by which the user puts one file into the sandbox, once, within an hour, such as with curl. Use it for files that are too large to pass as text.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &yes},
		InputSchema:  in,
		OutputSchema: schemaFor[workspace.UploadLink](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a uploadURLArgs
		err := readArguments(uploadURL, raw, append(a.arguments(), argument{"max_bytes", "a whole number", &a.MaxBytes}))
		if err != nil {
			return nil, err
		}
		u, err := o.Files.UploadURL(ctx, workspace.UploadRequest{FileRef: a.ref(), MaxBytes: a.MaxBytes})
		if err != nil {
			return nil, err
		}
		text := fmt.Sprintf("one file of at most %d bytes can be put to %s within %s:\n%s\n", u.MaxBytes, sandbox.Printable(u.Path), inWords(u.ExpiresIn), u.Command)
		if u.Replaces {
			text += "note: it will replace the file that is there\n"
		}
		return answer(text, u), nil
	})
}
