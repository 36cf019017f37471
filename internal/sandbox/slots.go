package sandbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// slots bounds how many sandboxes exist, and how many callers wait for one.
type slots struct {
	places  chan struct{} // holds an element per place taken
	waiting *atomic.Int64
	wait    time.Duration
	closing <-chan struct{} // ends the queue
}

// queuePerPlace bounds the queue: each waiting call holds its inputs in
// memory.
const queuePerPlace = 4

var errBusy = errors.New("all places are taken")

func newSlots(n int, wait time.Duration, closing <-chan struct{}) slots {
	return slots{places: make(chan struct{}, n), waiting: new(atomic.Int64), wait: wait, closing: closing}
}

// acquire takes a place, first come, first served. It returns errBusy after
// the bounded time, or at once if too many wait already.
func (s slots) acquire(ctx context.Context) error {
	select {
	case s.places <- struct{}{}:
		return nil
	default:
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > int64(queuePerPlace*cap(s.places)) {
		return errBusy
	}
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	select {
	case s.places <- struct{}{}:
		return nil
	case <-timer.C:
		return errBusy
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) release() { <-s.places }
