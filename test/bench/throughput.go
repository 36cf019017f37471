package main

import (
	"context"
	"sync"
	"time"
)

// callers are how many call at a time, one measurement each.
var callers = []int{1, 4, 16}

// judged is the number of callers that there is a threshold for. The others
// show where it goes from there, for which less time does.
const judged = 4

// load has n callers run a workload over and over for a while, and returns how
// many runs were done per second. Whatever a contestant has to do for a run,
// before or after it, falls into that time, but for the runs that its pool had
// ready at the start.
func load(ctx context.Context, c contestant, w workload, n int, d time.Duration) (perSecond float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := time.Now()
	done := make([]int, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for time.Since(begun) < d && ctx.Err() == nil {
				if err := c.run(ctx, w); err != nil {
					cancel(err)
					return
				}
				done[i]++
			}
		})
	}
	group.Wait()
	took := time.Since(begun)
	sum := 0
	for _, k := range done {
		sum += k
	}
	return float64(sum) / took.Seconds(), context.Cause(ctx)
}
