package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"belljar/internal/access"
)

// A State is how a job is at one moment, for who comes back to it without
// waiting.
type State struct {
	Job
	// Ended is when it ended; zero while it runs.
	Ended time.Time `json:"ended,omitzero"`
	// Kept is until when its outcome is kept, at least.
	Kept time.Time `json:"kept"`
	// Progress is of a job that goes on.
	Progress *Progress `json:"progress,omitempty"`
	// Reply is of a job that is over and was carried out: its result.
	Reply *Reply `json:"reply,omitempty"`
	// Refused says, to the caller, why a job was not carried out.
	Refused string `json:"refused,omitempty"`
	// Fault is whether that is the server's fault.
	Fault bool `json:"fault,omitempty"`
	// Cancelled is whether Cancel ended the job.
	Cancelled bool `json:"cancelled,omitempty"`
}

// Inspect returns how a job is, without waiting for its end. A job that goes on
// is asked for the last line of its output, for peekTime at most. It fails with
// a *sandbox.RequestError if there is no such job.
func (d *Desk) Inspect(ctx context.Context, s access.Subject, id string) (State, error) {
	j, r, err := d.find(ctx, s, id)
	if err != nil {
		return State{}, err
	}
	if j == nil {
		end, err := r.outcome()
		if err != nil {
			return State{}, err
		}
		return d.over(r, end), nil
	}
	select {
	case <-j.done:
		r.Ended = j.ended
		return d.over(r, j.end), nil
	default:
	}
	progress := d.progress(ctx, j)
	// No job runs for longer than its timeout, so it is kept longer than that.
	return State{Job: d.describe(r), Kept: r.Begun.Add(r.Timeout + d.o.Keep), Progress: &progress}, nil
}

// over is the state of a job that has ended.
func (d *Desk) over(r Record, end outcome) State {
	s := State{Job: d.describe(r), Ended: r.Ended, Kept: r.Ended.Add(d.o.Keep),
		Refused: end.Refused, Fault: end.Fault, Cancelled: end.Cancelled}
	if reply, err := end.reply(r); err == nil {
		s.Reply = &reply
	}
	return s
}

// outcome is how the job of a record ended. It fails with errUnattended if that
// has not.
func (r Record) outcome() (outcome, error) {
	if r.Ended.IsZero() {
		return outcome{}, errUnattended
	}
	var end outcome
	if err := json.Unmarshal(r.Outcome, &end); err != nil {
		return outcome{}, fmt.Errorf("reading the outcome of job %s: %w", r.ID, err)
	}
	return end, nil
}

// errUnattended is for a job that runs, while the desk is closing.
var errUnattended = errors.New("a running job is not looked after")

// Cancel ends a job with all that it has started, and notes that it was ended
// by request. It does not wait for the end; a job that is over before the
// request has an effect has its own result. It fails with a
// *sandbox.RequestError if there is no such job.
func (d *Desk) Cancel(ctx context.Context, s access.Subject, id string) error {
	j, _, err := d.find(ctx, s, id)
	if err != nil || j == nil {
		return err
	}
	d.mu.Lock()
	j.cancelled = true
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	if err := j.work.signal(ctx, syscall.SIGKILL); err != nil {
		select {
		case <-j.done: // by itself, meanwhile
		default:
			// Who asked is told the state of the job, whatever became of this.
			d.o.Log.Warn("a job could not be cancelled", "job", j.ID, "err", err)
		}
	}
	return nil
}

// killed reports whether the outcome is what comes of Cancel.
func (o outcome) killed() bool {
	const killed = 128 + int(syscall.SIGKILL)
	switch {
	case o.Command != nil:
		return o.Command.ExitCode == killed && !o.Command.TimedOut
	case o.Script != nil:
		return o.Script.ReturnCode == killed && !o.Script.TimedOut
	}
	return o.Refused != "" && !o.Fault
}
