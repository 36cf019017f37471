package main

import (
	"strings"
	"testing"
	"time"
)

func TestStatistics(t *testing.T) {
	var hundred times
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	for _, tt := range []struct {
		of          times
		median, p95 time.Duration
	}{
		{times{7}, 7, 7},
		{times{9, 1, 5}, 5, 9},
		{times{4, 1, 3, 2}, 2, 4}, // between 2 and 3 ns
		{hundred, 50500 * time.Microsecond, 95 * time.Millisecond},
	} {
		if m, p := tt.of.median(), tt.of.p95(); m != tt.median || p != tt.p95 {
			t.Errorf("%d times: median %v, p95 %v; want %v, %v", len(tt.of), m, p, tt.median, tt.p95)
		}
	}
}

// TestWorkloads sees that each workload is measured in the part of the pool
// that is meant for such scripts.
func TestWorkloads(t *testing.T) {
	workloads, err := choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]lane{
		"print": {"python", "light"}, "plot": {"python", "full"},
		"ggplot": {"r", "full"}, "latex": {"latex", "full"},
	}
	if len(workloads) != len(want) {
		t.Errorf("%d workloads, want %d", len(workloads), len(want))
	}
	for _, w := range workloads {
		if w.lane() != want[w.name] {
			t.Errorf("%s is for %v, want %v", w.name, w.lane(), want[w.name])
		}
		if timed, before := w.rounds(1); timed != 1 || before < 1 {
			t.Errorf("%s: %d and %d runs of one round", w.name, timed, before)
		}
	}
	if _, err := choose([]string{"print", "tetris"}); err == nil {
		t.Error("an unknown workload is taken")
	}
}

// TestVerdicts judges made-up figures: one just met, one just missed, and one
// of a contestant that was not there.
func TestVerdicts(t *testing.T) {
	r := results{
		times: map[string]map[string]times{"print": {
			warmName: {20 * time.Millisecond}, bareName: {25 * time.Millisecond}, podmanName: {99 * time.Millisecond},
		}},
		loads: map[string]map[int]float64{warmName: {4: 50}, podmanName: {4: 10}},
	}
	got := map[string]string{}
	for _, v := range r.judge() {
		got[v.what] = v.got + " " + v.met
	}
	for what, want := range map[string]string{
		"print: time over that of the bare interpreter":                 "0.80 yes",
		"print: faster than podman run":                                 "4.95 no",
		"print: faster than docker run":                                 "not measured -",
		"print: runs per second at 4 callers, over those of podman run": "5.00 yes",
	} {
		if got[what] != want {
			t.Errorf("%s: %q, want %q", what, got[what], want)
		}
	}
}

func TestTable(t *testing.T) {
	table := figures("", "median, ms")
	table.add("Belljar, warm", "9.5")
	table.add("naïve", "12.0")
	var out strings.Builder
	table.write(&out)
	want := `|               | median, ms |
|---------------|-----------:|
| Belljar, warm |        9.5 |
| naïve         |       12.0 |

`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
