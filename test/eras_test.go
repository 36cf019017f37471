package test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestBothEras: clients of the 2026-07-28 protocol, and those that begin
// with initialize, see the same tools and results.
func TestBothEras(t *testing.T) {
	s := sharedServer(t)
	for _, version := range []string{modern, legacy, "2025-06-18", "2025-03-26"} {
		t.Run(version, func(t *testing.T) {
			session, err := connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.url}, version)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			if got := session.InitializeResult(); got.ProtocolVersion != version || got.ServerInfo.Name != "belljar" || got.Instructions == "" {
				t.Errorf("negotiated %+v", got)
			}
			checkSession(t, session)
		})
	}
}

// allTools is what a server offers by default.
var allTools = []string{
	"edit_file", "execute", "job_input", "job_kill", "job_list", "job_output", "job_wait", "list_files", "list_runtimes",
	"read_file", "revoke_link", "run_script", "sandbox_create", "sandbox_delete", "sandbox_list", "sandbox_rebuild", "sandbox_stop",
	"share_file", "upload_url", "write_file",
}

// checkSession lists the tools and runs a script that draws a picture.
func checkSession(t *testing.T, session *mcp.ClientSession) *result {
	t.Helper()
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	if slices.Sort(names); !slices.Equal(names, allTools) {
		t.Errorf("tools: %v", names)
	}
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_script", Arguments: args{
		"runtime": "gnuplot", "script": "set terminal pngcairo size 640,480\nset output 'output/sine.png'\nplot sin(x)\nprint 6*7",
	}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := readResult(res)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Success || r.Stderr != "42\n" || len(r.images()) != 1 || r.links()["sine.png"] == nil {
		t.Errorf("%s", r)
	}
	if w, h := size(t, download(t, r.file(t, "sine.png"))); w != 640 || h != 480 {
		t.Errorf("the picture is %d × %d", w, h)
	}
	return r
}

// The official Inspector, and the Node.js that it needs.
var inspectorPackages = []string{"@modelcontextprotocol/inspector@2.12.0", "node@24.21.0"}

// TestInspector: the official Inspector lists the tools and runs a script in
// both eras of the protocol.
func TestInspector(t *testing.T) {
	s := sharedServer(t)
	dir := installInspector(t)
	inspect := func(era string, arguments ...string) []byte {
		t.Helper()
		return inspect(t, dir, s.url, era, arguments...)
	}
	for _, era := range []string{"modern", "legacy"} {
		var list struct {
			Tools []struct {
				Name                      string
				InputSchema, OutputSchema struct{ Type string }
			}
		}
		if err := json.Unmarshal(inspect(era, "--method", "tools/list"), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
			if tool.InputSchema.Type != "object" || tool.OutputSchema.Type != "object" {
				t.Errorf("%s: a schema of %s is missing", era, tool.Name)
			}
		}
		if slices.Sort(names); !slices.Equal(names, allTools) {
			t.Errorf("%s: tools %v", era, names)
		}
		out := inspect(era, "--method", "tools/call", "--tool-name", "run_script", "--tool-arg", "runtime=python", "--tool-arg", "script=print(6*7)")
		var call struct {
			Meta struct {
				ServerInfo struct{ Name string } `json:"io.modelcontextprotocol/serverInfo"`
			} `json:"_meta"`
			Content           []struct{ Type, Text string }
			StructuredContent result
		}
		if err := json.Unmarshal(out, &call); err != nil {
			t.Fatal(err)
		}
		if r := call.StructuredContent; !r.Success || r.Stdout != "42\n" || len(call.Content) != 1 || !strings.Contains(call.Content[0].Text, "\n42\n") {
			t.Errorf("%s: %s", era, out)
		}
		// Only a modern answer says in itself who has given it.
		if named := call.Meta.ServerInfo.Name == "belljar"; named != (era == "modern") {
			t.Errorf("%s: that era was not spoken: %s", era, out)
		}
	}
}

// inspect runs the Inspector that is installed in dir and returns its output.
func inspect(t *testing.T, dir, url, era string, arguments ...string) []byte {
	t.Helper()
	cmd := nodeCommand(t, dir, "mcp-inspector",
		append([]string{"--cli", "--server-url", url, "--transport", "http", "--protocol-era", era}, arguments...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		t.Fatalf("mcp-inspector %q: %v\n%s", cmd.Args, err, out)
	}
	return out
}

// installInspector returns the directory that the Inspector is installed in.
func installInspector(t *testing.T) string {
	t.Helper()
	return installPackages(t, "inspector-2.12.0", inspectorPackages...)
}
