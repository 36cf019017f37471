package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
	"belljar/internal/job"
	"belljar/internal/job/jobtest"
	"belljar/internal/lang"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestMain(m *testing.M) {
	agent.RunHelper()
	os.Exit(m.Run())
}

// inMemory returns options for a server on a real sandbox manager with the
// in-memory engine.
func inMemory(t *testing.T) Options {
	t.Helper()
	o, _ := inMemoryOn(t, enginetest.NewMemory(t), &jobtest.Memory{})
	return o
}

// inMemoryOn is inMemory on an engine and a store that may have been used
// before. stop ends what else stands on them.
func inMemoryOn(t *testing.T, e *enginetest.Memory, records job.Store) (o Options, stop func()) {
	t.Helper()
	table, err := lang.Load()
	if err != nil {
		t.Fatal(err)
	}
	store, err := artifact.Open(t.Context(), indextest.NewMemory(), artifact.Options{Dir: t.TempDir(), BaseURL: "http://host"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	limits := engine.Limits{Memory: 1 << 30, CPUs: 1, PIDs: 100, Tmp: 1 << 20, Disk: 1 << 30, Inodes: 1000}
	m, err := sandbox.New(sandbox.Options{
		Engine: e, Store: store, Table: table, ServerID: "s", Image: "mini", Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	workspaces, err := workspace.Open(t.Context(), workspace.Options{
		Engine: e, ServerID: "s", Image: func() string { return "mini" }, Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	desk, err := job.Open(t.Context(), job.Options{Runs: m, Workspaces: workspaces, Store: records})
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		m.Close(context.Background())
		desk.Close()
		workspaces.Close()
	})
	t.Cleanup(stop)
	o = testOptions(deskBackend{desk, m, workspaces})
	o.Runtimes = table.Names()
	return o, stop
}

// deskBackend is a desk, with what it stands on.
type deskBackend struct {
	*job.Desk
	runs       *sandbox.Manager
	workspaces *workspace.Manager
}

func (b deskBackend) ListSandboxes(_ context.Context, s access.Subject) ([]workspace.Info, error) {
	return b.workspaces.List(s), nil
}

func (b deskBackend) CreateSandbox(ctx context.Context, s access.Subject, name, image string) (workspace.Info, error) {
	return b.workspaces.Create(ctx, s, name, image)
}

func (b deskBackend) StopSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) (workspace.Info, error) {
	return b.workspaces.Stop(ctx, s, name, endJobs)
}

func (b deskBackend) RebuildSandbox(ctx context.Context, s access.Subject, name, image string, endJobs bool) (workspace.Info, error) {
	return b.workspaces.Rebuild(ctx, s, name, image, endJobs)
}

func (b deskBackend) DeleteSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) error {
	return b.workspaces.Delete(ctx, s, name, endJobs)
}

func (b deskBackend) Runtimes(ctx context.Context) ([]sandbox.RuntimeInfo, error) {
	return b.runs.Runtimes(ctx)
}

// A script runs in a real sandbox of the in-memory engine, and what comes
// back is what the schemas promise.
func TestThroughSandbox(t *testing.T) {
	eachTransport(t, inMemory(t), nil, func(t *testing.T, s *mcp.ClientSession) {
		schemas := map[string]any{}
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			schemas[tool.Name] = tool.OutputSchema
		}
		for _, call := range []struct {
			tool string
			args map[string]any
			want []string
		}{
			{"run_script", map[string]any{
				"runtime": "bash", "script": "cat input/in.txt; head -c 5000 /dev/zero >output/big; echo 1 >output/small",
				"input_files": map[string]any{"in.txt": "Z2l2 ZW4"},
			}, []string{"exit code 0", "stdout:\ngiven\n", "- big (application/octet-stream, 5000 bytes): http://host/", "- small (text/plain, 2 bytes):\n1\n"}},
			{"run_script", map[string]any{"runtime": "bash", "script": "echo no >&2; exit 7"}, []string{"exit code 7", "stderr:\nno\n"}},
			{"execute", map[string]any{"command": "echo out; cat; exit 3", "stdin": "in\n", "timeout": 20},
				[]string{"exit code 3", "stdout:\nout\nin\n"}},
			{"execute", map[string]any{"command": "echo $GREETING >kept; pwd; sleep 100", "env": map[string]any{"GREETING": "hi"}, "wait": 3},
				[]string{"status: running", "it goes on as job job-", "stdout so far:\n/"}},
			{"execute", map[string]any{"command": "cat kept"}, []string{"exit code 0", "stdout:\nhi\n"}},
			{"job_list", nil, []string{"running", "in default: cat kept"}},
			{"sandbox_create", map[string]any{"name": "other-" + strings.ToLower(rand.Text())}, []string{"stopped, image mini"}},
			{"sandbox_list", nil, []string{"default: running, image mini", "other-"}},
			{"sandbox_stop", map[string]any{"name": "default", "end_jobs": true}, []string{"default: stopped"}},
			{"sandbox_rebuild", map[string]any{"name": "default"}, []string{"default: stopped, image mini"}},
			{"sandbox_delete", map[string]any{"name": "default"}, []string{"deleted default"}},
			{"list_runtimes", nil, []string{"bash: Bash, version 5.", "limits of a run: memory 1024 MiB"}},
		} {
			res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: call.tool, Arguments: call.args})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range call.want {
				if text := textOf(t, res); res.IsError || !strings.Contains(text, want) {
					t.Errorf("%s: %q is not in %q", call.tool, want, text)
				}
			}
			if err := validate(schemas[call.tool], res.StructuredContent); err != nil {
				t.Errorf("%s: %v", call.tool, err)
			}
		}
	})
}

// However many files a script writes, and whatever it calls them, the answer
// is one that clients take.
func TestManyFiles(t *testing.T) {
	o := inMemory(t)
	for name, tc := range map[string]struct {
		script string
		most   int // bytes of the answer
	}{
		"many":       {`for i in {1..500}; do head -c $((i*10)) /dev/zero >output/data-$i.bin; done`, 60 << 10},
		"many small": {`for i in {1..500}; do echo $i >output/data-$i.txt; done`, 60 << 10},
		"odd names": {`n=$(printf '\001"%.0s' {1..120}); mkdir -p output/$n/$n; for i in {100..299}; do echo >output/$n/$n/$i; echo >output/$i$n; done`,
			150 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := post(t, serve(t, New(o)).URL, modern, "tools/call", map[string]any{
				"name": "run_script", "arguments": map[string]any{"runtime": "bash", "script": tc.script},
			})
			if status != http.StatusOK || len(answer) > tc.most {
				t.Errorf("status %d, %d bytes, want up to %d: %.500s", status, len(answer), tc.most, answer)
			}
			var call struct {
				Result struct {
					Content           []struct{ Type, Text string }
					StructuredContent sandbox.Result
				}
			}
			if err := json.Unmarshal([]byte(answer), &call); err != nil {
				t.Fatal(err)
			}
			r := call.Result
			t.Logf("%d bytes of answer, %d of text, %d files, %d content blocks", len(answer), len(r.Content[0].Text), len(r.StructuredContent.OutputFiles), len(r.Content))
			if text := r.Content[0].Text; !strings.Contains(text, "- output_files.json (application/json, ") || !strings.Contains(text, "output files are not listed here; all are listed in output_files.json") {
				t.Errorf("the text: %.500s", text)
			}
		})
	}
}

// validate checks a value against a schema, both as a client has them.
func validate(schema, value any) error {
	data, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		return err
	}
	return resolved.Validate(value)
}
