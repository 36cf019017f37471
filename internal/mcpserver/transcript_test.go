package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testOptions are those of every server here; a test may change them.
func testOptions(b Backend) Options {
	return Options{
		Backend:        b,
		Version:        "1.2.3",
		Runtimes:       []string{"echo", "r"},
		DefaultTimeout: time.Minute,
		MaxTimeout:     5 * time.Minute,
	}
}

func serve(t *testing.T, s *mcp.Server) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(Handler(s, 0))
	t.Cleanup(srv.Close)
	return srv
}

const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// post sends one JSON-RPC request as a client of that protocol version does,
// and returns the status and the JSON-RPC answer.
func post(t *testing.T, url, version, method string, params map[string]any) (int, string) {
	t.Helper()
	res, err := http.DefaultClient.Do(request(t, url, version, method, params))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer strings.Builder
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if res.Header.Get("Content-Type") != "text/event-stream" {
			answer.WriteString(line)
		} else if data, ok := strings.CutPrefix(line, "data: "); ok {
			answer.WriteString(data)
		}
	}
	return res.StatusCode, answer.String()
}

// request is a call as a client of that version makes it.
func request(t *testing.T, url, version, method string, params map[string]any) *http.Request {
	t.Helper()
	if params = maps.Clone(params); params == nil {
		params = map[string]any{}
	}
	header := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json, text/event-stream"},
	}
	if method != "initialize" {
		header.Set("MCP-Protocol-Version", version)
	}
	if version == modern {
		if params["_meta"] == nil {
			params["_meta"] = modernMeta(map[string]any{})
		}
		header.Set("Mcp-Method", method)
		if id, ok := params["taskId"].(string); ok {
			header.Set("Mcp-Name", id)
		}
		if name, ok := params["name"].(string); ok {
			header.Set("Mcp-Name", name)
		}
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	return req
}

// modernMeta is what a client with these capabilities says of itself in every
// request.
func modernMeta(capabilities map[string]any) map[string]any {
	return map[string]any{
		"io.modelcontextprotocol/protocolVersion":    modern,
		"io.modelcontextprotocol/clientCapabilities": capabilities,
	}
}

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not as it was; -update if that is meant (-want +got):\n%s", file, diff)
	}
}

// indent prints JSON with a key a line. Text that is no JSON stays.
func indent(text string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(text), "", "  ") != nil {
		return text
	}
	return b.String()
}

func TestToolsListGolden(t *testing.T) {
	srv := serve(t, New(testOptions(newEchoBackend())))
	for _, version := range []string{legacy, modern} {
		status, answer := post(t, srv.URL, version, "tools/list", nil)
		if status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", version, status, answer)
		}
		golden(t, "tools-list-"+version+".json", []byte(indent(answer)+"\n"))
	}
}

func TestTranscripts(t *testing.T) {
	call := func(tool string, args map[string]any) map[string]any {
		return map[string]any{"name": tool, "arguments": args}
	}
	script := func(text string) map[string]any {
		return call("run_script", map[string]any{"runtime": "echo", "script": text})
	}
	exchanges := []struct {
		method string
		params map[string]any
	}{
		{"tools/call", script("print hello")},
		{"tools/call", script("picture")},
		{"tools/call", script("fail")},
		{"tools/call", call("run_script", map[string]any{"runtime": "cobol", "script": "x"})},
		{"tools/call", call("run_script", map[string]any{"runtime": "echo", "script": "x", "timeout": "soon"})},
		{"tools/call", call("list_runtimes", map[string]any{})},
		{"tools/call", call("nonesuch", map[string]any{})},
		{"resources/list", nil},
	}
	first := map[string]map[string]any{
		"initialize": {
			"protocolVersion": legacy,
			"capabilities":    map[string]any{},
			"clientInfo":      map[string]any{"name": "test", "version": "1"},
		},
		"server/discover": nil,
	}
	srv := serve(t, New(testOptions(newEchoBackend())))
	for version, hello := range map[string]string{legacy: "initialize", modern: "server/discover"} {
		var b strings.Builder
		record := func(method string, params map[string]any) {
			shown, err := json.Marshal(params)
			if err != nil {
				t.Fatal(err)
			}
			status, answer := post(t, srv.URL, version, method, params)
			fmt.Fprintf(&b, "> %s %s\n< %d\n%s\n\n", method, shown, status, indent(answer))
		}
		record(hello, first[hello])
		for _, e := range exchanges {
			record(e.method, e.params)
		}
		golden(t, "transcript-"+version+".txt", []byte(b.String()))
	}
}

func TestOtherMethodsAreRefused(t *testing.T) {
	srv := serve(t, New(testOptions(newEchoBackend())))
	for _, method := range []string{"GET", "DELETE"} {
		req, _ := http.NewRequestWithContext(t.Context(), method, srv.URL, nil)
		req.Header.Set("Accept", "text/event-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST" {
			t.Errorf("%s: status %d, Allow %q", method, res.StatusCode, res.Header.Get("Allow"))
		}
	}
}
