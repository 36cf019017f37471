package mcpserver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"belljar/internal/job"
	"belljar/internal/sandbox"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// runningOutput is what a tool says of a job that goes on.
type runningOutput struct {
	Status    job.Status `json:"status" jsonschema:"running, or exited"`
	JobID     string     `json:"job_id" jsonschema:"names the job for job_wait, job_output, job_kill"`
	Stdout    string     `json:"stdout"`
	Stderr    string     `json:"stderr"`
	ElapsedMS int64      `json:"elapsed_ms" jsonschema:"how long a running job has run"`
}

// commandOutput is what a tool says of a command that is over.
type commandOutput struct {
	Status job.Status `json:"status"`
	JobID  string     `json:"job_id"`
	job.Result
}

// replySchema is the schema of a tool whose job may go on: the properties of
// its result, none of which is there in that case but the output so far.
func replySchema(s *jsonschema.Schema) *jsonschema.Schema {
	running := schemaFor[runningOutput]()
	for _, name := range running.PropertyOrder {
		if s.Properties[name] == nil {
			s.Properties[name] = running.Properties[name]
			s.PropertyOrder = append(s.PropertyOrder, name)
		}
	}
	s.Properties["status"].Enum = []any{job.Running, job.Exited}
	s.Required = []string{"status"}
	return s
}

// anyReplySchema is the schema of a tool that returns what the tool of a job's
// kind would: the properties of both.
func anyReplySchema() *jsonschema.Schema {
	s := replySchema(schemaFor[commandOutput]())
	script := schemaFor[sandbox.Result]("images")
	for _, name := range script.PropertyOrder {
		if s.Properties[name] == nil {
			s.Properties[name] = script.Properties[name]
			s.PropertyOrder = append(s.PropertyOrder, name)
		}
	}
	s.Properties["limits"] = &jsonschema.Schema{Type: "object", Description: "what bounded it, as read back from the kernel"}
	return s
}

// replyResult shows a reply in each of the ways that clients read.
func (o Options) replyResult(r job.Reply) *mcp.CallToolResult {
	switch {
	case r.Script != nil:
		return scriptResult(r.Script)
	case r.Command != nil:
		return answer(commandText(r.Command), commandOutput{r.Status, r.ID, *r.Command})
	}
	return answer(o.runningText(r), runningOutput{
		Status: r.Status, JobID: r.ID, Stdout: r.Stdout, Stderr: r.Stderr, ElapsedMS: r.Elapsed.Milliseconds(),
	})
}

func commandText(r *job.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exit code %d after %.2f s", r.ExitCode, float64(r.DurationMS)/1000)
	if r.Error != "" {
		fmt.Fprintf(&b, ": %s", r.Error)
	}
	b.WriteString("\n")
	section(&b, "stdout", r.Stdout)
	section(&b, "stderr", r.Stderr)
	deniedSection(&b, r.NetworkDenied)
	if len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	notes(&b, r.Notes)
	return b.String()
}

func (o Options) runningText(r job.Reply) string {
	var b strings.Builder
	fmt.Fprintf(&b, "status: running, for %.0f s so far; it goes on as job %s\n", r.Elapsed.Seconds(), r.ID)
	if o.has(SetJobs) {
		b.WriteString("job_wait waits for its end, job_output reads on, job_kill ends it")
		if r.Interactive {
			b.WriteString(", job_input answers it")
		}
		b.WriteString(".\n")
	}
	section(&b, "stdout so far", r.Stdout)
	section(&b, "stderr so far", r.Stderr)
	return b.String()
}

// wait makes the wait of a call out of its argument, with notices of progress
// if the call asked for them: clients take silence for a dead server. timeout
// is the job's own.
func (o Options) wait(ctx context.Context, req *mcp.CallToolRequest, seconds *float64, timeout time.Duration) (job.Wait, error) {
	w := job.Wait{For: o.Wait}
	switch {
	case seconds != nil && *seconds < 0:
		return w, refuse("wait %g: want 0 or more seconds", *seconds)
	case seconds != nil:
		w.For = duration(*seconds)
	case !o.has(SetJobs):
		w.For = math.MaxInt64 // there is no other way to learn of its end
	}
	token := req.Params.GetProgressToken()
	if token == nil {
		return w, nil
	}
	gone := false
	w.Every = o.ProgressEvery
	w.Tell = func(p job.Progress) {
		if gone {
			return
		}
		gone = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: p.Elapsed.Seconds(), Message: progressText(p, timeout),
		}) != nil
	}
	return w, nil
}

// progressText says how far a job is. limit is its timeout, if p has none.
func progressText(p job.Progress, limit time.Duration) string {
	text := fmt.Sprintf("running for %.0f s", p.Elapsed.Seconds())
	if limit := cmp.Or(p.Limit, limit); limit > 0 {
		text += fmt.Sprintf(" of %.0f s at most", limit.Seconds())
	}
	if p.Line != "" {
		text += ": " + p.Line
	}
	return text
}

// describeWait fills in what the argument wait is, or takes it away where a
// call always waits.
func (o Options) describeWait(s *jsonschema.Schema) {
	if !o.has(SetJobs) {
		delete(s.Properties, "wait")
		return
	}
	w := s.Properties["wait"]
	w.Description = fmt.Sprintf("seconds until this call answers with what there is; the work goes on; %g if absent", o.Wait.Seconds())
	w.Minimum = new(float64)
}

func describeTimeout(s *jsonschema.Schema, of string, usual, most time.Duration) {
	s.Description = fmt.Sprintf("seconds until the %s is ended; %g if absent, %g at most", of, usual.Seconds(), most.Seconds())
	s.ExclusiveMinimum = new(float64)
	if most := most.Seconds(); most > 0 {
		s.Maximum = &most
	}
}
