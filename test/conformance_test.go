package test

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"belljar/internal/mcpserver"
)

// The official conformance suite, and the Node.js that it needs.
var conformancePackages = []string{"@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@24.21.0"}

// TestConformanceOfTasks: the official conformance suite finds nothing wrong
// with how tasks are served. Its scenarios ask for tools of their own, so this
// is a server with those, from the packages that the product is made of. The
// scenario of status notifications, which are optional, checks nothing yet.
func TestConformanceOfTasks(t *testing.T) {
	dir := installPackages(t, "conformance-0.2.0-alpha.12", conformancePackages...)
	srv := httptest.NewServer(mcpserver.Handler(taskTools(), 0))
	defer srv.Close()
	for _, tc := range []struct {
		scenario string
		checks   int // how many there are, at least
	}{
		{"tasks-lifecycle", 8},
		{"tasks-capability-negotiation", 4},
		{"tasks-wire-fields", 3},
		{"tasks-request-state-removal", 2},
		{"tasks-request-headers", 4},
		{"tasks-dispatch-and-envelope", 8},
		{"tasks-required-task-error", 2},
		{"tasks-mrtr-input", 3},
		{"tasks-mrtr-composition", 1},
	} {
		t.Run(tc.scenario, func(t *testing.T) {
			results := t.TempDir()
			out, err := nodeCommand(t, dir, "conformance", "server", "--url", srv.URL, "--scenario", tc.scenario, "--timeout", "120000", "-o", results).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			files, _ := filepath.Glob(filepath.Join(results, "*", "checks.json"))
			if len(files) != 1 {
				t.Fatalf("results: %q\n%s", files, out)
			}
			data, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			var checks []struct{ ID, Status, ErrorMessage string }
			if err := json.Unmarshal(data, &checks); err != nil {
				t.Fatal(err)
			}
			if len(checks) < tc.checks {
				t.Errorf("only %d checks, want %d", len(checks), tc.checks)
			}
			for _, c := range checks {
				if c.Status != "SUCCESS" {
					t.Errorf("%s: %s %s", c.ID, c.Status, c.ErrorMessage)
				}
			}
		})
	}
}

// taskTools is a server with the tools that the suite's scenarios of tasks ask
// for.
func taskTools() *mcp.Server {
	capabilities := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}
	capabilities.AddExtension(mcpserver.TasksExtension, nil)
	s := mcp.NewServer(&mcp.Implementation{Name: "belljar-conformance", Version: "1"}, &mcp.ServerOptions{Capabilities: capabilities})
	tasks := &fixtures{tasks: map[string]*fixture{}}
	mcpserver.ServeTasks(s, tasks, slog.New(slog.DiscardHandler))
	for name, handler := range tasks.tools() {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, handler)
	}
	return s
}
