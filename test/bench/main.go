// Bench measures what a run costs, side by side on one machine: Belljar with a
// pool and without, the bare interpreter in a chroot of the same image, the
// OCI runtime by hand, docker run and podman run. It prints a report in
// Markdown; progress goes to standard error.
//
//	bench [options] BELLJAR
//
// It runs as root. The state directory (BELLJAR_STATE_DIR) must have the image
// and no server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are what can be chosen.
type options struct {
	belljar string
	state   string
	image   string
	rounds  int
	load    time.Duration
	rest    time.Duration
	idle    int      // workspaces
	only    []string // workloads
	without []string // tools
	keep    bool
}

func main() {
	o := options{state: os.Getenv("BELLJAR_STATE_DIR")}
	flag.StringVar(&o.image, "image", "science", "image that all contestants run")
	flag.IntVar(&o.rounds, "rounds", 40, "timed runs of the smallest workload; others get fewer")
	flag.DurationVar(&o.load, "load", time.Minute, "how long each throughput is measured; 0 leaves it out")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long to wait in all, before timed runs, for the machine's other work")
	flag.IntVar(&o.idle, "idle", 200, "how many idle workspaces the memory of one is measured with")
	flag.Func("only", "`WORKLOADS` to run, separated by commas: print, plot, ggplot, latex", list(&o.only))
	flag.Func("without", "`TOOLS` to leave out, separated by commas: docker, podman", list(&o.without))
	flag.BoolVar(&o.keep, "keep", false, "keep docker's and podman's copies of the image for the next time, in STATE-bench")
	flag.Parse()
	if flag.NArg() != 1 || o.rounds < 1 || o.idle < 1 {
		fmt.Fprintln(os.Stderr, "usage: bench [options] BELLJAR")
		flag.PrintDefaults()
		os.Exit(2)
	}
	if o.state == "" {
		o.state = "/var/lib/belljar"
	}
	o.belljar = flag.Arg(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := bench(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	r.write(os.Stdout)
}

func list(names *[]string) func(string) error {
	return func(s string) error {
		*names = strings.Split(s, ",")
		return nil
	}
}

// progress tells who waits what is going on.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func bench(ctx context.Context, o options) (_ *results, err error) {
	workloads, err := choose(o.only)
	if err != nil {
		return nil, err
	}
	if o.belljar, err = filepath.Abs(o.belljar); err != nil {
		return nil, err
	}
	s := new(stage)
	defer func() { err = errors.Join(err, s.end()) }()
	r := &results{rounds: o.rounds, loadTime: o.load, workloads: workloads, times: map[string]map[string]times{}}
	if err := s.set(ctx, o, r); err != nil {
		return nil, err
	}
	r.contestants, r.absent = s.contestants, s.absent
	for _, w := range workloads {
		progress("%s", w.title)
		if r.times[w.name], err = compare(ctx, w, o.rounds, s.contestants, s.settler); err != nil {
			return nil, err
		}
	}
	if err := s.measureWorkspaces(ctx, o, o.rounds, r); err != nil {
		return nil, err
	}
	for _, w := range workloads {
		if w.name == loaded && o.load > 0 {
			if err := s.measureLoads(ctx, w, o.load, r); err != nil {
				return nil, err
			}
		}
	}
	if err := s.measureAfter(ctx, r); err != nil {
		return nil, err
	}
	r.waits, r.givenUp = s.settler.waits, s.settler.givenUp
	return r, nil
}
