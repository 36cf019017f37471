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

const shareFile = "share_file"

type shareFileArgs struct {
	fileArgs
	ExpiresIn float64 `json:"expires_in,omitempty" jsonschema:"seconds until the link ends; 7 days if absent"`
	Format    string  `json:"format,omitempty" jsonschema:"how a directory is packed; tar.gz if absent"`
}

func addShareFile(s *mcp.Server, o Options) {
	no, yes := false, true
	in := inputFor[shareFileArgs]()
	in.Properties["format"].Enum = []any{"tar.gz", "zip"}
	atLeast(in, "expires_in", 60)
	if o.LinkTTL > 0 {
		in.Properties["expires_in"].Description = "seconds until the link ends; " + inWords(int64(o.LinkTTL.Seconds())) + " if absent"
	}
	addFileTool(s, o, &mcp.Tool{
		Name:  shareFile,
		Title: "Share a file",
		Description: "Gives a public link to a file or directory of the sandbox, for the user to download. " +
			"Whoever has the link gets the file as it is then; a directory is packed. revoke_link ends it early.",
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &yes},
		InputSchema:  in,
		OutputSchema: schemaFor[workspace.Shared](),
	}, func(ctx context.Context, raw json.RawMessage) (*mcp.CallToolResult, error) {
		var a shareFileArgs
		err := readArguments(shareFile, raw, append(a.arguments(),
			argument{"expires_in", "a number of seconds", &a.ExpiresIn}, argument{"format", "tar.gz or zip", &a.Format}))
		if err != nil {
			return nil, err
		}
		sh, err := o.Files.Share(ctx, workspace.ShareRequest{FileRef: a.ref(), Expires: duration(a.ExpiresIn), Format: a.Format})
		if err != nil {
			return nil, err
		}
		link := &mcp.ResourceLink{URI: sh.URL, Name: sh.Name, MIMEType: sh.MIME, Description: "expires in " + inWords(sh.ExpiresIn)}
		if sh.Kind == "file" {
			link.Size = &sh.Bytes
		}
		return answer(sharedText(sh), sh, link), nil
	})
}

func sharedText(sh *workspace.Shared) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s", sandbox.Printable(sh.Name), sh.MIME)
	if sh.Kind == "file" {
		fmt.Fprintf(&b, ", %d bytes", sh.Bytes)
	}
	if sh.SHA256 != "" {
		fmt.Fprintf(&b, ", sha256 %s", sh.SHA256)
	}
	fmt.Fprintf(&b, "): %s (expires in %s)\n", sh.URL, inWords(sh.ExpiresIn))
	notes(&b, sh.Notes)
	return b.String()
}
