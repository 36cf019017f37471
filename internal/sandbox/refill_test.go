package sandbox

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"belljar/internal/engine"
)

// A script that runs for long does not keep the pool empty for callers who
// come all the time.
func TestLongRunsDoNotKeepThePoolEmpty(t *testing.T) {
	b := newPoolBench(t, func(o *Options) { o.Concurrency = 2 })
	b.full(t)
	ctx, end := context.WithCancel(t.Context())
	long := make(chan struct{})
	go func() {
		defer close(long)
		b.Run(ctx, bash("sleep 1000"))
	}()
	defer func() { end(); <-long }()
	eventually(t, "it is no part of a burst any more", func() bool {
		b.pool.mu.Lock()
		defer b.pool.mu.Unlock()
		b.pool.busy = time.Now()
		return len(b.pool.runs) == 1 && !b.pool.burst(time.Now())
	})
	begun, had := time.Now(), b.part("light").Hits
	for b.part("light").Hits < had+20 {
		b.must(t, slow("true"))
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("%d hits only: %+v", b.part("light").Hits-had, b.part("light"))
		}
	}
}

func TestFailuresComeLast(t *testing.T) {
	b := newBench(t, withTable(t, poolTable+othersOff(t)))
	now := time.Now()
	p := b.pool
	names := func() string {
		var all []string
		for _, l := range p.wanting(now) {
			all = append(all, fmt.Sprint(l.names(), " ", l.kind))
		}
		return strings.Join(all, ", ")
	}
	if got, want := names(), "bash bare, slow full, slow light"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	slowLight := p.lanes[2]
	slowLight.use.note("slow", true, now)
	if got, want := names(), "slow light, bash bare, slow full"; got != want {
		t.Errorf("after it was asked for: got %s, want %s", got, want)
	}
	slowLight.fail("mini", now)
	if got, want := names(), "bash bare, slow full, slow light"; got != want {
		t.Errorf("after it has failed: got %s, want %s", got, want)
	}
}

// That runs had the processors says nothing against a kind of sandbox.
func TestSlowUnderLoadIsNoFailure(t *testing.T) {
	b := newBench(t, withTable(t, poolTable+othersOff(t)))
	p, l := b.pool, b.pool.lanes[0]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	late := func() {
		p.settle(&making{lane: l, digest: "mini", ctx: ctx}, nil, fmt.Errorf("waiting: %w", context.DeadlineExceeded), time.Now())
	}
	ends := p.runBegins()
	for range 5 {
		late()
	}
	if wait := time.Until(l.retry); wait > firstRetry {
		t.Errorf("the next attempt is in %v", wait)
	}
	ends()
	p.busy = time.Time{}
	for range 5 {
		late()
	}
	if wait := time.Until(l.retry); wait < 10*firstRetry {
		t.Errorf("without load, the next attempt is in %v", wait)
	}
}

// What a command does before its gate, no script has asked for: such a sandbox
// is not used, and the log says why.
func TestMischiefBeforeTheGate(t *testing.T) {
	for mischief, reason := range map[string]string{
		"echo x > output/left":                       "left /sandbox/output/left",
		"echo x > left":                              "left /sandbox/left",
		"rm -r output":                               "took /sandbox/output away",
		"rm -r output; ln -s /etc output":            "took /sandbox/output away",
		"rm main.slow; ln -s /etc/passwd main.slow":  "changed /sandbox/main.slow",
		"rm main.slow; mkfifo main.slow":             "changed /sandbox/main.slow",
		"echo old > main.slow":                       "changed /sandbox/main.slow",
		`rm "${gate%/*}/../stdin"`:                   "changed /belljar/log/stdin",
		`mkfifo p; mv p "${gate%/*}/../stdin"`:       "changed /belljar/log/stdin",
		`echo old > "${gate%/*}/../stdin"`:           "changed /belljar/log/stdin",
		"exit 0":                                     "ended before its gate",
		`rm "$gate"; mkfifo "$gate"; exec < "$gate"`: "did not come to its gate",
	} {
		t.Run(mischief, func(t *testing.T) {
			table := strings.Replace(poolTable, "    cat \"$gate\"", "    "+mischief+"\n    cat \"$gate\"", 1)
			b := newPoolBench(t, withTable(t, table+othersOff(t)))
			if strings.HasPrefix(reason, "did not") {
				eventually(t, "it is being made", func() bool { return isMaking(b, "slow") })
			} else {
				eventually(t, "the log gives the reason", func() bool {
					log := b.log.String()
					return strings.Contains(log, "for=slow") && strings.Contains(log, reason)
				})
			}
			if n := len(b.spares(laneLight)) + len(b.spares(laneFull)); n > 0 {
				t.Errorf("%d spare sandboxes", n)
			}
			r := slow("echo $warm; ls . output; cat")
			r.Stdin = "stdin"
			if res := b.must(t, r); res.Stdout != "cold\n.:\ninput\nmain.slow\noutput\n\noutput:\nstdin" || len(res.OutputFiles) > 0 {
				t.Errorf("got %+v", res)
			}
		})
	}
}

// A process that was killed in a sandbox while it waited is not the script's
// fault.
func TestSparesWithAKillAreNotUsed(t *testing.T) {
	var killed atomic.Bool
	b := newPoolBench(t, func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, inspect: func(ctx context.Context, id string) (engine.Receipt, error) {
			r, err := real.Inspect(ctx, id)
			if killed.Load() && strings.HasPrefix(id, kindSpare) {
				r.OOMKills = 1
			}
			return r, err
		}}
	})
	b.full(t)
	killed.Store(true)
	if res := b.must(t, slow("echo $warm; exit 3")); res.Stdout != "cold\n" || res.ReturnCode != 3 || res.Error != "" {
		t.Errorf("got %+v", res)
	}
	eventually(t, "others are not made so", func() bool { return strings.Contains(b.log.String(), errKilled.Error()) })
	if n := len(b.spares(laneLight)); n > 0 {
		t.Errorf("%d spare sandboxes", n)
	}
}

// Of a pool whose sandboxes hang, a run waits for one only.
func TestHangingSpares(t *testing.T) {
	defer func(d time.Duration) { claimTime = d }(claimTime)
	claimTime = time.Second
	var hang atomic.Bool
	b := newPoolBench(t, hanging(&hang))
	for range 6 {
		b.must(t, slow("true")) // the pool grows
	}
	b.full(t)
	if n := len(b.spares(laneLight)); n < 3 {
		t.Fatalf("%d spare sandboxes only", n)
	}
	hang.Store(true)
	begun := time.Now()
	res := b.must(t, slow("echo $warm"))
	if took := time.Since(begun); res.Stdout != "cold\n" || took > 3*claimTime {
		t.Errorf("%q after %v", res.Stdout, took)
	}
}

// A place is given on also if the sandbox was gone before it held the place.
func TestLateHoldOfAPlace(t *testing.T) {
	given := 0
	b := &box{state: Gone}
	b.hold(func() { given++ })
	if given != 1 {
		t.Errorf("the place was given on %d times", given)
	}
	b = &box{state: Used}
	if b.hold(func() { given++ }); given != 1 {
		t.Error("the place was given on too early")
	}
}
