package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"

	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const writeFile = "write_file"

type writeFileArgs struct {
	fileArgs
	Content  string `json:"content" jsonschema:"all of the file"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content; text if absent"`
	Mode     string `json:"mode,omitempty" jsonschema:"permissions in octal, such as 755; unchanged if absent, 644 for a new file"`
}

func addWriteFile(s *mcp.Server, o Options) {
	no, yes := false, true
	in := inputFor[writeFileArgs]()
	in.Properties["encoding"].Enum = []any{"text", "base64"}
	addFileTool(s, o, &mcp.Tool{
		Name:         writeFile,
		Title:        "Write a file",
		Description:  "Writes a file in the sandbox, in the place of what was there, and makes missing directories. For a change of a part use edit_file, for a file that the user has upload_url.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, IdempotentHint: true, OpenWorldHint: &no},
		InputSchema:  in,
		OutputSchema: schemaFor[workspace.Written](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		r, err := writeRequest(raw)
		if err != nil {
			return nil, err
		}
		w, err := o.Files.Write(ctx, r)
		if err != nil {
			return nil, err
		}
		what := "replaced"
		if w.Created {
			what = "created"
		}
		return answer(fmt.Sprintf("%s %s: %d bytes, mode %s\n", what, sandbox.Printable(w.Path), w.Bytes, w.Mode), w), nil
	})
}

// writeRequest reads the arguments of a call.
func writeRequest(raw json.RawMessage) (workspace.WriteRequest, error) {
	var a writeFileArgs
	var content *string // an empty file is one, an absent content is a mistake
	err := readArguments(writeFile, raw, append(a.arguments(),
		argument{"content", "a string", &content}, argument{"encoding", "text or base64", &a.Encoding}, argument{"mode", "a string", &a.Mode}))
	if err != nil {
		return workspace.WriteRequest{}, err
	}
	r := workspace.WriteRequest{FileRef: a.ref()}
	if content == nil {
		return r, refuse("content: want all of the file, or an empty string for an empty file")
	}
	switch a.Encoding {
	case "", "text":
		r.Data = []byte(*content)
	case "base64":
		if r.Data, err = decodeBase64(*content); err != nil {
			return r, refuse("content of %.100q: %v", a.Path, err)
		}
	default:
		return r, refuse("encoding: want text or base64")
	}
	if a.Mode != "" {
		bits, err := strconv.ParseUint(a.Mode, 8, 32)
		if err != nil || bits > 0o777 {
			return r, refuse("mode: want permissions in octal, such as 644 or 0755")
		}
		mode := fs.FileMode(bits)
		r.Mode = &mode
	}
	return r, nil
}
