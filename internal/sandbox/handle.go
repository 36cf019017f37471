package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"belljar/internal/agent"
)

// A Run is a run that has begun. Its methods are safe for concurrent use.
type Run struct {
	cancel context.CancelFunc
	done   chan struct{}
	res    *Result // with err, set before done is closed
	err    error

	mu     sync.Mutex
	client *agent.Client // while the script runs
}

// Begin begins a run, which goes on until it is over or cancelled. It fails
// with a *RequestError if the request cannot be carried out as it is.
func (m *Manager) Begin(r Request) (*Run, error) {
	p, err := m.plan(r)
	if err != nil {
		return nil, err
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &Run{cancel: cancel, done: make(chan struct{})}
	p.run = run
	go func() {
		defer m.work.Done()
		defer cancel()
		defer close(run.done)
		run.res, run.err = m.carryOut(ctx, p)
	}()
	return run, nil
}

// Done is closed when the run is over.
func (r *Run) Done() <-chan struct{} { return r.done }

// Result waits until the run is over and returns what came of it. The error is
// a *RequestError if it could not be carried out.
func (r *Run) Result() (*Result, error) {
	<-r.done
	return r.res, r.err
}

// Cancel ends the run, whatever it is doing. Its files are lost.
func (r *Run) Cancel() { r.cancel() }

// ErrNotBegun says that a script has not begun yet, or is over.
var ErrNotBegun = errors.New("the script does not run")

// Output returns what the script has printed after a cursor, as
// agent.Client.Output does. ErrNotBegun if the script does not run now.
func (r *Run) Output(ctx context.Context, since agent.Cursor, max int, wait bool) (agent.Output, error) {
	c, err := r.running()
	if err != nil {
		return agent.Output{}, err
	}
	return c.Output(ctx, jobID, since, max, wait)
}

// Signal sends a signal to the script, as agent.Client.SignalJob does. What it
// has written until it ends is collected as ever. ErrNotBegun if the script does
// not run now.
func (r *Run) Signal(ctx context.Context, sig syscall.Signal) error {
	c, err := r.running()
	if err != nil {
		return err
	}
	if err := c.SignalJob(ctx, jobID, sig); err != nil {
		return fmt.Errorf("signalling a script: %w", err)
	}
	return nil
}

func (r *Run) running() (*agent.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil, ErrNotBegun
	}
	return r.client, nil
}

// seated notes the agent of the running script, nil when it is over.
func (r *Run) seated(c *agent.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = c
}
