package mcpserver

import (
	"context"
	"fmt"
	"strings"

	"belljar/internal/sandbox"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const listRuntimes = "list_runtimes"

// runtimeList is the structured result of list_runtimes.
type runtimeList struct {
	Runtimes []sandbox.RuntimeInfo `json:"runtimes"`
}

func addListRuntimes(s *mcp.Server, o Options) {
	addTool(s, o, &mcp.Tool{
		Name:         listRuntimes,
		Title:        "List runtimes",
		Description:  "Lists the languages that run_script runs: version, installed packages, limits, and what is missing and why.",
		Annotations:  readOnly(),
		InputSchema:  schemaFor[struct{}](),
		OutputSchema: schemaFor[runtimeList](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if err := readArguments(listRuntimes, req.Params.Arguments, nil); err != nil {
			return nil, err
		}
		infos, err := o.Backend.Runtimes(ctx)
		if err != nil {
			return nil, err
		}
		if infos == nil {
			infos = []sandbox.RuntimeInfo{} // not null
		}
		return answer(runtimesText(infos), runtimeList{Runtimes: infos}), nil
	})
}

// runtimesText says all of the list for a model to read.
func runtimesText(infos []sandbox.RuntimeInfo) string {
	var b strings.Builder
	for _, r := range infos {
		if !r.Available {
			fmt.Fprintf(&b, "%s (%s): not available: %s\n", r.Name, r.Title, r.Reason)
			continue
		}
		fmt.Fprintf(&b, "%s: %s, version %s; script file .%s; image %s; timeout %g s, %g s at most\n",
			r.Name, r.Title, r.Version, r.Extension, r.Image, r.DefaultTimeout, r.MaxTimeout)
		if r.Hint != "" {
			fmt.Fprintf(&b, "  %s\n", r.Hint)
		}
		if len(r.Packages) > 0 {
			fmt.Fprintf(&b, "  installed: %s\n", strings.Join(r.Packages, ", "))
		}
		for _, part := range r.Missing {
			fmt.Fprintf(&b, "  missing: %s\n", part)
		}
	}
	// The limits are the same for all.
	for _, r := range infos {
		if r.Limits != nil {
			fmt.Fprintf(&b, "\nlimits of a run: %s\n", limitsText(r.Limits))
			break
		}
	}
	return b.String()
}

func limitsText(l *sandbox.Limits) string {
	return fmt.Sprintf("memory %.0f MiB, %g CPUs, %.0f processes, disk %.0f MiB, /tmp %.0f MiB, network: %s; output files: %d, %d MiB each, %d MiB together",
		l.Memory.Value/(1<<20), l.CPUs.Value, l.PIDs.Value, l.Disk.Value/(1<<20), l.Tmp.Value/(1<<20), l.Network,
		l.Files, l.FileBytes>>20, l.FilesBytes>>20)
}
