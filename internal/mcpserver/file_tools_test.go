package mcpserver

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withFiles returns options for a server whose tools for files work on a
// workspace of the in-memory engine, and where the workspace's files are.
func withFiles(t *testing.T) (o Options, root func() string) {
	t.Helper()
	e := enginetest.NewMemory(t)
	m, err := workspace.Open(t.Context(), workspace.Options{
		Engine: e, ServerID: "s", Image: func() string { return "mini" },
		Limits: engine.Limits{Memory: 1 << 30, CPUs: 1, PIDs: 100, Tmp: 1 << 20, Disk: 1 << 30, Inodes: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	links, err := artifact.NewLinks(artifact.LinkOptions{
		Store: indextest.NewMemoryLinks(), Workspaces: workspace.Linked(workspace.Lending{Manager: m}), Secret: bytes.Repeat([]byte("s"), 32),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(artifact.SharePrefix, links.ShareHandler())
	mux.Handle(artifact.UploadPrefix, links.UploadHandler())
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	links.SetBaseURL(srv.URL)
	o = testOptions(newEchoBackend())
	o.Files = workspace.NewFiles(workspace.FilesOptions{Lender: workspace.Lending{Manager: m}, Links: links})
	return o, func() string {
		all, err := e.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%d sandboxes, %v", len(all), err)
		}
		return filepath.Join(e.Root(all[0].ID), "sandbox")
	}
}

// The tools for files write, show, change, list, share and take files, and
// what they answer is what their schemas promise.
func TestFileTools(t *testing.T) {
	o, root := withFiles(t)
	eachTransport(t, o, nil, func(t *testing.T, s *mcp.ClientSession) {
		schemas := map[string]any{}
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			schemas[tool.Name] = tool.OutputSchema
		}
		call := func(tool string, args map[string]any, want ...string) *mcp.CallToolResult {
			t.Helper()
			res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				if text := textOf(t, res); !strings.Contains(text, w) {
					t.Errorf("%s: %q is not in %q", tool, w, text)
				}
			}
			if !res.IsError {
				if err := validate(schemas[tool], res.StructuredContent); err != nil {
					t.Errorf("%s: %v", tool, err)
				}
			}
			return res
		}
		call("write_file", map[string]any{"path": "src/a.py", "content": "x = 1\nprint(x)\n", "mode": "0755"}, "/sandbox/src/a.py: 15 bytes, mode 0755")
		call("write_file", map[string]any{"path": "b.bin", "content": "AAH_", "encoding": "base64"}, "/sandbox/b.bin: 3 bytes")
		if data, err := os.ReadFile(filepath.Join(root(), "b.bin")); err != nil || !bytes.Equal(data, []byte{0, 1, 255}) {
			t.Errorf("base64: %x, %v", data, err)
		}
		call("read_file", map[string]any{"path": "src/a.py", "offset": 2}, "/sandbox/src/a.py (text/x-python, 15 bytes, 2 lines)\n     2\tprint(x)\n")
		call("edit_file", map[string]any{"path": "src/a.py", "old": "x = 1", "new": "x = 2"}, "replaced 1 place in /sandbox/src/a.py:\n     1\tx = 2\n")
		call("list_files", map[string]any{"glob": "**/*.py"}, "/sandbox:\n          15  20", "  src/a.py\n")
		call("list_files", nil, "  src/\n")

		var pic bytes.Buffer
		if err := png.Encode(&pic, image.NewGray(image.Rect(0, 0, 10, 10))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root(), "p.png"), pic.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		res := call("read_file", map[string]any{"path": "p.png"}, "(image/png, ", "shown below")
		if img, ok := res.Content[len(res.Content)-1].(*mcp.ImageContent); !ok || img.MIMEType != "image/png" || !bytes.Equal(img.Data, pic.Bytes()) {
			t.Errorf("the picture: %+v", res.Content)
		}

		res = call("share_file", map[string]any{"path": "src/a.py"}, "a.py (text/x-python, 15 bytes, sha256 ", "expires in 7 days")
		link := res.Content[len(res.Content)-1].(*mcp.ResourceLink)
		if status, body := fetch(t, "GET", link.URI, ""); status != 200 || body != "x = 2\nprint(x)\n" || *link.Size != 15 || link.Name != "a.py" {
			t.Errorf("%d %q by %+v", status, body, link)
		}
		call("revoke_link", map[string]any{"url": link.URI}, "revoked")
		if status, _ := fetch(t, "GET", link.URI, ""); status != 410 {
			t.Errorf("a revoked link: %d", status)
		}
		call("share_file", map[string]any{"path": "src", "format": "zip", "expires_in": 120}, "src.zip (application/zip): http", "expires in 2 min")
		res = call("upload_url", map[string]any{"path": "up.txt", "max_bytes": 10}, "at most 10 bytes can be put to /sandbox/up.txt within 60 min", "curl -T FILE 'http")
		if status, body := fetch(t, "PUT", res.StructuredContent.(map[string]any)["url"].(string), "uploaded"); status != 201 {
			t.Errorf("upload: %d %s", status, body)
		}
		call("read_file", map[string]any{"path": "up.txt"}, "     1\tuploaded\n")
		call("upload_url", map[string]any{"path": "up.txt"}, "note: it will replace")
		for _, bad := range []struct {
			tool string
			args map[string]any
			want string
		}{
			{"read_file", map[string]any{"path": "none"}, "/sandbox/none does not exist"},
			{"read_file", map[string]any{}, "path: want"},
			{"read_file", map[string]any{"path": "b.bin", "line": 1}, `unknown argument "line"; read_file takes path, sandbox, offset, limit`},
			{"read_file", map[string]any{"path": "b.bin", "sandbox": "other"}, `"other"`},
			{"write_file", map[string]any{"path": "x"}, "content: want"},
			{"write_file", map[string]any{"path": "x", "content": "?", "encoding": "base64"}, "not base64"},
			{"write_file", map[string]any{"path": "x", "content": "", "encoding": "hex"}, "text or base64"},
			{"write_file", map[string]any{"path": "x", "content": "", "mode": "u+x"}, "octal"},
			{"write_file", map[string]any{"path": "x", "content": "", "mode": "4755"}, "octal"},
			{"edit_file", map[string]any{"path": "src/a.py", "old": "x"}, "new: want"},
			{"edit_file", map[string]any{"path": "src/a.py", "old": "print(y)", "new": ""}, "the nearest to its first line is line 2"},
			{"edit_file", map[string]any{"path": "src/a.py", "old": "x", "new": "y"}, "at 2 places"},
			{"list_files", map[string]any{"path": "b.bin"}, "is a file"},
			{"share_file", map[string]any{"path": "b.bin", "expires_in": 1}, "expires_in: want 60"},
			{"revoke_link", map[string]any{"url": "http://elsewhere/x"}, "no link of this server"},
		} {
			if res := call(bad.tool, bad.args, bad.want); !res.IsError {
				t.Errorf("%s %v is no error", bad.tool, bad.args)
			}
		}
	})
}

func fetch(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// noFiles is for tests that list the tools and call none.
type noFiles struct{ FilesBackend }

func TestFileToolsGolden(t *testing.T) {
	o := testOptions(newEchoBackend())
	o.Files, o.Sets = noFiles{}, []string{SetFiles}
	for name, sets := range map[string][]string{"files": {SetFiles}, "workspace": {SetWorkspace}} {
		o.Sets = sets
		status, answer := post(t, serve(t, New(o)).URL, modern, "tools/list", nil)
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, answer)
		}
		golden(t, "tools-list-"+name+".json", []byte(indent(answer)+"\n"))
		status, answer = post(t, serve(t, New(o)).URL, modern, "server/discover", nil)
		var about struct {
			Result struct{ Instructions string }
		}
		if err := json.Unmarshal([]byte(answer), &about); err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
		for tool, want := range map[string]bool{"read_file": name == "files", "share_file": name == "workspace"} {
			if strings.Contains(about.Result.Instructions, tool) != want {
				t.Errorf("the instructions for %s, on %s: %s", name, tool, about.Result.Instructions)
			}
		}
	}
}
