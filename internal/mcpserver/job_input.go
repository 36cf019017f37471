package mcpserver

import (
	"context"
	"fmt"

	"belljar/internal/access"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const jobInput = "job_input"

type jobInputArgs struct {
	JobID string `json:"job_id"`
	Text  string `json:"text" jsonschema:"as typed, with its line ends"`
	Close bool   `json:"close,omitempty" jsonschema:"nothing follows: close standard input behind the text"`
}

type inputOutput struct {
	Taken int64 `json:"bytes_taken" jsonschema:"how many bytes of the text its pipe took"`
}

func addJobInput(s *mcp.Server, o Options) {
	no := false
	addTool(s, o, &mcp.Tool{
		Name:         jobInput,
		Title:        "Write to a job",
		Description:  "Writes text to the standard input of a command that was begun with interactive: true.",
		Annotations:  &mcp.ToolAnnotations{OpenWorldHint: &no},
		InputSchema:  schemaFor[jobInputArgs](),
		OutputSchema: schemaFor[inputOutput](),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var a jobInputArgs
		err := readArguments(jobInput, req.Params.Arguments, []argument{
			{"job_id", "a string", &a.JobID},
			{"text", "a string", &a.Text},
			{"close", "true or false", &a.Close},
		})
		if err != nil {
			return nil, err
		}
		n, err := o.Backend.Input(ctx, access.Owner, a.JobID, a.Text, a.Close)
		if err != nil {
			return nil, err
		}
		text := fmt.Sprintf("%d bytes written", n)
		if n < int64(len(a.Text)) {
			text = fmt.Sprintf("the command took %d of %d bytes: it does not read on now", n, len(a.Text))
		}
		return answer(text, inputOutput{n}), nil
	})
}
