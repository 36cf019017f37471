package control

import (
	"context"
	"net/http"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/job"
	"belljar/internal/sandbox"
)

// mountJobs mounts the calls about runs, commands and jobs. Who may use the
// socket is the owner.
func (s *Server) mountJobs(mux *http.ServeMux) {
	mux.Handle("POST /v1/run", await(func(ctx context.Context, q sandbox.Request, w job.Wait) (job.Reply, error) {
		q.Subject = access.Owner
		return s.Backend.Run(ctx, q, w)
	}))
	mux.Handle("POST /v1/execute", await(func(ctx context.Context, q job.CommandRequest, w job.Wait) (job.Reply, error) {
		q.Subject = access.Owner
		return s.Backend.Execute(ctx, q, w)
	}))
	mux.Handle("POST /v1/jobs/await", await(func(ctx context.Context, q jobRequest, w job.Wait) (job.Reply, error) {
		return s.Backend.Await(ctx, access.Owner, q.ID, w)
	}))
	mux.Handle("GET /v1/jobs", answered(func(r *http.Request) (any, error) {
		return s.Backend.List(r.Context(), access.Owner)
	}))
	mux.Handle("POST /v1/jobs/output", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return s.Backend.Output(ctx, access.Owner, q.ID, q.Since, q.Wait)
	}))
	mux.Handle("POST /v1/jobs/read", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return s.Backend.Read(ctx, access.Owner, q.ID, q.Cursor, q.Max, q.Wait)
	}))
	mux.Handle("POST /v1/jobs/input", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return s.Backend.Input(ctx, access.Owner, q.ID, string(q.Data), q.Last)
	}))
	mux.Handle("POST /v1/jobs/resize", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return struct{}{}, s.Backend.Resize(ctx, access.Owner, q.ID, q.Size)
	}))
	mux.Handle("POST /v1/jobs/kill", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return s.Backend.Kill(ctx, access.Owner, q.ID, q.Signal)
	}))
	mux.Handle("POST /v1/jobs/inspect", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return s.Backend.Inspect(ctx, access.Owner, q.ID)
	}))
	mux.Handle("POST /v1/jobs/cancel", asked(func(ctx context.Context, q jobRequest) (any, error) {
		return struct{}{}, s.Backend.Cancel(ctx, access.Owner, q.ID)
	}))
}

// await serves a call that waits for a job.
func await[Q any](f func(context.Context, Q, job.Wait) (job.Reply, error)) http.Handler {
	return stream(func(ctx context.Context, q waiting[Q], tell func(job.Progress)) (job.Reply, error) {
		w := job.Wait{For: q.For, Every: q.Every}
		if q.Every > 0 {
			w.Tell = tell
		}
		return f(ctx, q.Request, w)
	})
}

// asked serves a call by what f returns for its body.
func asked[Q any](f func(context.Context, Q) (any, error)) http.Handler {
	return answered(func(r *http.Request) (any, error) {
		var q Q
		if err := decode(r, &q); err != nil {
			return nil, err
		}
		return f(r.Context(), q)
	})
}

// Run runs a script, as job.Desk does. The subject is always the owner, here
// and below.
func (c *Client) Run(ctx context.Context, r sandbox.Request, w job.Wait) (job.Reply, error) {
	return waitFor(ctx, c, "/v1/run", r, w)
}

// Execute executes a command, as job.Desk does.
func (c *Client) Execute(ctx context.Context, r job.CommandRequest, w job.Wait) (job.Reply, error) {
	return waitFor(ctx, c, "/v1/execute", r, w)
}

// Await waits for a job, as job.Desk does.
func (c *Client) Await(ctx context.Context, _ access.Subject, id string, w job.Wait) (job.Reply, error) {
	return waitFor(ctx, c, "/v1/jobs/await", jobRequest{ID: id}, w)
}

// List lists jobs, as job.Desk does.
func (c *Client) List(ctx context.Context, _ access.Subject) ([]job.Job, error) {
	return call[[]job.Job](ctx, c, "GET", "/v1/jobs", nil)
}

// Output reads what a job has printed, as job.Desk does.
func (c *Client) Output(ctx context.Context, _ access.Subject, id, since string, wait time.Duration) (job.Output, error) {
	return call[job.Output](ctx, c, "POST", "/v1/jobs/output", jobRequest{ID: id, Since: since, Wait: wait})
}

// Read reads what a job has printed byte by byte, as job.Desk does.
func (c *Client) Read(ctx context.Context, _ access.Subject, id string, since agent.Cursor, max int, wait time.Duration) (agent.Output, error) {
	return call[agent.Output](ctx, c, "POST", "/v1/jobs/read", jobRequest{ID: id, Cursor: since, Max: max, Wait: wait})
}

// Input writes to a job, as job.Desk does.
func (c *Client) Input(ctx context.Context, _ access.Subject, id, text string, last bool) (int64, error) {
	return call[int64](ctx, c, "POST", "/v1/jobs/input", jobRequest{ID: id, Data: []byte(text), Last: last})
}

// Resize gives a terminal another size, as job.Desk does.
func (c *Client) Resize(ctx context.Context, _ access.Subject, id string, size agent.Size) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/jobs/resize", jobRequest{ID: id, Size: size})
	return err
}

// Kill ends a job, as job.Desk does.
func (c *Client) Kill(ctx context.Context, _ access.Subject, id, signal string) (job.Reply, error) {
	return call[job.Reply](ctx, c, "POST", "/v1/jobs/kill", jobRequest{ID: id, Signal: signal})
}

// Inspect returns how a job is, as job.Desk does.
func (c *Client) Inspect(ctx context.Context, _ access.Subject, id string) (job.State, error) {
	return call[job.State](ctx, c, "POST", "/v1/jobs/inspect", jobRequest{ID: id})
}

// Cancel ends a job, as job.Desk does.
func (c *Client) Cancel(ctx context.Context, _ access.Subject, id string) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/jobs/cancel", jobRequest{ID: id})
	return err
}

func waitFor[Q any](ctx context.Context, c *Client, path string, q Q, w job.Wait) (job.Reply, error) {
	body := waiting[Q]{Request: q, For: w.For}
	tell := w.Tell
	if tell == nil {
		tell = func(job.Progress) {}
	} else {
		body.Every = w.Every
	}
	return follow[job.Progress, job.Reply](ctx, c, path, body, tell)
}
