package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// times are the durations of a contestant's timed runs of a workload.
type times []time.Duration

func (t times) median() time.Duration {
	s := slices.Sorted(slices.Values(t))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// p95 is the time that 95 % of the runs kept to: the slowest of fewer than 20.
func (t times) p95() time.Duration {
	s := slices.Sorted(slices.Values(t))
	return s[int(math.Ceil(0.95*float64(len(s))))-1]
}

// compare runs a workload with all contestants, who take turns, so that what
// else the machine does hits all alike. Before each timed run the machine
// comes to rest.
func compare(ctx context.Context, w workload, rounds int, contestants []contestant, settler *settler) (map[string]times, error) {
	all := map[string]times{}
	timed, before := w.rounds(rounds)
	for i := range before + timed {
		for _, c := range contestants {
			took, err := c.turn(ctx, w, settler)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if i >= before { // the first ones warm caches
				all[c.name] = append(all[c.name], took)
			}
		}
	}
	return all, nil
}

// turn is one timed run.
func (c contestant) turn(ctx context.Context, w workload, settler *settler) (time.Duration, error) {
	if c.prepare != nil {
		if err := c.prepare(ctx, w); err != nil {
			return 0, err
		}
	}
	if err := settler.settle(ctx, c.warm, w.lane()); err != nil {
		return 0, err
	}
	begun := time.Now()
	err := c.run(ctx, w)
	took := time.Since(begun)
	if err == nil && c.check != nil {
		err = c.check(ctx, w)
	}
	return took, err
}
