package main

import "fmt"

// verdict is what came of a threshold.
type verdict struct {
	what, want string
	got        string
	met        bool
}

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
const (
	loadThreshold = 5
	loadCallers   = 4
)

const notMeasured = "not measured"

// judge says for each threshold whether it was met.
func (r *results) judge() []verdict {
	var all []verdict
	for _, t := range thresholds {
		v := verdict{what: fmt.Sprintf("%s: time over that of the %s", t.workload, t.other), want: fmt.Sprintf("at most %.1f", t.most)}
		if t.least > 0 {
			v.what, v.want = fmt.Sprintf("%s: faster than %s", t.workload, t.other), fmt.Sprintf("at least %.0f times", t.least)
		}
		ours, theirs := r.times[t.workload][warmName], r.times[t.workload][t.other]
		switch {
		case len(ours) == 0 || len(theirs) == 0:
			v.got = notMeasured
		case t.least > 0:
			ratio := float64(theirs.median()) / float64(ours.median())
			v.got, v.met = fmt.Sprintf("%.1f times", ratio), ratio >= t.least
		default:
			ratio := float64(ours.median()) / float64(theirs.median())
			v.got, v.met = fmt.Sprintf("%.2f", ratio), ratio <= t.most
		}
		all = append(all, v)
	}
	return append(all, r.judgeLoad())
}

func (r *results) judgeLoad() verdict {
	v := verdict{
		what: fmt.Sprintf("%s: runs per second at %d callers, over those of podman run", loaded, loadCallers),
		want: fmt.Sprintf("at least %d times", loadThreshold), got: notMeasured,
	}
	ours, theirs := r.loads[warmName][loadCallers], r.loads[podmanName][loadCallers]
	if ours > 0 && theirs > 0 {
		v.got, v.met = fmt.Sprintf("%.1f times", ours/theirs), ours/theirs >= loadThreshold
	}
	return v
}
