// Package mcpserver offers Belljar's tools over the Model Context Protocol, a
// file per tool. It turns arguments into requests and results into what a
// model reads; what is done is the backend's.
package mcpserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"belljar/internal/access"
	"belljar/internal/engine"
	"belljar/internal/job"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Backend carries out what the tools are asked for. An error of type
// *sandbox.RequestError is shown to the caller; any other is not.
type Backend interface {
	Run(ctx context.Context, r sandbox.Request, w job.Wait) (job.Reply, error)
	Runtimes(ctx context.Context) ([]sandbox.RuntimeInfo, error)
	Execute(ctx context.Context, r job.CommandRequest, w job.Wait) (job.Reply, error)
	Jobs
	Sandboxes
}

// Sandboxes keeps workspaces, which users call sandboxes.
type Sandboxes interface {
	ListSandboxes(ctx context.Context, s access.Subject) ([]workspace.Info, error)
	CreateSandbox(ctx context.Context, s access.Subject, name, image string) (workspace.Info, error)
	StopSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) (workspace.Info, error)
	RebuildSandbox(ctx context.Context, s access.Subject, name, image string, endJobs bool) (workspace.Info, error)
	DeleteSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) error
}

// Jobs look after what goes on. A job of another subject is answered as one
// that does not exist.
type Jobs interface {
	Await(ctx context.Context, s access.Subject, id string, w job.Wait) (job.Reply, error)
	Output(ctx context.Context, s access.Subject, id, since string, wait time.Duration) (job.Output, error)
	Input(ctx context.Context, s access.Subject, id, text string, last bool) (taken int64, err error)
	Kill(ctx context.Context, s access.Subject, id, signal string) (job.Reply, error)
	Inspect(ctx context.Context, s access.Subject, id string) (job.State, error)
	Cancel(ctx context.Context, s access.Subject, id string) error
	List(ctx context.Context, s access.Subject) ([]job.Job, error)
}

// Sets of tools, which can be left out, so that a client's context isn't filled
// with what it has no use for.
const (
	SetRuns      = "runs"      // run_script, list_runtimes
	SetWorkspace = "workspace" // execute, share_file, revoke_link
	SetFiles     = "files"     // read_file, write_file, edit_file, list_files, upload_url
	SetJobs      = "jobs"      // job_wait, job_output, job_input, job_kill, job_list
	SetSandboxes = "sandboxes" // sandbox_list, sandbox_create, sandbox_stop, sandbox_rebuild, sandbox_delete
)

// Sets are the names of all sets of tools.
func Sets() []string { return []string{SetRuns, SetWorkspace, SetFiles, SetJobs, SetSandboxes} }

// Options configure a server.
type Options struct {
	Backend Backend // required
	Version string  // of Belljar
	// Files carries out the tools for files and links, which are left out if it
	// is nil.
	Files FilesBackend

	// What the descriptions of the tools name. The backend decides.
	Runtimes       []string // names, sorted
	DefaultTimeout time.Duration
	MaxTimeout     time.Duration
	// The same of commands.
	CommandTimeout    time.Duration
	MaxCommandTimeout time.Duration
	// Sets are the sets of tools to offer; all if empty.
	Sets []string
	// Wait is how long a call waits for a job if it does not say; 45 s if zero,
	// since common clients give up after 60 s.
	Wait time.Duration
	// LinkTTL is how long a link of share_file is good if it does not say.
	LinkTTL time.Duration
	// Network is what the sandboxes reach.
	Network engine.Network

	// TaskGrace is how long a call of a client that takes tasks waits before it
	// is answered with one; 2 s if zero. What is over by then needs no polling.
	TaskGrace time.Duration
	// ProgressEvery is the time between two progress notices of a call that
	// asked for them; 5 s if zero.
	ProgressEvery time.Duration

	Log *slog.Logger // discarded if nil
}

// listTTL is how long clients may keep the list of tools. It changes with an
// upgrade or the configuration only.
const listTTL = 5 * time.Minute

const (
	aboutRuns = `- run_script runs one script, always in a fresh sandbox: nothing of an earlier run is left, no variables and no files.
- Write what should be given back (figures, tables, archives) to the directory output. Input files stand in the directory input. Both are in the working directory, /sandbox.
- Files come back as links that expire. Give the user the links; do not print file contents as base64.
- list_runtimes tells what is installed.
- A script that fails is a normal result: read its stderr, correct it, run it again.
`
	aboutWorkspace = `- execute runs a bash command as root in a Linux machine that stays: files below /sandbox and installed packages are there the next time. Each call is a new bash.
- What is started with setsid nohup cmd >log 2>&1 & goes on after the call.
`
	aboutLinks = `- share_file gives a link to a file of that machine. Give the user the link.
`
	aboutFiles = `- read_file, write_file, edit_file and list_files work on the files of that machine; upload_url lets the user put a file there.
`
	aboutJobs = `- A call that takes long answers with status running and a job_id: the work goes on. job_wait waits for its end, job_output reads on, job_kill ends it, job_list finds it again.
`
	aboutSandboxes = `- execute works in the sandbox "default", which is there without being made. sandbox_create makes others, each a machine of its own.
`
)

// instructions tell a model what the tools that it has are for.
func (o Options) instructions() string {
	text := "Belljar runs code in sealed Linux sandboxes.\n"
	for _, set := range []struct{ name, about string }{
		{SetRuns, aboutRuns}, {SetWorkspace, aboutWorkspace}, {SetFiles, aboutFiles},
		{SetJobs, aboutJobs}, {SetSandboxes, aboutSandboxes},
	} {
		if o.has(set.name) {
			text += set.about
		}
		if set.name == SetWorkspace && o.hasLinks() {
			text += aboutLinks
		}
	}
	return text + "- " + networkInWords(o.Network)
}

func (o Options) has(set string) bool {
	if set == SetFiles && o.Files == nil {
		return false
	}
	return len(o.Sets) == 0 || slices.Contains(o.Sets, set)
}

// hasLinks is whether links to files are offered, which go with execute.
func (o Options) hasLinks() bool { return o.has(SetWorkspace) && o.Files != nil }

// networkInWords says what a script has to reckon with.
func networkInWords(n engine.Network) string {
	if n.None() {
		return "There is no network inside."
	}
	return "The network inside reaches " + n.String() + ". What it refuses is told in the result."
}

// New returns a server with all tools. One server serves any number of
// connections and callers.
func New(o Options) *mcp.Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.ProgressEvery = cmp.Or(o.ProgressEvery, 5*time.Second)
	o.Wait = cmp.Or(o.Wait, 45*time.Second)
	o.TaskGrace = cmp.Or(o.TaskGrace, 2*time.Second)
	// Named in full, since the SDK's default offers logging, which is
	// deprecated, and a notice of changes that never come.
	capabilities := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}
	capabilities.AddExtension(TasksExtension, nil)
	s := mcp.NewServer(&mcp.Implementation{
		Name:    "belljar",
		Title:   "Belljar",
		Version: o.Version,
	}, &mcp.ServerOptions{
		Instructions: o.instructions(),
		Capabilities: capabilities,
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.TTLMs, c.CacheScope = int(listTTL.Milliseconds()), "private"
		},
	})
	if o.has(SetRuns) {
		addRunScript(s, o)
		addListRuntimes(s, o)
	}
	if o.has(SetWorkspace) {
		addExecute(s, o)
	}
	if o.hasLinks() {
		addLinkTools(s, o)
	}
	if o.has(SetFiles) {
		addFileTools(s, o)
	}
	if o.has(SetJobs) {
		addJobWait(s, o)
		addJobOutput(s, o)
		addJobInput(s, o)
		addJobKill(s, o)
		addJobList(s, o)
	}
	if o.has(SetSandboxes) {
		addSandboxList(s, o)
		addSandboxCreate(s, o)
		addSandboxStop(s, o)
		addSandboxRebuild(s, o)
		addSandboxDelete(s, o)
	}
	ServeTasks(s, jobTasks{o}, o.Log)
	return s
}

// MaxBody is room for 64 MiB of input files in base64, with line breaks, and
// for the script.
const MaxBody = 100 << 20

// Handler serves s over streamable HTTP, to clients of the 2026-07-28
// protocol and of those before it. Nothing is tied to a session, so a restart
// strands nobody. Bodies above maxBody bytes are refused; MaxBody if zero.
//
// Checks of Host and Origin are the caller's: the SDK's own would refuse a
// proxy on the same host.
func Handler(s *mcp.Server, maxBody int64) http.Handler {
	if maxBody == 0 {
		maxBody = MaxBody
	}
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		Stateless:                    true,
		DisableLocalhostProtection:   true,
		PropagateRequestCancellation: true,
		MaxRequestBodyBytes:          maxBody,
	})
	checked := checkTaskHeader(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		checked.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, ctx)))
	})
}

type requestKey struct{}

// whileAnswerable returns a context that ends with the HTTP request of a call
// as well. The SDK sees to that for clients of the newest protocol only; older
// ones could come back for an answer if there were sessions, which there are
// not. A run that nobody can hear of would only take a place.
func whileAnswerable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	request, ok := ctx.Value(requestKey{}).(context.Context)
	if !ok {
		return ctx, cancel // not over HTTP
	}
	stop := context.AfterFunc(request, cancel)
	return ctx, func() { stop(); cancel() }
}

// addTool adds a tool, which has the same title for every client. An error of
// its call is told as failure does, but one of the protocol as it is.
func addTool(s *mcp.Server, o Options, t *mcp.Tool, call mcp.ToolHandler) {
	t.Annotations.Title = t.Title // where older clients look
	s.AddTool(t, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		res, err := call(ctx, req)
		if protocol := (*jsonrpc.Error)(nil); err == nil || errors.As(err, &protocol) {
			return res, err
		}
		return failure(o.Log, t.Name, err), nil
	})
}

// answer is a result in both of the ways that clients read.
func answer(text string, structured any, more ...mcp.Content) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Content:           append([]mcp.Content{&mcp.TextContent{Text: text}}, more...),
		StructuredContent: structured,
	}
}

// failure is the result of a call that could not be carried out. Of an
// internal error the caller learns the id only, under which it is logged.
func failure(log *slog.Logger, tool string, err error) *mcp.CallToolResult {
	var refused *sandbox.RequestError
	text := ""
	switch {
	case errors.As(err, &refused):
		text = refused.Message
	case errors.Is(err, context.Canceled):
		log.Info("a call was cancelled", "tool", tool)
		text = "cancelled"
	default:
		text = internalError(log, tool, err)
	}
	return refusal(text)
}

// internalError logs an error and returns what to say in its place.
func internalError(log *slog.Logger, tool string, err error) string {
	id := rand.Text()[:8]
	log.Error("a call failed", "tool", tool, "id", id, "err", err)
	return fmt.Sprintf("internal error, id %s; the server's log has the details under this id", id)
}

func refusal(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: text}},
		IsError: true,
	}
}
