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

// TestWarmDifferences shows what docs/warm.md lists: what differs, and what
// must not.
func TestWarmDifferences(t *testing.T) {
	cold, warm := scienceColdShared.get(t), scienceServer(t)
	for _, tt := range []struct{ name, runtime, script, cold, warm string }{
		{"modules", "python", `import numpy; print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "True\n"},
		{"submodules", "python", `import matplotlib; print(hasattr(matplotlib, "pyplot"))`, "False\n", "True\n"},
		{"the collector", "python", `import gc, numpy; print(gc.get_freeze_count() > 0)`, "False\n", "True\n"},
		{"modules before an import", "python", `# numpy
import sys; print(len(getattr(sys, "mod" "ules")) < 60, "warnings" in getattr(sys, "mod" "ules"))`, "True False\n", "True False\n"},
		{"modules of a script that names no library", "python", `import json, sys; print("re" in getattr(sys, "mod" "ules"), "logging" in getattr(sys, "mod" "ules"))`, "True False\n", "True False\n"},
		{"start anew for a variable", "python", `import os; os.environ["A"] = "1"; import numpy; print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "False\n"},
		{"start anew for a backend", "python", `import matplotlib; matplotlib.use("svg"); print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "False\n"},
		{"no new start for Agg, or to read a variable", "python", `import matplotlib, os; matplotlib.use("Agg"); print(os.environ["HOME"], "pandas" in getattr(__import__("sys"), "mod" "ules"))`, "/root False\n", "/root True\n"},
		{"the variables", "python", `import os; print([v for v in os.popen("env") if "BELLJAR" in v or "belljar" in v])`, "[]\n", "[]\n"},
		{"namespaces", "r", `# ggplot2
cat("dplyr" %in% loadedNamespaces(), "package:dplyr" %in% search(), "\n")`, "FALSE FALSE \n", "TRUE FALSE \n"},
		{"namespaces of a script that names none", "r", `cat(setdiff(loadedNamespaces(), c("compiler", "graphics", "utils", "grDevices", "stats", "datasets", "methods", "base")), "\n")`, " \n", " \n"},
		{"options", "r", `# dplyr
cat(is.null(getOption("dplyr.show_progress")), "\n")`, "TRUE \n", "FALSE \n"},
		{"names", "octave", `who; disp (exist ("belljar_start"))`, "0\n", "0\n"},
		{"names", "julia", `println(setdiff(names(Main, all=true), [:Base, :Core, :Main]))`, "Symbol[]\n", "Symbol[]\n"},
	} {
		t.Run(tt.runtime+" "+tt.name, func(t *testing.T) {
			if r := cold.run(t, tt.runtime, tt.script); r.Stdout != tt.cold || !r.Success {
				t.Errorf("cold, want %q: %s", tt.cold, r)
			}
			if r := warm.runWarm(t, tt.runtime, tt.script); r.Stdout != tt.warm || !r.Success {
				t.Errorf("warm, want %q: %s", tt.warm, r)
			}
		})
	}
}
