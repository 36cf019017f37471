package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"belljar/internal/access"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const sandboxList = "sandbox_list"

type sandboxListOutput struct {
	Sandboxes []workspace.Info `json:"sandboxes"`
}

func addSandboxList(s *mcp.Server, o Options) {
	addTool(s, o, &mcp.Tool{
		Name:         sandboxList,
		Title:        "List sandboxes",
		Description:  "Lists the persistent sandboxes: state, image, when each was used last, and whether a newer image exists.",
		Annotations:  readOnly(),
		InputSchema:  schemaFor[struct{}](),
		OutputSchema: schemaFor[sandboxListOutput](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if err := readArguments(sandboxList, req.Params.Arguments, nil); err != nil {
			return nil, err
		}
		list, err := o.Backend.ListSandboxes(ctx, access.Owner)
		if err != nil {
			return nil, err
		}
		return answer(sandboxesText(list), sandboxListOutput{list}), nil
	})
}

func sandboxesText(list []workspace.Info) string {
	if len(list) == 0 {
		return "no sandboxes yet; execute makes one"
	}
	var b strings.Builder
	for _, w := range list {
		b.WriteString(sandboxText(w) + "\n")
	}
	return b.String()
}

func sandboxText(w workspace.Info) string {
	text := fmt.Sprintf("%s: %s, image %s, made %s, last used %s", w.Name, w.State, w.Image, stamp(w.Created), stamp(w.Used))
	if w.NewImage {
		text += "; a newer image of that name exists (sandbox_rebuild)"
	}
	return text
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// sandboxResult shows one sandbox.
func sandboxResult(w workspace.Info) *mcp.CallToolResult {
	return answer(sandboxText(w), w)
}
