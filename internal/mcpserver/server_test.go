package mcpserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// eachTransport runs a test with the SDK's client: over HTTP in both eras,
// and in memory.
func eachTransport(t *testing.T, o Options, client *mcp.ClientOptions, test func(*testing.T, *mcp.ClientSession)) {
	connect := func(t *testing.T, transport mcp.Transport, version string) {
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, client)
		session, err := c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		test(t, session)
	}
	for _, version := range []string{legacy, modern} {
		t.Run("http "+version, func(t *testing.T) {
			srv := serve(t, New(o))
			connect(t, &mcp.StreamableClientTransport{Endpoint: srv.URL, DisableStandaloneSSE: true}, version)
		})
	}
	t.Run("memory", func(t *testing.T) {
		ours, theirs := mcp.NewInMemoryTransports()
		session, err := New(o).Connect(t.Context(), ours, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		connect(t, theirs, "")
	})
}

func run(t *testing.T, s *mcp.ClientSession, args map[string]any) *mcp.CallToolResult {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_script", Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// textOf is the one text block of a result.
func textOf(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	var texts []string
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	if len(texts) != 1 {
		t.Fatalf("%d text blocks, want 1: %q", len(texts), texts)
	}
	return texts[0]
}

func TestClients(t *testing.T) {
	eachTransport(t, testOptions(newEchoBackend()), nil, func(t *testing.T, s *mcp.ClientSession) {
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if diff := cmp.Diff([]string{"execute", "job_input", "job_kill", "job_list", "job_output", "job_wait", "list_runtimes", "run_script", "sandbox_create", "sandbox_delete", "sandbox_list", "sandbox_rebuild", "sandbox_stop"}, names); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		res := run(t, s, map[string]any{"runtime": "echo", "script": "print out:", "stdin": "in", "timeout": 1.5})
		if res.IsError || !strings.Contains(textOf(t, res), "out:in") {
			t.Errorf("run: %+v, %s", res, textOf(t, res))
		}
		structured := res.StructuredContent.(map[string]any)
		if structured["stdout"] != "out:in" || structured["success"] != true {
			t.Errorf("structured: %v", structured)
		}
		if limits := structured["limits"].(map[string]any); limits["timeout_seconds"] != 1.5 {
			t.Errorf("limits: %v", limits)
		}
	})
}

// A picture comes as an image block and a link, its bytes never in the
// structured content or the text.
func TestPictures(t *testing.T) {
	picture := []byte("\x89PNG picture")
	eachTransport(t, testOptions(newEchoBackend()), nil, func(t *testing.T, s *mcp.ClientSession) {
		res := run(t, s, map[string]any{"runtime": "echo", "script": "picture"})
		var kinds []string
		for _, c := range res.Content {
			switch c := c.(type) {
			case *mcp.TextContent:
				kinds = append(kinds, "text")
			case *mcp.ImageContent:
				kinds = append(kinds, "image")
				if !bytes.Equal(c.Data, picture) || c.MIMEType != "image/png" {
					t.Errorf("image block: %+v", c)
				}
			case *mcp.ResourceLink:
				kinds = append(kinds, "link "+c.URI)
			}
		}
		want := []string{"text", "image", "link http://host/sandbox-out/TOKEN/plot.png"}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("content (-want +got):\n%s", diff)
		}
		structured, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{string(structured), textOf(t, res)} {
			if strings.Contains(text, base64.StdEncoding.EncodeToString(picture)) || strings.Contains(text, "images") {
				t.Errorf("the picture's bytes are in %s", text)
			}
			for _, need := range []string{"TOKEN/plot.png", "3600|60 min", "a,b", "3 more files", "data.csv"} {
				if !regexp.MustCompile(need).MatchString(text) {
					t.Errorf("%q is not in %s", need, text)
				}
			}
		}
	})
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		args map[string]any
		want string
	}{
		{"runtime", map[string]any{"runtime": "cobol", "script": "x"}, `unknown runtime "cobol"; known are echo`},
		{"unknown argument", map[string]any{"runtime": "echo", "script": "x", "file": 1}, `unknown argument "file"; run_script takes runtime, script, input_files, timeout, stdin, wait`},
		{"case of an argument", map[string]any{"Runtime": "echo"}, `unknown argument "Runtime"`},
		{"string for a number", map[string]any{"runtime": "echo", "script": "x", "timeout": "60"}, `argument "timeout": want a number of seconds`},
		{"number for a string", map[string]any{"runtime": "echo", "script": 1}, `argument "script": want a string`},
		{"array for files", map[string]any{"runtime": "echo", "script": "x", "input_files": []string{"a"}}, `argument "input_files": want an object`},
		{"base64", map[string]any{"runtime": "echo", "script": "inputs", "input_files": map[string]any{"ok": "YQ==", "bad.csv": "a b*c"}}, `input file "bad.csv": the content is not base64`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachTransport(t, testOptions(newEchoBackend()), nil, func(t *testing.T, s *mcp.ClientSession) {
				res := run(t, s, tc.args)
				if text := textOf(t, res); !res.IsError || !strings.Contains(text, tc.want) {
					t.Errorf("isError %v, text %q, want %q", res.IsError, text, tc.want)
				}
			})
		})
	}
}

func TestScriptFailureIsNoError(t *testing.T) {
	eachTransport(t, testOptions(newEchoBackend()), nil, func(t *testing.T, s *mcp.ClientSession) {
		res := run(t, s, map[string]any{"runtime": "echo", "script": "fail"})
		if text := textOf(t, res); res.IsError || !strings.Contains(text, "exit code 1") || !strings.Contains(text, "Traceback") {
			t.Errorf("isError %v, text %q", res.IsError, text)
		}
	})
}

func TestInternalErrorsStayInside(t *testing.T) {
	var log bytes.Buffer
	o := testOptions(newEchoBackend())
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	eachTransport(t, o, nil, func(t *testing.T, s *mcp.ClientSession) {
		log.Reset()
		res := run(t, s, map[string]any{"runtime": "echo", "script": "break"})
		text := textOf(t, res)
		id := regexp.MustCompile(`^internal error, id ([A-Z2-7]{8});`).FindStringSubmatch(text)
		if !res.IsError || id == nil || strings.Contains(text, "secret") {
			t.Fatalf("isError %v, text %q", res.IsError, text)
		}
		if !strings.Contains(log.String(), id[1]) || !strings.Contains(log.String(), "secret.sock") {
			t.Errorf("log: %s", log.String())
		}
	})
}

func TestListRuntimes(t *testing.T) {
	eachTransport(t, testOptions(newEchoBackend()), nil, func(t *testing.T, s *mcp.ClientSession) {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_runtimes"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"echo: Echo, version 1.0", "loud 2.1", "r (R): not available: Rscript is not installed", "memory 2048 MiB"} {
			if !strings.Contains(textOf(t, res), want) {
				t.Errorf("%q is not in %s", want, textOf(t, res))
			}
		}
		if n := len(res.StructuredContent.(map[string]any)["runtimes"].([]any)); n != 2 {
			t.Errorf("%d runtimes", n)
		}
	})
}

func TestProgress(t *testing.T) {
	got := make(chan *mcp.ProgressNotificationParams, 100)
	o := testOptions(newEchoBackend())
	client := &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			select {
			case got <- req.Params:
			default:
			}
		},
	}
	eachTransport(t, o, client, func(t *testing.T, s *mcp.ClientSession) {
		params := &mcp.CallToolParams{Name: "run_script", Arguments: map[string]any{"runtime": "echo", "script": "print x"}}
		params.SetProgressToken("t1")
		if _, err := s.CallTool(t.Context(), params); err != nil {
			t.Fatal(err)
		}
		select {
		case p := <-got:
			if p.ProgressToken != "t1" || p.Progress <= 0 || p.Message != "running for 1 s of 60 s at most: half of it" {
				t.Errorf("progress: %+v", p)
			}
		case <-time.After(10 * time.Second):
			t.Error("no progress notice")
		}
	})
}

// A client that goes away ends its call, whatever its protocol.
func TestDisconnectCancels(t *testing.T) {
	for _, version := range []string{legacy, modern} {
		t.Run(version, func(t *testing.T) {
			b := newEchoBackend()
			srv := serve(t, New(testOptions(b)))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-b.hanging
				cancel()
			}()
			args := map[string]any{"runtime": "echo", "script": "hang"}
			req := request(t, srv.URL, version, "tools/call", map[string]any{"name": "run_script", "arguments": args})
			if resp, err := http.DefaultClient.Do(req.WithContext(ctx)); err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil {
					t.Error("the call was answered")
				}
			}
			select {
			case err := <-b.ended:
				if err != context.Canceled {
					t.Errorf("the run ended with %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the run goes on without a client")
			}
		})
	}
}

func TestLargeInputs(t *testing.T) {
	srv := serve(t, New(testOptions(newEchoBackend())))
	call := func(bytes int) map[string]any {
		data := base64.StdEncoding.EncodeToString(make([]byte, bytes))
		args := map[string]any{"runtime": "echo", "script": "inputs", "input_files": map[string]any{"zero": data}}
		return map[string]any{"name": "run_script", "arguments": args}
	}
	// Twice what the SDK takes by default.
	status, answer := post(t, srv.URL, modern, "tools/call", call(8<<20))
	if status != http.StatusOK || !strings.Contains(answer, "zero: 8388608 bytes") {
		t.Errorf("8 MiB of inputs: status %d, %.300s", status, answer)
	}

	small := httptest.NewServer(Handler(New(testOptions(newEchoBackend())), 1<<20))
	defer small.Close()
	status, answer = post(t, small.URL, modern, "tools/call", call(1<<20))
	if status != http.StatusRequestEntityTooLarge {
		t.Errorf("above the limit: status %d, %.300s", status, answer)
	}
}
