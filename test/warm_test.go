package test

import (
	"strings"
	"testing"
)

// TestWarmRunsDiffer: what is random is so in every run, although interpreters
// were started alike. Each line of a script's output is a draw.
func TestWarmRunsDiffer(t *testing.T) {
	s := scienceServer(t)
	for _, tt := range []struct{ name, runtime, script string }{
		{"python", "python", `
import random, tempfile, uuid
print(random.random()); print(random.gauss(0, 1)); print(uuid.uuid4()); print(tempfile.mktemp()); print(hash("a"))`},
		{"python with libraries", "python", `
import numpy as np, pandas as pd, random, tempfile
print(random.random()); print(tempfile.mktemp())
print(np.random.rand()); print(np.random.normal()); print(np.random.default_rng().random())
print(pd.Series(range(1000000)).sample(1).iloc[0])`},
		{"r", "r", `cat(runif(1), rnorm(1), sample(1e9, 1), tempfile(), sep = "\n")`},
		{"r with libraries", "r", `library(dplyr); cat(runif(1), nrow(iris) + rexp(1), slice_sample(tibble(a = 1:1e6), n = 1)$a, sep = "\n")`},
		{"octave", "octave", `printf ("%.17g\n", rand (), randn (), rande (), randi (1e9), rand ()); disp (tempname ())`},
		{"julia", "julia", `println(rand()); println(randn()); println(rand(1:10^9)); println(tempname())`},
		{"julia with libraries", "julia", `using Random, Statistics; println(rand()); println(mean(randn(9))); println(randstring(9)); println(randperm(99))`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := s.runWarm(t, tt.runtime, tt.script), s.runWarm(t, tt.runtime, tt.script)
			if !a.Success || !b.Success {
				t.Fatalf("%s\n%s", a, b)
			}
			first, second := strings.Split(strings.TrimSpace(a.Stdout), "\n"), strings.Split(strings.TrimSpace(b.Stdout), "\n")
			if len(first) < 3 || len(first) != len(second) {
				t.Fatalf("%q, then %q", first, second)
			}
			for i := range first {
				if first[i] == second[i] {
					t.Errorf("draw %d gives %s twice", i+1, first[i])
				}
			}
		})
	}
}
