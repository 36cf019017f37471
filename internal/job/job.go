// Package job is where work is asked for and looked after: commands in
// workspaces, and runs of scripts. Each is a job, known by an identifier, which
// outlives the call that began it: a call waits for a bounded time, and others
// wait on, read, answer and end what goes on.
//
// A command's job outlives the server too. It is noted before it begins; the
// agent in the workspace keeps it, and a Desk that is opened later follows it
// to its end.
package job

import (
	"encoding/json"
	"time"

	"belljar/internal/engine"
	"belljar/internal/sandbox"
)

// Kind is what a job does.
type Kind string

// The kinds of jobs.
const (
	Command Kind = "command" // in a workspace
	Script  Kind = "script"  // in a sandbox of its own
)

// Status is whether a job is over.
type Status string

// The states of a job.
const (
	Running Status = "running"
	Exited  Status = "exited"
)

// A Job is what a list says of one.
type Job struct {
	ID      string    `json:"job_id"`
	Kind    Kind      `json:"kind"`
	Status  Status    `json:"status"`
	Title   string    `json:"title" jsonschema:"the beginning of the command or the script's runtime"`
	Sandbox string    `json:"sandbox,omitempty" jsonschema:"name of the sandbox that a command runs in"`
	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds" jsonschema:"how long it has run"`
}

// A Reply is what a call learns of a job: that it goes on, or how it ended.
type Reply struct {
	ID     string `json:"job_id"`
	Kind   Kind   `json:"kind"`
	Status Status `json:"status"`
	// Of a job that goes on: what it has printed so far, shortened as in a
	// result, and how long it has run.
	Stdout  string        `json:"stdout,omitempty"`
	Stderr  string        `json:"stderr,omitempty"`
	Elapsed time.Duration `json:"elapsed,omitempty"`
	// Interactive is whether it can be written to.
	Interactive bool `json:"interactive,omitempty"`
	// Of one that is over: one of the two.
	Command *Result         `json:"command,omitempty"`
	Script  *sandbox.Result `json:"script,omitempty"`
}

// Result is what came of a command. One that fails is a result like any other.
type Result struct {
	ExitCode   int    `json:"exit_code" jsonschema:"128+n after signal n, 124 after a timeout"`
	TimedOut   bool   `json:"timed_out" jsonschema:"the command was ended at its time limit"`
	Stdout     string `json:"stdout" jsonschema:"standard output; if too long, the middle is cut"`
	Stderr     string `json:"stderr" jsonschema:"standard error; if too long, the middle is cut"`
	DurationMS int64  `json:"duration_ms"`
	// NetworkDenied is what the workspace's network refused meanwhile.
	NetworkDenied []string `json:"network_denied,omitempty" jsonschema:"connections that the sandbox's network refused meanwhile, each with the rule"`
	// Notes say in words what was cut and where all of it is.
	Notes  []string `json:"notes,omitempty" jsonschema:"what was cut, and where all of it is"`
	Limits Limits   `json:"limits" jsonschema:"what bounds the sandbox, as read back from the kernel"`
	// Error says why the command failed where more is known than its exit code.
	Error string `json:"error,omitempty" jsonschema:"why the command failed, where more is known than its exit code"`
}

// Limits is what bounded a command.
type Limits struct {
	engine.Receipt
	TimeoutSeconds float64 `json:"timeout_seconds"`
	OutputBytes    int64   `json:"output_bytes" jsonschema:"of stdout and of stderr, in this result"`
	LogBytes       int64   `json:"log_bytes" jsonschema:"of the full stdout and stderr, as files in the sandbox"`
}

// Output is what a job has printed since a cursor.
type Output struct {
	Status Status `json:"status"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Missing is how many bytes before those given could not be had any more.
	Missing int64 `json:"missing_bytes,omitempty" jsonschema:"how many bytes before these are not kept"`
	// Cursor is to be given to read on.
	Cursor string `json:"cursor" jsonschema:"give it as since to read on from here"`
	// More is whether there is more already.
	More bool `json:"more,omitempty" jsonschema:"there is more to read already"`
}

// Record is what a Store keeps of a job.
type Record struct {
	ID      string
	Subject string
	Kind    Kind
	Sandbox string // of a command: the workspace's identifier
	Name    string // and its name
	Title   string
	// Interactive is whether it can be written to.
	Interactive bool
	Begun       time.Time
	Timeout     time.Duration
	Ended       time.Time // zero while it runs
	// Outcome is of a job that is over: the JSON of an outcome.
	Outcome json.RawMessage
}

// outcome is how a job ended.
type outcome struct {
	Command *Result         `json:"command,omitempty"`
	Script  *sandbox.Result `json:"script,omitempty"`
	// Refused says why it was not carried out.
	Refused string `json:"refused,omitempty"`
	// Fault is whether that is the server's fault, and nothing that the caller
	// could mend.
	Fault bool `json:"fault,omitempty"`
	// Cancelled is whether Cancel ended it.
	Cancelled bool `json:"cancelled,omitempty"`
}
