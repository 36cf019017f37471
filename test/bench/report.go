package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// results is all that was measured.
type results struct {
	rounds   int
	loadTime time.Duration

	facts       []fact
	contestants []contestant
	absent      []absence
	workloads   []workload
	times       map[string]map[string]times // by workload and contestant
	loads       map[string]map[int]float64  // runs per second, by contestant and callers
	memory      memory
	workspaces  workspaces
	waits       int // for the machine to come to rest
	givenUp     int
}

// write prints everything as Markdown that can be read as it is.
func (r *results) write(out io.Writer) {
	fmt.Fprint(out, "# Benchmarks\n\nMade by `make bench`; not to be edited. All figures are from one run on one machine.\n\n")
	r.writeVerdicts(out)
	for _, w := range r.workloads {
		r.writeTimes(out, w)
	}
	r.workspaces.write(out)
	r.writeLoads(out)
	r.writeMemory(out)
	r.writeMachine(out)
	r.writeMethod(out)
}

func (r *results) writeVerdicts(out io.Writer) {
	fmt.Fprint(out, "## What it must show\n\n")
	t := table{rows: [][]string{{"Belljar, warm; medians", "wanted", "measured", "met"}}}
	for _, v := range r.judge() {
		t.add(v.what, v.want, v.got, v.met)
	}
	t.write(out)
	for _, a := range r.absent {
		fmt.Fprintf(out, "Absent: %s (%s).\n\n", a.name, a.reason)
	}
}

func (r *results) writeTimes(out io.Writer, w workload) {
	all := r.times[w.name]
	timed, _ := w.rounds(r.rounds)
	fmt.Fprintf(out, "## Time of %s\n\nTimed runs: %d each.\n\n", w.title, timed)
	t := figures("", "median, ms", "p95, ms", "of bare", "faster than docker", "faster than podman")
	for _, c := range r.contestants {
		if len(all[c.name]) == 0 {
			continue
		}
		m := all[c.name].median()
		t.add(c.name, ms(m), ms(all[c.name].p95()),
			ratio(m, all[bareName]), faster(all[dockerName], m), faster(all[podmanName], m))
	}
	t.write(out)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1000) }

// ratio is a over the median of b.
func ratio(a time.Duration, b times) string {
	if len(b) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(a)/float64(b.median()))
}

// faster is how many times faster a is than the median of b.
func faster(b times, a time.Duration) string {
	if len(b) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ×", float64(b.median())/float64(a))
}

func (r *results) writeLoads(out io.Writer) {
	if len(r.loads) == 0 {
		return
	}
	fmt.Fprintf(out, "## Throughput\n\nRuns of `print(1)` per second, kept up for %.0f s by %d callers and for a third of that by others. A pool is refilled in that time, which takes what a run without one takes: what it has at the start is soon used up.\n\n", r.loadTime.Seconds(), judged)
	header := []string{"callers"}
	for _, n := range callers {
		header = append(header, fmt.Sprint(n))
	}
	t := figures(header...)
	for _, c := range r.contestants {
		if r.loads[c.name] == nil {
			continue
		}
		row := []string{c.name}
		for _, n := range callers {
			row = append(row, fmt.Sprintf("%.1f", r.loads[c.name][n]))
		}
		t.add(row...)
	}
	t.write(out)
}

func (r *results) writeMemory(out io.Writer) {
	fmt.Fprintf(out, "## Memory\n\nOf a sandbox in the pool, in MiB: what its control group uses, without file pages that were not used of late, and what one more makes the server's own memory grow (by that of a server with %d bare ones).\n\n", crowd)
	t := figures("sandbox", "ready", "its group", "server", "both")
	for _, l := range sortedLanes(r.memory.spares) {
		u := r.memory.spares[l]
		each := u.bytes / u.sandboxes
		t.add(strings.TrimSpace(l.runtime+" "+l.kind), fmt.Sprint(u.sandboxes),
			mib(each), mib(r.memory.growth), mib(each+r.memory.growth))
	}
	t.write(out)
	fmt.Fprint(out, "Of a server, in MiB: resident.\n\n")
	t = figures("", "just started", "after all runs")
	for _, name := range []string{warmName, coldName} {
		m := r.memory.servers[name]
		t.add(name, mib(m.started), mib(m.after))
	}
	t.write(out)
}

func sortedLanes(m map[lane]usage) []lane {
	var lanes []lane
	for l := range m {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b lane) int {
		return cmp.Or(cmp.Compare(a.runtime, b.runtime), cmp.Compare(a.kind, b.kind))
	})
	return lanes
}

func mib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

func (r *results) writeMachine(out io.Writer) {
	fmt.Fprint(out, "## Machine and versions\n\n")
	t := table{rows: [][]string{{"", ""}}}
	for _, f := range r.facts {
		t.add(f.name, f.value)
	}
	t.write(out)
}

func (r *results) writeMethod(out io.Writer) {
	fmt.Fprint(out, "## How it is measured\n\n")
	for _, c := range r.contestants {
		fmt.Fprintf(out, "- %s: %s.\n", c.name, c.about)
	}
	fmt.Fprintf(out, `
The contestants take turns, one run each, so that what else the machine does hits all alike; the first rounds are not counted. Before each timed run the machine comes to rest: no server makes or removes a sandbox, a spare sandbox of the right kind is ready, and the CPUs are idle, so that neither the refilling of a pool nor what is cleared away after a run falls into the next one's time. The throughput has all of that in it. Of %d waits for rest, %d were given up, since the machine had other work.

All run the same image. p95 of fewer than 20 runs is the slowest. Where a LaTeX document comes on standard input, latexmk makes it; Belljar and the chroot have the driver of Belljar's runtime, which does the same passes.
`, r.waits, r.givenUp)
}
