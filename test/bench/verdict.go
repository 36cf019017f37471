package main

import "fmt"

// thresholds compare Belljar's median with a warm sandbox with another's: it
// is at most most of that, or that at least least times it.
var thresholds = []struct {
	workload, other string
	most, least     float64
}{
	{workload: "print", other: bareName, most: 0.8},
	{workload: "plot", other: bareName, most: 0.2},
	{workload: "ggplot", other: bareName, most: 0.4},
	{workload: "print", other: dockerName, least: 10},
	{workload: "print", other: podmanName, least: 5},
	{workload: "plot", other: dockerName, least: 10},
	{workload: "plot", other: podmanName, least: 5},
	{workload: "ggplot", other: dockerName, least: 3},
	{workload: "ggplot", other: podmanName, least: 3},
}

// loadThreshold is for runs per second, Belljar's with a pool over podman's.
const loadThreshold = 5

// judge says for each threshold whether it was met.
func (r *results) judge() []verdict {
	var all []verdict
	for _, t := range thresholds {
		v := atMost(fmt.Sprintf("%s: time over that of the %s", t.workload, t.other), t.most)
		if t.least > 0 {
			v = atLeast(fmt.Sprintf("%s: faster than %s", t.workload, t.other), t.least)
		}
		ours, theirs := r.times[t.workload][warmName], r.times[t.workload][t.other]
		if len(ours) > 0 && len(theirs) > 0 {
			ratio := float64(ours.median()) / float64(theirs.median())
			if t.least > 0 {
				ratio = 1 / ratio
			}
			v.decide(ratio)
		}
		all = append(all, v)
	}
	v := atLeast(fmt.Sprintf("%s: runs per second at %d callers, over those of podman run", loaded, judged), loadThreshold)
	if ours, theirs := r.loads[warmName][judged], r.loads[podmanName][judged]; ours > 0 && theirs > 0 {
		v.decide(ours / theirs)
	}
	return append(append(all, v), r.workspaces.judge()...)
}

// verdict is whether a threshold was met.
type verdict struct {
	what, want, got, met string
	ok                   func(float64) bool
}

func atMost(what string, most float64) verdict {
	return verdict{what, fmt.Sprintf("at most %.1f", most), "not measured", "-", func(x float64) bool { return x <= most }}
}

func atLeast(what string, least float64) verdict {
	return verdict{what, fmt.Sprintf("at least %.0f times", least), "not measured", "-", func(x float64) bool { return x >= least }}
}

func (v *verdict) decide(x float64) {
	v.got, v.met = fmt.Sprintf("%.2f", x), "no"
	if v.ok(x) {
		v.met = "yes"
	}
}
