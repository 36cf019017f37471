package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"belljar/internal/lang"
)

// lane is a part of the pool.
type lane struct{ runtime, kind string }

var metric = regexp.MustCompile(`(?m)^belljar_pool_(\w+)\{kind="(\w+)",runtime="(\w+)"\} (\S+)$`)

// pool reads a gauge or counter of the pool, by lane.
func (s *server) pool(ctx context.Context, name string) (map[lane]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.url, "/mcp")+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	text, err := s.do(req)
	if err != nil {
		return nil, err
	}
	values := map[lane]float64{}
	for _, m := range metric.FindAllSubmatch(text, -1) {
		if string(m[1]) == name {
			values[lane{string(m[3]), string(m[2])}], err = strconv.ParseFloat(string(m[4]), 64)
		}
	}
	return values, err
}

// spares counts the sandboxes in the pool.
func (s *server) spares(ctx context.Context) (int, error) {
	ready, err := s.pool(ctx, "ready")
	if err != nil {
		return 0, err
	}
	table, err := lang.Load()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	shared := map[string]bool{} // images whose bare sandboxes are counted
	for l, n := range ready {
		r, _ := table.Get(l.runtime)
		if l.kind == "bare" && shared[r.Image] {
			continue
		}
		shared[r.Image] = shared[r.Image] || l.kind == "bare"
		sum += n
	}
	return int(sum), nil
}

// settler lets the machine come to rest before a timed run.
type settler struct {
	servers []*server
	held    map[*server]int // sandboxes that stay, beside the pool's
	// patience is how long, in all, to wait for the machine's other work.
	patience time.Duration

	waits, givenUp int
}

const (
	// fillTime is how long a pool may take to fill.
	fillTime = 3 * time.Minute
	// restTime is how long one wait for idle CPUs may take.
	restTime = 2 * time.Second
	// atRest is how many CPUs may be busy on a machine at rest.
	atRest = 0.3
)

// settle waits until no server makes or removes a sandbox, the lanes have a
// spare one, and the CPUs are idle: refilling the pool, and what docker and
// podman clear away after a run, must not fall into the next contestant's.
func (s *settler) settle(ctx context.Context, warm *server, lanes ...lane) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fillTime, errors.New("the pool does not fill, or sandboxes do not go: see the server's log"))
	defer cancel()
	for calm := 0; calm < 2; { // a removal's end and a refill's begin are two moments
		quiet, err := s.quiet(ctx)
		if err == nil && quiet && warm != nil {
			quiet, err = warm.ready(ctx, lanes)
		}
		switch {
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case quiet:
			calm++
		default:
			calm = 0
		}
		pause(ctx, 10*time.Millisecond)
	}
	return s.rest(ctx)
}

// quiet is whether all sandboxes of the servers are spare ones, and none is
// being made or removed.
func (s *settler) quiet(ctx context.Context) (bool, error) {
	for _, server := range s.servers {
		there, err := server.sandboxes()
		if err != nil {
			return false, err
		}
		spares, err := server.spares(ctx)
		if err != nil || there != spares+s.held[server] {
			return false, err
		}
	}
	return true, nil
}

// ready is whether each of the lanes has a spare sandbox.
func (s *server) ready(ctx context.Context, lanes []lane) (bool, error) {
	ready, err := s.pool(ctx, "ready")
	for _, l := range lanes {
		if ready[l] == 0 {
			return false, err
		}
	}
	return true, err
}

// rest waits until the CPUs are idle, as long as patience lasts.
func (s *settler) rest(ctx context.Context) error {
	begun := time.Now()
	defer func() { s.waits++; s.patience -= time.Since(begun) }()
	for {
		busy, err := busyCPUs(ctx, 50*time.Millisecond)
		if err != nil || busy <= atRest {
			return err
		}
		if time.Since(begun) > min(restTime, s.patience) {
			s.givenUp++
			return nil
		}
	}
}

// busyCPUs is how many CPUs were busy for a while.
func busyCPUs(ctx context.Context, d time.Duration) (float64, error) {
	idle, total, err := cpuTicks()
	if err != nil {
		return 0, err
	}
	pause(ctx, d)
	idleNow, totalNow, err := cpuTicks()
	if err != nil || totalNow == total {
		return 0, err
	}
	return (1 - (idleNow-idle)/(totalNow-total)) * float64(runtime.NumCPU()), ctx.Err()
}

// cpuTicks reads the first line of /proc/stat, proc(5).
func cpuTicks() (idle, total float64, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	for i, field := range strings.Fields(line) {
		if i == 0 || i > 8 { // guests' time counts in the user's
			continue
		}
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading /proc/stat: %w", err)
		}
		total += n
		if i == 4 || i == 5 { // idle, and waiting for a disk
			idle += n
		}
	}
	return idle, total, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
