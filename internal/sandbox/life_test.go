package sandbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTransitions(t *testing.T) {
	states := []State{Making, Ready, Used, Ending, Gone}
	allowed := map[[2]State]bool{
		{Making, Ready}: true, {Making, Ending}: true,
		{Ready, Used}: true, {Ready, Ending}: true,
		{Used, Ending}: true, {Ending, Gone}: true,
	}
	for _, from := range states {
		for _, to := range states {
			b := &box{id: "run-x", state: from}
			err := b.to(to)
			var bad *TransitionError
			switch {
			case allowed[[2]State{from, to}]:
				if err != nil || !b.is(to) {
					t.Errorf("%s to %s: %v, now %s", from, to, err, b.state)
				}
			case !errors.As(err, &bad) || *bad != TransitionError{ID: "run-x", From: from, To: to} || !b.is(from):
				t.Errorf("%s to %s: %v, now %s", from, to, err, b.state)
			}
		}
	}
}

// Of many that claim one fresh sandbox, one gets it.
func TestClaimIsAtomic(t *testing.T) {
	b := &box{id: "run-x", state: Ready}
	var got atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			if b.to(Used) == nil {
				got.Add(1)
			}
		})
	}
	all.Wait()
	if got.Load() != 1 {
		t.Errorf("%d claims were granted", got.Load())
	}
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing := make(chan struct{})
		s := newSlots(2, time.Minute, closing)
		for range 2 {
			if err := s.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		if err := s.acquire(t.Context()); err != errBusy || time.Since(begun) != time.Minute {
			t.Errorf("a full house: %v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up: %v", err)
		}

		// Eight may wait; the ninth is told at once.
		got := make(chan error)
		for range 2 * queuePerPlace {
			go func() { got <- s.acquire(t.Context()) }()
		}
		synctest.Wait()
		begun = time.Now()
		if err := s.acquire(t.Context()); err != errBusy || time.Since(begun) != 0 {
			t.Errorf("a full queue: %v after %v", err, time.Since(begun))
		}
		for range 2 * queuePerPlace {
			s.release()
			if err := <-got; err != nil {
				t.Errorf("a waiting caller: %v", err)
			}
		}
		go func() { got <- s.acquire(t.Context()) }()
		synctest.Wait()
		close(closing)
		if err := <-got; err != ErrClosed {
			t.Errorf("a caller that waits at the end: %v", err)
		}
	})
}
