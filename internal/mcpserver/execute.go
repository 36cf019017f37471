package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"

	"belljar/internal/access"
	"belljar/internal/job"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const execute = "execute"

// executeArgs are the arguments of execute.
type executeArgs struct {
	Command     string            `json:"command" jsonschema:"for bash; may have several lines"`
	Timeout     float64           `json:"timeout,omitempty"`
	Wait        *float64          `json:"wait,omitempty"`
	Sandbox     string            `json:"sandbox,omitempty" jsonschema:"name of the sandbox; default if absent"`
	Dir         string            `json:"cwd,omitempty" jsonschema:"where to start; /sandbox if absent"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"variables to set"`
	Stdin       *string           `json:"stdin,omitempty" jsonschema:"text for standard input; it is empty if absent"`
	Interactive bool              `json:"interactive,omitempty" jsonschema:"leave standard input open, for job_input"`
}

func addExecute(s *mcp.Server, o Options) {
	yes := true
	addTool(s, o, &mcp.Tool{
		Name:  execute,
		Title: "Execute a command",
		Description: "Runs a bash command as root in a Linux machine that persists: files and installed packages stay. " +
			"Starts in /sandbox, in a new bash each time. A command that fails is a normal result.",
		Annotations: &mcp.ToolAnnotations{
			DestructiveHint: &yes,
			OpenWorldHint:   &yes,
		},
		InputSchema:  executeInput(o),
		OutputSchema: replySchema(schemaFor[commandOutput]()),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r, wait, err := executeRequest(req.Params.Arguments)
		if err != nil {
			return nil, err
		}
		return o.carryOut(ctx, req, wait, cmp.Or(r.Timeout, o.CommandTimeout), func(ctx context.Context, w job.Wait) (job.Reply, error) {
			return o.Backend.Execute(ctx, r, w)
		})
	})
}

func executeInput(o Options) *jsonschema.Schema {
	s := inputFor[executeArgs]()
	describeTimeout(s.Properties["timeout"], "command", o.CommandTimeout, o.MaxCommandTimeout)
	o.describeWait(s)
	if !o.has(SetJobs) {
		delete(s.Properties, "interactive")
	}
	return s
}

func executeRequest(raw json.RawMessage) (r job.CommandRequest, wait *float64, err error) {
	var a executeArgs
	err = readArguments(execute, raw, []argument{
		{"command", "a string", &a.Command},
		{"timeout", "a number of seconds", &a.Timeout},
		{"wait", "a number of seconds", &a.Wait},
		{"sandbox", "a string", &a.Sandbox},
		{"cwd", "a string", &a.Dir},
		{"env", "an object of names and strings", &a.Env},
		{"stdin", "a string", &a.Stdin},
		{"interactive", "true or false", &a.Interactive},
	})
	if err != nil {
		return r, nil, err
	}
	return job.CommandRequest{
		Subject: access.Owner, Command: a.Command, Sandbox: a.Sandbox, Dir: a.Dir, Env: a.Env,
		Stdin: a.Stdin, Interactive: a.Interactive, Timeout: duration(a.Timeout),
	}, a.Wait, nil
}
