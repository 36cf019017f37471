package test

import (
	"strings"
	"testing"
)

// TestWarmRunsDiffer: what is random is so in every run, although interpreters
// were started alike. Each line of a script's output is a draw.
func TestWarmRunsDiffer(t *testing.T) {
	s := scienceWarmShared.get(t)
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
	cold, warm := scienceColdShared.get(t), scienceWarmShared.get(t)
	for _, tt := range []struct{ name, runtime, script, cold, warm string }{
		{"modules", "python", `import numpy; print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "True\n"},
		{"submodules", "python", `import matplotlib; print(hasattr(matplotlib, "pyplot"))`, "False\n", "True\n"},
		{"the collector", "python", `import gc, numpy; print(gc.get_freeze_count() > 0)`, "False\n", "True\n"},
		{"modules before an import", "python", `# numpy
import sys; print(len(getattr(sys, "mod" "ules")) < 60, "warnings" in getattr(sys, "mod" "ules"))`, "True False\n", "True False\n"},
		{"modules of a script that names no library", "python", `import json, sys; print("re" in getattr(sys, "mod" "ules"), "logging" in getattr(sys, "mod" "ules"))`, "True False\n", "True False\n"},
		{"start anew for a variable", "python", `import os; os.environ["A"] = "1"; import numpy; print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "False\n"},
		{"start anew for a longer variable", "python", `import os; os.environ["PATH"] += ":/"; import numpy; print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "False\n"},
		{"start anew for a backend", "python", `import matplotlib; matplotlib.use("svg"); print("pandas" in getattr(__import__("sys"), "mod" "ules"))`, "False\n", "False\n"},
		{"no new start for Agg, or to read a variable", "python", `import matplotlib, os; matplotlib.use("Agg"); print(os.environ["HOME"], os.environ.get("NONE"), os.environ["USER"] == "root", "pandas" in getattr(__import__("sys"), "mod" "ules"))`, "/root None True False\n", "/root None True True\n"},
		{"the variables", "python", `import os; print([v for v in os.popen("env") if "BELLJAR" in v or "belljar" in v])`, "[]\n", "[]\n"},
		{"namespaces", "r", `# ggplot2
cat("dplyr" %in% loadedNamespaces(), "package:dplyr" %in% search(), "\n")`, "FALSE FALSE \n", "TRUE FALSE \n"},
		{"namespaces of a script that names none", "r", `cat(setdiff(loadedNamespaces(), c("compiler", "graphics", "utils", "grDevices", "stats", "datasets", "methods", "base")), "\n")`, " \n", " \n"},
		{"options", "r", `# dplyr
cat(is.null(getOption("dplyr.show_progress")), "\n")`, "TRUE \n", "FALSE \n"},
		{"names", "octave", `who; disp (exist ("belljar_start"))`, "0\n", "0\n"},
		{"symbols", "julia", `println(parse(Int, string(gensym())[3:end]) > 260)`, "false\n", "true\n"},
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

// TestWarmEnds: a script ends warm as it does cold, however it ends.
func TestWarmEnds(t *testing.T) {
	cold, warm := scienceColdShared.get(t), scienceWarmShared.get(t)
	for _, tt := range []struct {
		runtime, script string
		code            int
	}{
		{"python", `raise SystemExit`, 0},
		{"python", `import sys; sys.exit("in words")`, 1},
		{"python", `import numpy, sys; sys.exit("in words")`, 1},
		{"python", `raise KeyboardInterrupt`, 128 + 2},
		{"python", `import pandas, os; print("a", end=""); os._exit(7)`, 7},
		{"python", `import os; os.abort()`, 128 + 6},
		{"python", `import os, signal, numpy; os.kill(os.getpid(), signal.SIGTERM)`, 128 + 15},
		{"python", `import os, signal; os.kill(os.getpid(), signal.SIGKILL)`, 128 + 9},
		{"python", "def f():\n\tif 1:\n        pass\n", 1},
		{"python", "import numpy\nprint('never')\nx = = 3\n", 1},
		{"r", `cat("a"); q("no", 4)`, 4},
		{"r", `tools::pskill(Sys.getpid())`, 128 + 15},
		{"r", `f <- function(n) f(n + 1); f(1)`, 1},
		{"octave", `error ("no newline")`, 1},
		{"octave", `kill (getpid (), 9);`, 128 + 9},
		{"julia", `exit(3)`, 3},
		{"julia", `throw("a string")`, 1},
		{"julia", "println(1)\nx = )", 1},
	} {
		t.Run(tt.runtime, func(t *testing.T) {
			a, b := cold.run(t, tt.runtime, tt.script), warm.runWarm(t, tt.runtime, tt.script)
			if a.ReturnCode != tt.code || b.ReturnCode != tt.code || a.Stdout != b.Stdout || a.Stderr != b.Stderr || a.Error != b.Error {
				t.Errorf("%q, want code %d\ncold: %d %q %q %q\nwarm: %d %q %q %q", tt.script, tt.code,
					a.ReturnCode, a.Stdout, a.Stderr, a.Error, b.ReturnCode, b.Stdout, b.Stderr, b.Error)
			}
		})
	}
}
