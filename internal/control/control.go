// Package control is the local interface of the process that owns the state
// directory: HTTP over a Unix socket, both ends. The command line goes
// through it, so that two processes never work on one state directory.
//
// The socket is open to its owner and group. Members of the group may run
// scripts; what reads files of the host or changes images is for root and the
// server's own user, since the server would do it with its own rights.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/image"
	"belljar/internal/job"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"
)

// Backend carries work out; a *Client is one, and so is what it is a client of.
type Backend interface {
	Run(ctx context.Context, r sandbox.Request, w job.Wait) (job.Reply, error)
	Runtimes(ctx context.Context) ([]sandbox.RuntimeInfo, error)
	Execute(ctx context.Context, r job.CommandRequest, w job.Wait) (job.Reply, error)
	Await(ctx context.Context, s access.Subject, id string, w job.Wait) (job.Reply, error)
	Output(ctx context.Context, s access.Subject, id, since string, wait time.Duration) (job.Output, error)
	Input(ctx context.Context, s access.Subject, id, text string, last bool) (taken int64, err error)
	Kill(ctx context.Context, s access.Subject, id, signal string) (job.Reply, error)
	Inspect(ctx context.Context, s access.Subject, id string) (job.State, error)
	Cancel(ctx context.Context, s access.Subject, id string) error
	List(ctx context.Context, s access.Subject) ([]job.Job, error)
	Read(ctx context.Context, s access.Subject, id string, since agent.Cursor, max int, wait time.Duration) (agent.Output, error)
	Resize(ctx context.Context, s access.Subject, id string, size agent.Size) error
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

// Images builds and keeps images.
type Images interface {
	List() ([]image.Image, error)
	Remove(ctx context.Context, ref string) error
	Pull(ctx context.Context, ref string, p image.Progress) (image.Image, error)
	Load(ctx context.Context, path string, p image.Progress) ([]image.Image, error)
	Build(ctx context.Context, o image.BuildOptions, p image.Progress) (image.Image, error)
}

// Info describes the process that owns the state directory.
type Info struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// URL is where it serves MCP, empty if it does not.
	URL string `json:"url,omitempty"`
	// Engine is the engine's own description.
	Engine string `json:"engine"`
}

// Failure is an error as it crosses the socket. Whoever may use the socket
// may read the whole text.
type Failure struct {
	// Kind is "request" for what the caller can mend, else "failed".
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

func failureOf(err error) *Failure {
	var request *sandbox.RequestError
	if errors.As(err, &request) {
		return &Failure{Kind: "request", Message: request.Message}
	}
	return &Failure{Kind: "failed", Message: err.Error()}
}

func (f *Failure) err() error {
	if f.Kind == "request" {
		return &sandbox.RequestError{Message: f.Message}
	}
	return errors.New(f.Message)
}

// event is a line of the answer to a request that reports progress. The last
// line has Result or Failure.
type event[E, R any] struct {
	Event   *E       `json:"event,omitempty"`
	Result  *R       `json:"result,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
}

// Bodies of requests, besides types of other packages.
type (
	pullRequest struct {
		Ref string `json:"ref"`
	}
	loadRequest struct {
		Path string `json:"path"`
	}
	// waiting is a request whose answer is waited for.
	waiting[Q any] struct {
		Request Q             `json:"request"`
		For     time.Duration `json:"for"`
		Every   time.Duration `json:"every,omitempty"` // 0 for no progress
	}
	// jobRequest is about a job. Each call uses the fields it needs.
	jobRequest struct {
		ID     string        `json:"id"`
		Since  string        `json:"since,omitempty"`
		Wait   time.Duration `json:"wait,omitempty"`
		Data   []byte        `json:"data,omitempty"` // need not be UTF-8
		Last   bool          `json:"last,omitempty"`
		Signal string        `json:"signal,omitempty"`
		Cursor agent.Cursor  `json:"cursor,omitzero"`
		Max    int           `json:"max,omitempty"`
		Size   agent.Size    `json:"size,omitzero"`
	}
	sandboxRequest struct {
		Name    string `json:"name"`
		Image   string `json:"image,omitempty"`
		EndJobs bool   `json:"end_jobs,omitempty"`
	}
)

// maxBody bounds the body of every call.
const maxBody = 512 << 20

func decode(r *http.Request, v any) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	return nil
}
