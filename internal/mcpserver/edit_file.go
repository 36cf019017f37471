package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"

	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const editFile = "edit_file"

type editFileArgs struct {
	fileArgs
	Old string `json:"old" jsonschema:"text as it stands in the file, spaces and line breaks included, without line numbers"`
	New string `json:"new" jsonschema:"text in its place"`
	All bool   `json:"all,omitempty" jsonschema:"replace every place; without it old must stand at one place only"`
}

func addEditFile(s *mcp.Server, o Options) {
	no, yes := false, true
	addFileTool(s, o, &mcp.Tool{
		Name:         editFile,
		Title:        "Edit a file",
		Description:  "Replaces text in a file of the sandbox, exactly. Give enough of the text around the place that there is one such place, or set all.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no},
		InputSchema:  inputFor[editFileArgs](),
		OutputSchema: schemaFor[workspace.Edited](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a editFileArgs
		var replacement *string // "" deletes, an absent one is a mistake
		err := readArguments(editFile, raw, append(a.arguments(),
			argument{"old", "a string", &a.Old}, argument{"new", "a string", &replacement}, argument{"all", "true or false", &a.All}))
		if err != nil {
			return nil, err
		}
		if replacement == nil {
			return nil, refuse("new: want the text that comes in the place of old, or an empty string to delete it")
		}
		e, err := o.Files.Edit(ctx, workspace.EditRequest{FileRef: a.ref(), Old: a.Old, New: *replacement, All: a.All})
		if err != nil {
			return nil, err
		}
		places := "1 place"
		if e.Replaced > 1 {
			places = fmt.Sprintf("%d places", e.Replaced)
		}
		return answer(fmt.Sprintf("replaced %s in %s:\n%s", places, sandbox.Printable(e.Path), e.Snippet), e), nil
	})
}
