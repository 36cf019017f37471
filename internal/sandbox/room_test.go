package sandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"belljar/internal/engine"
)

// tight makes the host have room for so many sandboxes, for spare ones only
// beside another.
func tight(most int) func(*Options) {
	return func(o *Options) {
		real := o.Engine
		var mu sync.Mutex
		o.Engine = &faultyEngine{Engine: real, create: func(ctx context.Context, s engine.Spec) error {
			mu.Lock()
			defer mu.Unlock()
			all, err := real.List(ctx)
			if err != nil {
				return err
			}
			if n := len(all); n >= most || s.Spare && n >= most-1 {
				return &engine.HostFullError{What: "disk space", Free: 1, Need: 2}
			}
			return real.Create(ctx, s)
		}}
	}
}

// never is a table with a part of the pool for one runtime alone, which does
// not come to its gate.
func never(t *testing.T) string {
	t.Helper()
	return strings.Replace(poolTable, `cat "$gate" > /dev/null`, "sleep 1000", 1) + othersOff(t) + `
[[runtime]]
name = "bash"
title = "-"
extension = "sh"
argv = ["bash", "{script}"]
version = ["true"]
pool_max = 0
`
}

// What the pool has of the host is for runs: it gives way to them, and no
// further than it must.
func TestPoolGivesWay(t *testing.T) {
	elsewhere := Request{Runtime: "elsewhere", Script: "echo 1"}
	t.Run("one", func(t *testing.T) {
		b := newPoolBench(t, tight(3))
		eventually(t, "there is no room for more", func() bool { return len(b.spares(laneBare))+len(b.spares(laneLight))+len(b.spares(laneFull)) == 2 })
		b.must(t, bash("true")) // this one's lane is the last to give way
		eventually(t, "it is there again", func() bool { return len(b.spares(laneBare)) == 1 && len(sandboxes(t, b.mem)) == 2 })
		kept := b.spares(laneBare)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if res, err := b.Run(t.Context(), elsewhere); err != nil || res.Stdout != "1\n" {
					t.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
		if now := b.spares(laneBare); !slices.Equal(now, kept) {
			t.Errorf("the pool has %q, want still %q: it gave up more than was needed", now, kept)
		}
	})
	t.Run("all at once", func(t *testing.T) {
		b := newPoolBench(t, tight(4), func(o *Options) { o.Concurrency = 4 })
		eventually(t, "there is no room for more", func() bool { return len(sandboxes(t, b.mem)) == 3 })
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if res, err := b.Run(t.Context(), elsewhere); err != nil || res.Stdout != "1\n" {
					t.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
	})
	t.Run("one that is being made", func(t *testing.T) {
		b := newPoolBench(t, tight(2), withTable(t, never(t)))
		eventually(t, "one is being made", func() bool { return isMaking(b, "slow") })
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if res, err := b.Run(t.Context(), elsewhere); err != nil || res.Stdout != "1\n" {
					t.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
	})
	t.Run("the probe of an image", func(t *testing.T) {
		b := newPoolBench(t, tight(1), func(o *Options) {
			faulty := o.Engine.(*faultyEngine)
			create := faulty.create
			faulty.create = func(ctx context.Context, s engine.Spec) error { s.Spare = false; return create(ctx, s) }
		})
		eventually(t, "there is no room for more", func() bool { return len(sandboxes(t, b.mem)) == 1 })
		infos, err := b.Runtimes(t.Context())
		if err != nil || !infos[0].Available {
			t.Errorf("%+v, %v", infos, err)
		}
	})
	t.Run("nothing left to give", func(t *testing.T) {
		b := newPoolBench(t, tight(0))
		_, err := b.Run(t.Context(), elsewhere)
		if refused := (*RequestError)(nil); !errors.As(err, &refused) || !strings.Contains(refused.Message, "short of room") {
			t.Errorf("got %v", err)
		}
	})
}

// isMaking is whether the pool makes a sandbox for a runtime now.
func isMaking(b *bench, runtime string) bool {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	return b.pool.making != nil && b.pool.making.lane.names() == runtime
}

// sized makes sandboxes use so much memory, by what they are made for.
func sized(bare, warm int64) func(*Options) {
	return func(o *Options) {
		real := o.Engine
		var mu sync.Mutex
		began := map[string]bool{} // those in which a command was started
		o.Engine = &faultyEngine{Engine: real,
			inspect: func(ctx context.Context, id string) (engine.Receipt, error) {
				r, err := real.Inspect(ctx, id)
				mu.Lock()
				defer mu.Unlock()
				r.MemoryUsed = bare
				if began[id] {
					r.MemoryUsed = warm
				}
				return r, err
			},
			create: func(ctx context.Context, s engine.Spec) error {
				mu.Lock()
				defer mu.Unlock()
				began[s.ID] = s.Image == "warm"
				return real.Create(ctx, s)
			},
		}
	}
}

// inImage is poolTable with the warm runtime in an image of its own.
func inImage(t *testing.T) string {
	t.Helper()
	return strings.Replace(poolTable, "warm = true\n", "warm = true\nimage = \"warm\"\n", 1) + othersOff(t)
}

// A kind of sandbox that is larger than all the pool may use is left out, and
// takes nothing away from others, however often it is asked for.
func TestTooLargeForThePool(t *testing.T) {
	b := newPoolBench(t, withTable(t, inImage(t)), sized(10<<20, 100<<20), func(o *Options) { o.PoolMemory = 64 << 20 })
	eventually(t, "the bare one is there", func() bool { return len(b.spares(laneBare)) == 1 })
	eventually(t, "the log says what does not fit", func() bool { return strings.Contains(b.log.String(), "does not fit") })
	kept := b.spares(laneBare)
	for range 3 {
		b.must(t, slow("true"))
	}
	// The loop has looked once more after something has changed.
	b.must(t, bash("true"))
	eventually(t, "the bare one is there again", func() bool { ids := b.spares(laneBare); return len(ids) > 0 && !slices.Equal(ids, kept) })
	if _, memory := b.Pool(); memory > 64<<20 || memory == 0 {
		t.Errorf("the pool uses %d bytes", memory)
	}
	if n := len(b.spares(laneLight)) + len(b.spares(laneFull)); n > 0 {
		t.Errorf("%d sandboxes that do not fit", n)
	}
}

// Little memory is no reason to have no pool at all.
func TestSmallPool(t *testing.T) {
	b := newPoolBench(t, withTable(t, inImage(t)), sized(2<<20, 7<<20), func(o *Options) { o.PoolMemory = 10 << 20 })
	eventually(t, "what fits is there", func() bool {
		return len(b.spares(laneBare)) == 1 && len(b.spares(laneLight))+len(b.spares(laneFull)) == 1
	})
}

// What a spare sandbox uses is looked at again, since it may grow.
func TestGrowingSpares(t *testing.T) {
	var mu sync.Mutex
	used := int64(10 << 20)
	var late time.Duration
	b := newPoolBench(t, func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, inspect: func(ctx context.Context, id string) (engine.Receipt, error) {
			r, err := real.Inspect(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			r.MemoryUsed = used
			return r, err
		}}
		o.PoolMemory = 100 << 20
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(late) }
	})
	b.full(t)
	mu.Lock()
	used, late = 60<<20, sizeEvery
	mu.Unlock()
	eventually(t, "one is left", func() bool {
		_, memory := b.Pool()
		return memory == 60<<20
	})
}

// An image can be removed although sandboxes of it wait: they are gone for as
// long as that takes.
func TestWithoutSpares(t *testing.T) {
	b := newPoolBench(t)
	b.full(t)
	err := b.WithoutSpares(t.Context(), "mini", func() error {
		if ids := sandboxes(t, b.mem); len(ids) > 0 {
			t.Errorf("there are %q", ids)
		}
		if b.pool.next() != nil {
			t.Error("another was begun")
		}
		return errors.New("what f says")
	})
	if err == nil || err.Error() != "what f says" {
		t.Errorf("got %v", err)
	}
	b.full(t)

	// Also one that is being made, which may take long.
	b = newPoolBench(t, withTable(t, never(t)))
	eventually(t, "one is being made", func() bool { return isMaking(b, "slow") })
	begun := time.Now()
	if err := b.WithoutSpares(t.Context(), "mini", func() error { return nil }); err != nil || time.Since(begun) > setupTime/2 {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}

// Closing does not wait for a sandbox that takes its time to be made.
func TestCloseWhileOneIsMade(t *testing.T) {
	b := newPoolBench(t, withTable(t, never(t)))
	eventually(t, "one is being made", func() bool { return isMaking(b, "slow") })
	begun := time.Now()
	if err := b.Close(context.Background()); err != nil || time.Since(begun) > setupTime/2 {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	if ids := sandboxes(t, b.mem); len(ids) > 0 {
		t.Errorf("left behind: %q", ids)
	}
}
