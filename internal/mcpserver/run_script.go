package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"belljar/internal/access"
	"belljar/internal/job"
	"belljar/internal/sandbox"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const runScript = "run_script"

// runScriptArgs are the arguments of run_script.
type runScriptArgs struct {
	Runtime    string            `json:"runtime" jsonschema:"the script's language"`
	Script     string            `json:"script" jsonschema:"the whole script"`
	InputFiles map[string]string `json:"input_files,omitempty" jsonschema:"files for the script to read: name to content in base64; they stand in /sandbox/input, names may have directories"`
	Timeout    float64           `json:"timeout,omitempty"`
	Stdin      string            `json:"stdin,omitempty" jsonschema:"text for the script's standard input; empty if absent"`
	Wait       *float64          `json:"wait,omitempty"`
}

func addRunScript(s *mcp.Server, o Options) {
	no, open := false, !o.Network.None()
	addTool(s, o, &mcp.Tool{
		Name:  runScript,
		Title: "Run a script",
		Description: "Runs a script in a fresh Linux sandbox that is thrown away afterwards, and returns its output and the files it wrote. " +
			"The working directory is /sandbox; files written below /sandbox/output come back as links (small text files as text, pictures with a preview). " +
			"A script that fails is a normal result with its exit code and stderr.",
		Annotations: &mcp.ToolAnnotations{
			DestructiveHint: &no,
			OpenWorldHint:   &open,
		},
		InputSchema:  runScriptInput(o),
		OutputSchema: replySchema(schemaFor[sandbox.Result]("images")),
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r, wait, err := runScriptRequest(req.Params.Arguments)
		if err != nil {
			return nil, err
		}
		ctx, cancel := whileAnswerable(ctx)
		defer cancel()
		return o.carryOut(ctx, req, wait, cmp.Or(r.Timeout, o.DefaultTimeout), func(ctx context.Context, w job.Wait) (job.Reply, error) {
			return o.Backend.Run(ctx, r, w)
		})
	})
}

func runScriptInput(o Options) *jsonschema.Schema {
	s := inputFor[runScriptArgs]()
	for _, name := range o.Runtimes {
		s.Properties["runtime"].Enum = append(s.Properties["runtime"].Enum, name)
	}
	describeTimeout(s.Properties["timeout"], "script", o.DefaultTimeout, o.MaxTimeout)
	o.describeWait(s)
	return s
}

// runScriptRequest reads the arguments of a call.
func runScriptRequest(raw json.RawMessage) (r sandbox.Request, wait *float64, err error) {
	var a runScriptArgs
	err = readArguments(runScript, raw, []argument{
		{"runtime", "a string", &a.Runtime},
		{"script", "a string", &a.Script},
		{"input_files", "an object of names and base64 strings", &a.InputFiles},
		{"timeout", "a number of seconds", &a.Timeout},
		{"stdin", "a string", &a.Stdin},
		{"wait", "a number of seconds", &a.Wait},
	})
	if err != nil {
		return r, nil, err
	}
	r = sandbox.Request{
		// Until there is sign-in, every caller is the owner.
		Subject: access.Owner,
		Runtime: a.Runtime,
		Script:  a.Script,
		Stdin:   a.Stdin,
		Timeout: duration(a.Timeout),
	}
	for name, text := range sorted(a.InputFiles) {
		data, err := decodeBase64(text)
		if err != nil {
			return r, nil, &sandbox.RequestError{Message: fmt.Sprintf("input file %q: %v", name, err)}
		}
		r.Inputs = append(r.Inputs, sandbox.Input{Name: name, Data: data})
	}
	return r, a.Wait, nil
}

// duration is a number of seconds as a Duration, without overflow. Only 0
// becomes 0.
func duration(seconds float64) time.Duration {
	const most = 1e9 // seconds; more than any maximum
	d := time.Duration(min(max(seconds, -most), most) * float64(time.Second))
	if d == 0 && seconds != 0 {
		d = time.Duration(math.Copysign(1, seconds))
	}
	return d
}

// scriptOutput is what run_script says of a run that is over.
type scriptOutput struct {
	Status job.Status `json:"status"`
	sandbox.Result
}

// scriptResult shows a result in each of the ways that clients read.
func scriptResult(res *sandbox.Result) *mcp.CallToolResult {
	structured := scriptOutput{job.Exited, *res}
	structured.Images = nil
	out := answer(resultText(res), structured)
	for _, img := range res.Images {
		out.Content = append(out.Content, &mcp.ImageContent{Data: img.Data, MIMEType: img.MIME})
	}
	for _, f := range res.OutputFiles {
		if f.URL == "" {
			continue
		}
		size := f.Bytes
		out.Content = append(out.Content, &mcp.ResourceLink{
			URI:         f.URL,
			Name:        f.Name,
			MIMEType:    f.MIME,
			Size:        &size,
			Description: "expires in " + inWords(f.ExpiresIn),
		})
	}
	return out
}

// resultText says all of a result for a model to read.
func resultText(res *sandbox.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exit code %d after %.2f s", res.ReturnCode, float64(res.DurationMS)/1000)
	if res.Error != "" {
		fmt.Fprintf(&b, ": %s", res.Error)
	}
	b.WriteString("\n")
	section(&b, "stdout", res.Stdout)
	section(&b, "stderr", res.Stderr)
	deniedSection(&b, res.NetworkDenied)
	fileList(&b, res)
	if len(res.Notes) > 0 {
		b.WriteString("\n")
	}
	notes(&b, res.Notes)
	return b.String()
}

// fileList says of each output file what it is and where, and whether one of
// the pictures that follow shows it.
func fileList(b *strings.Builder, res *sandbox.Result) {
	if len(res.OutputFiles) == 0 {
		return
	}
	b.WriteString("\noutput files:\n")
	previews := map[string]string{}
	for _, img := range res.Images {
		previews[img.Name] = ", shown below"
		if img.Part != "" {
			previews[img.Name] = ", " + img.Part + " shown below"
		}
	}
	for _, f := range res.OutputFiles {
		if f.Bytes == 0 {
			fmt.Fprintf(b, "- %s (empty)\n", sandbox.Printable(f.Name))
			continue
		}
		fmt.Fprintf(b, "- %s (%s, %d bytes%s)", sandbox.Printable(f.Name), f.MIME, f.Bytes, previews[f.Name])
		switch {
		case f.Text != nil:
			fmt.Fprintf(b, ":\n%s\n", strings.TrimSuffix(*f.Text, "\n"))
		default:
			fmt.Fprintf(b, ": %s (expires in %s)\n", f.URL, inWords(f.ExpiresIn))
		}
	}
}

// deniedSection lists what the network has refused.
func deniedSection(b *strings.Builder, denied []string) {
	if len(denied) > 0 {
		section(b, "denied on the network", "- "+strings.Join(denied, "\n- "))
	}
}

func section(b *strings.Builder, title, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(b, "\n%s:\n%s", title, text)
	if !strings.HasSuffix(text, "\n") {
		b.WriteString("\n")
	}
}

// inWords prints a number of seconds as people say it, rounded down: a
// promise of less than is kept.
func inWords(seconds int64) string {
	switch {
	case seconds >= 2*24*3600:
		return fmt.Sprintf("%d days", seconds/(24*3600))
	case seconds >= 2*3600:
		return fmt.Sprintf("%d hours", seconds/3600)
	case seconds >= 2*60:
		return fmt.Sprintf("%d min", seconds/60)
	}
	return fmt.Sprintf("%d s", seconds)
}
