package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const readFile = "read_file"

type readFileArgs struct {
	fileArgs
	Offset int `json:"offset,omitempty" jsonschema:"first line, or first page of a PDF; 1 if absent"`
	Limit  int `json:"limit,omitempty" jsonschema:"number of lines, or pages; as many as fit if absent"`
}

func addReadFile(s *mcp.Server, o Options) {
	in := inputFor[readFileArgs]()
	atLeast(in, "offset", 1)
	atLeast(in, "limit", 1)
	addFileTool(s, o, &mcp.Tool{
		Name:  readFile,
		Title: "Read a file",
		Description: "Shows a file of the sandbox: text with line numbers, a picture as a picture, a PDF by its pages; anything else is described. " +
			"Use offset and limit for a part of a large one.",
		Annotations:  readOnly(),
		InputSchema:  in,
		OutputSchema: schemaFor[workspace.Content](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a readFileArgs
		err := readArguments(readFile, raw, append(a.arguments(),
			argument{"offset", "a whole number", &a.Offset}, argument{"limit", "a whole number", &a.Limit}))
		if err != nil {
			return nil, err
		}
		c, err := o.Files.Read(ctx, workspace.ReadRequest{FileRef: a.ref(), Offset: a.Offset, Limit: a.Limit})
		if err != nil {
			return nil, err
		}
		var pictures []mcp.Content
		for _, p := range c.Pictures {
			pictures = append(pictures, &mcp.ImageContent{Data: p.Data, MIMEType: p.MIME})
		}
		return answer(contentText(c), c, pictures...), nil
	})
}

// contentText says all of a file's content for a model to read.
func contentText(c *workspace.Content) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s, %d bytes", sandbox.Printable(c.Path), c.MIME, c.Bytes)
	if c.Total > 0 {
		unit := "lines"
		if c.MIME == "application/pdf" {
			unit = "pages"
		}
		fmt.Fprintf(&b, ", %d %s", c.Total, unit)
	}
	if len(c.Pictures) > 0 {
		b.WriteString(", shown below")
	}
	b.WriteString(")\n")
	b.WriteString(c.Text)
	notes(&b, c.Notes)
	return b.String()
}

func notes(b *strings.Builder, notes []string) {
	for _, n := range notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
}
