package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const listFiles = "list_files"

type listFilesArgs struct {
	Path    string `json:"path,omitempty" jsonschema:"directory; /sandbox if absent"`
	Glob    string `json:"glob,omitempty" jsonschema:"pattern of paths below it, such as *.py, **/*.{js,ts} or src/**"`
	Depth   int    `json:"depth,omitempty" jsonschema:"levels to list; 1 if absent, all with a glob"`
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name of the sandbox; the default one if absent"`
}

func addListFiles(s *mcp.Server, o Options) {
	in := inputFor[listFilesArgs]()
	atLeast(in, "depth", 1)
	addFileTool(s, o, &mcp.Tool{
		Name:         listFiles,
		Title:        "List files",
		Description:  "Lists files and directories of the sandbox with sizes and times. Symbolic links are named and not followed.",
		Annotations:  readOnly(),
		InputSchema:  in,
		OutputSchema: schemaFor[workspace.ListedFiles](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a listFilesArgs
		err := readArguments(listFiles, raw, []argument{
			{"path", "a string", &a.Path}, {"glob", "a string", &a.Glob}, {"depth", "a whole number", &a.Depth}, {"sandbox", "a string", &a.Sandbox},
		})
		if err != nil {
			return nil, err
		}
		ref := (&fileArgs{Path: a.Path, Sandbox: a.Sandbox}).ref()
		l, err := o.Files.List(ctx, workspace.ListRequest{FileRef: ref, Glob: a.Glob, Depth: a.Depth})
		if err != nil {
			return nil, err
		}
		return answer(listText(l), l), nil
	})
}

// listText says all of a listing for a model to read, a line an entry.
func listText(l *workspace.ListedFiles) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n", sandbox.Printable(l.Path))
	if len(l.Entries) == 0 {
		b.WriteString("nothing\n")
	}
	for _, e := range l.Entries {
		size, name := "-", sandbox.Printable(e.Path)
		switch e.Kind {
		case "file":
			size = fmt.Sprint(e.Bytes)
		case "dir":
			name += "/"
		case "link":
			name += " -> " + sandbox.Printable(e.Target)
		default:
			name += " (neither a file nor a directory)"
		}
		fmt.Fprintf(&b, "%12s  %s  %s\n", size, e.Modified.UTC().Format(time.DateTime), name)
	}
	notes(&b, l.Notes)
	return b.String()
}
