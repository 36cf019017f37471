package job

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"belljar/internal/agent"
	"belljar/internal/sandbox"
)

// Run begins a run of a script and waits for it as w says. While it waits, the
// run ends with ctx; afterwards it goes on. The error is a
// *sandbox.RequestError if the run cannot be carried out as it is.
func (d *Desk) Run(ctx context.Context, r sandbox.Request, w Wait) (Reply, error) {
	run, err := d.o.Runs.Begin(r)
	if err != nil {
		return Reply{}, err
	}
	j := d.newLive(Record{ID: newID(), Subject: r.Subject.ID, Kind: Script, Title: r.Runtime + " script", Begun: d.o.Now(), Timeout: r.Timeout})
	j.work = script{run}
	if err := d.begin(j); err != nil {
		run.Cancel()
		return Reply{}, err
	}
	d.work.Go(func() { d.finishRun(j, run) })
	reply, err := d.wait(ctx, j, w)
	switch {
	case ctx.Err() != nil:
		run.Cancel()
		<-j.done
		return Reply{}, fmt.Errorf("running a script: %w", context.Cause(ctx))
	case err == nil && reply.Status == Running:
		// From now on it is known to others than this call.
		if err := d.record(context.WithoutCancel(ctx), j); err != nil {
			d.o.Log.Error("noting a run failed", "job", j.ID, "err", err)
		}
	}
	return reply, err
}

func (d *Desk) finishRun(j *live, run *sandbox.Run) {
	res, err := run.Result()
	end := outcome{Script: res}
	var refused *sandbox.RequestError
	switch {
	case errors.As(err, &refused):
		end = outcome{Refused: refused.Message}
	case errors.Is(err, context.Canceled):
		end, err = outcome{Refused: "the run was ended before its script was over"}, nil
	case err != nil:
		d.o.Log.Error("a run failed", "job", j.ID, "err", err)
		end = outcome{Refused: "the script could not be run to its end; the server's log says why, under " + j.ID, Fault: true}
	}
	d.finish(j, end, err)
}

// script is a run's work.
type script struct{ run *sandbox.Run }

func (s script) output(ctx context.Context, since agent.Cursor, max int, wait bool) (agent.Output, error) {
	out, err := s.run.Output(ctx, since, max, wait)
	if errors.Is(err, sandbox.ErrNotBegun) {
		out = agent.Output{State: agent.JobRunning}
		out.Stdout.From, out.Stderr.From = since.Stdout, since.Stderr
		return out, nil
	}
	return out, err
}

func (script) input(context.Context, string, bool) (int64, error) {
	return 0, refuse("a script reads what was given as stdin when it was run; nothing can be added")
}

func (s script) signal(ctx context.Context, sig syscall.Signal) error {
	err := s.run.Signal(ctx, sig)
	if errors.Is(err, sandbox.ErrNotBegun) {
		if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
			return refuse("the script has not begun yet")
		}
		s.run.Cancel()
		return nil
	}
	return refuseRemote(err)
}
