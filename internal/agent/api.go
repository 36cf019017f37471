// Package agent is the HTTP/2 API of process 1 of every sandbox, both ends:
// Server runs inside the sandbox, Client in the Belljar server.
//
// The two meet over one byte stream, HTTP/2 without TLS. The client trusts
// nothing the server end says, since a script next to it may have taken its
// place: every size is bounded, every name checked, every wait ends with its
// context.
//
// The package is linked into belljar-agent and so uses the standard library,
// x/sys and x/image only.
package agent

import (
	"io/fs"
	"time"
)

// Version is the API's version, the first element of every path. A server
// speaks to agents of its own and the previous version.
const Version = 1

// Places inside a sandbox. What is Belljar's own is below /belljar: no directory
// of an image has to be copied for it, and none changes.
const (
	// Mount holds the agent's binary and socket, read-only.
	Mount = "/belljar/run"
	// Binary is the agent's program.
	Binary = Mount + "/agent"
	// Socket is where the agent dials the server.
	Socket = Mount + "/agent.sock"
	// InWorkspace is the argument of an agent that serves no runs, so that it
	// makes no directories for them.
	InWorkspace = "workspace"
	// Workdir is where jobs start.
	Workdir = "/sandbox"
	// LogDir holds the jobs' full output, a directory per job.
	LogDir = "/belljar/log"
)

// JobSpec describes a command to run.
type JobSpec struct {
	// ID names the job; the caller chooses it, so that a start can be
	// repeated after a lost answer. 1 to 64 of [a-zA-Z0-9_-].
	ID string `json:"id"`
	// Argv is the command and its arguments; Argv[0] is looked up in PATH.
	Argv []string `json:"argv"`
	// Env is added to the agent's environment, as KEY=value.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory, Workdir if empty.
	Dir string `json:"dir,omitempty"`
	// Stdin is a file to read from, /dev/null if empty.
	Stdin string `json:"stdin,omitempty"`
	// Input makes standard input a pipe that WriteInput writes to, in the place
	// of Stdin.
	Input bool `json:"input,omitempty"`
	// Terminal makes all three standard streams one terminal of that size,
	// which WriteInput writes to and whose output is that of Stdout.
	Terminal *Size `json:"terminal,omitempty"`
	// Timeout ends the job and everything it started. Every job has one.
	Timeout time.Duration `json:"timeout"`
	// Keep is how many bytes of each stream's head, and as many of its tail,
	// the status holds. At most MaxKeep.
	Keep int `json:"keep"`
	// LogBytes bounds each stream's log file, 0 for none.
	LogBytes int64 `json:"log_bytes"`
	// Gate lets the command start before its work is there: the variable
	// BELLJAR_GATE names a FIFO that it reads to its end once it is ready.
	// OpenGate lets it go on, with a time limit that counts from then; until
	// then Timeout holds.
	Gate bool `json:"gate,omitempty"`
	// Sole says that the sandbox is there for this job: it may be ended with
	// all that no other job has started. There is one at a time.
	Sole bool `json:"sole,omitempty"`
}

// MaxKeep bounds JobSpec.Keep.
const MaxKeep = 4 << 20

// JobState is where a job is in its life.
type JobState string

// The states of a job. The state comes from the kernel: a job is exited when
// its process was reaped.
const (
	JobRunning JobState = "running"
	JobWaiting JobState = "waiting" // at its gate
	JobExited  JobState = "exited"
)

// JobStatus describes a job.
type JobStatus struct {
	ID    string   `json:"id"`
	State JobState `json:"state"`
	// ExitCode is the process's; 128+n after signal n, 124 after a timeout,
	// 126 and 127 as a shell would if the command could not be started (the
	// reason then stands in Error).
	ExitCode int    `json:"exit_code"`
	Signal   int    `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	Error    string `json:"error,omitempty"`
	// Duration counts from the opening of the gate, if there is one.
	Duration time.Duration `json:"duration"`
	Stdout   Stream        `json:"stdout"`
	Stderr   Stream        `json:"stderr"`
}

// Stream is what is kept of an output stream. The bytes between Head and
// Tail were dropped; Bytes - len(Head) - len(Tail) says how many.
type Stream struct {
	Bytes int64  `json:"bytes"`
	Head  []byte `json:"head,omitempty"`
	Tail  []byte `json:"tail,omitempty"`
	// Log is the path of the log file, which holds the first LogBytes bytes.
	Log      string `json:"log,omitempty"`
	LogBytes int64  `json:"log_bytes,omitempty"`
}

// Cursor is how much of a job's output somebody has seen, in bytes.
type Cursor struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// MaxChunk bounds the max of Client.Output.
const MaxChunk = 1 << 20

// Output is what a job has printed after a Cursor.
type Output struct {
	State  JobState `json:"state"`
	Stdout Chunk    `json:"stdout"`
	Stderr Chunk    `json:"stderr"`
}

// Chunk is a part of an output stream.
type Chunk struct {
	// From is where it begins. That is after the cursor if what lay between is
	// not kept: it was beyond the log's bound and is no longer in the tail.
	From int64  `json:"from"`
	Data []byte `json:"data,omitempty"`
	// Bytes is how long the stream is by now.
	Bytes int64 `json:"bytes"`
}

// Next is the cursor after a chunk.
func (c Chunk) Next() int64 { return c.From + int64(len(c.Data)) }

// Next is the cursor after the output.
func (o Output) Next() Cursor { return Cursor{o.Stdout.Next(), o.Stderr.Next()} }

// FileInfo describes a regular file.
type FileInfo struct {
	// Path is relative to the directory that was listed, with slashes, as
	// bytes, since file names need not be UTF-8.
	Path []byte `json:"path"`
	Size int64  `json:"size"`
	// Mode is the permission bits.
	Mode    uint32    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
}

// NewFile is a file to write.
type NewFile struct {
	// Path is an absolute one. Missing parents are made with mode 0755.
	Path string
	// Mode is the permission bits.
	Mode fs.FileMode
	Data []byte
	// ModTime is when the file was changed last; now if zero.
	ModTime time.Time
	// InPlace writes into the file that is there, for a program that has it
	// open: the bytes go where they belong one after the other. It is for
	// files that nobody has read from yet; one that is missing is made.
	// Otherwise the file appears at once when all is written, in the place of
	// whatever had its name before.
	InPlace bool
}

// A Tree is a directory to list.
type Tree struct {
	Dir string
	// Max bounds the files of the listing.
	Max int
	// Flat leaves out the directories in it, with all that is below them.
	Flat bool
}

// Listing is the answer to a listing of a tree.
type Listing struct {
	// Files are the regular files below the directory, sorted by path.
	Files []FileInfo `json:"files"`
	// More is how many regular files were left out because of the bound.
	More int64 `json:"more,omitempty"`
	// Skipped counts what is neither a regular file nor a directory:
	// symbolic links, devices, sockets, FIFOs.
	Skipped int64 `json:"skipped,omitempty"`
	// Err is why there is no listing, of one among several.
	Err error `json:"-"`
}

// Health is the agent's answer to a health check.
type Health struct {
	Version int `json:"version"`
	Jobs    int `json:"jobs"` // running ones
	// Busy is how many jobs have processes: those that run, and those that have
	// left some behind.
	Busy    int   `json:"busy"`
	Zombies int64 `json:"reaped"`
}
