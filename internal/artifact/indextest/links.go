package indextest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"belljar/internal/artifact"
)

// RunLinks tests a store of links. Each call of open must return an empty one.
func RunLinks(t *testing.T, open func(t *testing.T) artifact.LinkStore) {
	for name, test := range map[string]func(*testing.T, artifact.LinkStore){
		"ends once":         testLinkEnds,
		"reopens":           testLinkReopens,
		"forgets":           testLinksForgotten,
		"one of many":       testLinkRace,
		"cancelled context": testLinksCancelled,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

var linkTime = time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.UTC)

func wantEnded(t *testing.T, s artifact.LinkStore, id string, want bool) {
	t.Helper()
	if got, err := s.LinkEnded(t.Context(), id); err != nil || got != want {
		t.Errorf("LinkEnded(%q) = %v, %v; want %v", id, got, err, want)
	}
}

func end(t *testing.T, s artifact.LinkStore, id string, expires time.Time) {
	t.Helper()
	if err := s.EndLink(t.Context(), id, expires); err != nil {
		t.Fatalf("EndLink(%q): %v", id, err)
	}
}

func testLinkEnds(t *testing.T, s artifact.LinkStore) {
	wantEnded(t, s, "a", false)
	end(t, s, "a", linkTime)
	wantEnded(t, s, "a", true)
	wantEnded(t, s, "A", false)
	wantEnded(t, s, "", false)
	if err := s.EndLink(t.Context(), "a", linkTime.Add(time.Hour)); !errors.Is(err, artifact.ErrLinkEnded) {
		t.Errorf("ended twice: %v", err)
	}
}

func testLinkReopens(t *testing.T, s artifact.LinkStore) {
	end(t, s, "a", linkTime)
	end(t, s, "b", linkTime)
	for range 2 {
		if err := s.ReopenLink(t.Context(), "a"); err != nil {
			t.Errorf("ReopenLink: %v", err)
		}
	}
	wantEnded(t, s, "a", false)
	wantEnded(t, s, "b", true)
	end(t, s, "a", linkTime)
}

func testLinksForgotten(t *testing.T, s artifact.LinkStore) {
	end(t, s, "old", linkTime.Add(-time.Millisecond))
	end(t, s, "now", linkTime)
	end(t, s, "new", linkTime.Add(time.Millisecond))
	for _, want := range []int{1, 0} {
		if n, err := s.ForgetLinks(t.Context(), linkTime); n != want || err != nil {
			t.Errorf("ForgetLinks = %d, %v; want %d", n, err, want)
		}
	}
	wantEnded(t, s, "old", false)
	wantEnded(t, s, "now", true)
	wantEnded(t, s, "new", true)
}

func testLinkRace(t *testing.T, s artifact.LinkStore) {
	for round := range 5 {
		var wg sync.WaitGroup
		var won atomic.Int32
		for range 8 {
			wg.Go(func() {
				switch err := s.EndLink(t.Context(), fmt.Sprint(round), linkTime); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, artifact.ErrLinkEnded):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("%d ended the same link", won.Load())
		}
	}
}

func testLinksCancelled(t *testing.T, s artifact.LinkStore) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.EndLink(ctx, "a", linkTime); !errors.Is(err, context.Canceled) {
		t.Errorf("EndLink = %v, want context.Canceled", err)
	}
	if _, err := s.LinkEnded(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("LinkEnded = %v, want context.Canceled", err)
	}
	wantEnded(t, s, "a", false)
}

// MemoryLinks is an artifact.LinkStore that forgets everything with its
// process.
type MemoryLinks struct {
	mu    sync.Mutex
	ended map[string]time.Time
}

// NewMemoryLinks returns an empty store.
func NewMemoryLinks() *MemoryLinks { return &MemoryLinks{ended: map[string]time.Time{}} }

// EndLink records that a link is over.
func (m *MemoryLinks) EndLink(ctx context.Context, id string, expires time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.ended[id]; ok {
		return artifact.ErrLinkEnded
	}
	m.ended[id] = expires
	return nil
}

// LinkEnded reports whether a link is over.
func (m *MemoryLinks) LinkEnded(ctx context.Context, id string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.ended[id]
	return ok, ctx.Err()
}

// ReopenLink takes EndLink back.
func (m *MemoryLinks) ReopenLink(ctx context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ended, id)
	return ctx.Err()
}

// ForgetLinks deletes what has expired.
func (m *MemoryLinks) ForgetLinks(ctx context.Context, now time.Time) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for id, expires := range m.ended {
		if expires.Before(now) {
			delete(m.ended, id)
			n++
		}
	}
	return n, ctx.Err()
}
