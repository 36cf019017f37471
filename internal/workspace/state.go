package workspace

import (
	"fmt"
	"slices"
)

// State is where a workspace is in its life.
type State string

// The states. What is on the disk stays through all of them but Deleting.
const (
	Stopped  State = "stopped"  // its files wait on the disk
	Starting State = "starting" // its agent is being reached; soon running, or stopped if that fails
	Running  State = "running"
	Stopping State = "stopping" // its processes are being ended
	Held     State = "held"     // stopped, and its disk is being worked on
	Deleting State = "deleting" // to be removed, whatever happens
	Gone     State = "gone"
)

var next = map[State][]State{
	Stopped:  {Starting, Held, Deleting},
	Starting: {Running, Stopped},
	Running:  {Stopping, Starting},
	Stopping: {Stopped},
	Held:     {Stopped, Gone}, // gone if it was never made
	Deleting: {Gone, Deleting},
}

// A TransitionError says that a workspace cannot go from one state to another.
type TransitionError struct {
	ID       string
	From, To State
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("workspace %s is %s and cannot become %s", e.ID, e.From, e.To)
}

// now is the state as far as it can be known. A workspace whose connection has
// broken, or was let go, is no more to be lent, and b.watch is about to make it
// Starting. The caller holds b.mu.
func (b *box) now() State {
	if b.state != Running {
		return b.state
	}
	if b.link == nil {
		return Starting
	}
	select {
	case <-b.link.dead:
		return Starting
	default:
		return Running
	}
}

// to moves the workspace to a state and lets those know who wait for a change.
// The caller holds b.mu.
func (b *box) to(s State) error {
	if !slices.Contains(next[b.state], s) {
		return &TransitionError{ID: b.id, From: b.state, To: s}
	}
	b.state = s
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}
