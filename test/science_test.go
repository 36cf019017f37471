package test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runtimeInfo is an entry of list_runtimes's result, as clients rely on it.
type runtimeInfo struct {
	Name      string   `json:"name"`
	Available bool     `json:"available"`
	Reason    string   `json:"reason"`
	Version   string   `json:"version"`
	Image     string   `json:"image"`
	Packages  []string `json:"packages"`
	Missing   []string `json:"missing"`
}

// runtimes returns what list_runtimes says, by name.
func (s *server) runtimes(t testing.TB) map[string]runtimeInfo {
	t.Helper()
	res, err := s.call(t.Context(), modern, "list_runtimes", nil)
	if err != nil || res.IsError {
		t.Fatalf("list_runtimes: %v %v", err, res)
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Runtimes []runtimeInfo }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]runtimeInfo{}
	for _, r := range list.Runtimes {
		all[r.Name] = r
	}
	return all
}

// TestScienceRuntimes: every runtime is in its image, and the image is science
// unless the table says otherwise.
func TestScienceRuntimes(t *testing.T) {
	all := scienceServer(t).runtimes(t)
	for name, r := range all {
		want := "science"
		if name == "julia" {
			want = "julia-bullseye"
		}
		if !r.Available || r.Version == "" || r.Image != want {
			t.Errorf("%s, which should be in %s: %+v", name, want, r)
		}
	}
	python := all["python"]
	installed := func(name string) bool {
		return slices.ContainsFunc(python.Packages, func(p string) bool { return strings.HasPrefix(p, name+" ") })
	}
	for _, name := range []string{"numpy", "scipy", "pandas", "matplotlib", "sympy", "scikit-learn", "geopandas", "pyproj", "rasterio"} {
		if !installed(name) {
			t.Errorf("%s is not among %q", name, python.Packages)
		}
	}
	// What comes from PyPI is there, or it is said why it is not.
	said := slices.ContainsFunc(python.Missing, func(m string) bool {
		return strings.HasPrefix(m, "obspy: ") && strings.Contains(m, "PyPI")
	})
	if installed("obspy") == said {
		t.Errorf("obspy: installed is %v, and missing are %q", installed("obspy"), python.Missing)
	}
}

// TestJuliaOfBullseye: where science has no Julia, an operator's table brings
// one. Whether it started early, a script cannot tell.
func TestJuliaOfBullseye(t *testing.T) {
	const script = `
using Statistics
println(VERSION.major, " ", PROGRAM_FILE, " ", abspath(PROGRAM_FILE) == @__FILE__, " ", names(Main))
println(filter(k -> startswith(k, "BELLJAR"), collect(keys(ENV))), readline(), read(stdin, String))
println(mean(parse.(Float64, readlines("input/a.txt"))))
write("output/b.txt", string(6 * 7))
error("on line 7")
`
	const want = "1 main.jl true [:Base, :Core, :Main]\nString[]helloworld\n\n2.5\n"
	images := []string{"science", "julia-bullseye"}
	for name, settings := range map[string][]string{"warm": nil, "cold": {"BELLJAR_POOL_MEMORY=0"}} {
		t.Run(name, func(t *testing.T) {
			s := startServerWith(t, images, append(settings, "SANDBOX_IMAGE=", "BELLJAR_RUNTIMES="+exampleTable("julia"))...)
			if name == "warm" && !eventually(func() bool { return s.waiting(t, "julia") }) {
				t.Fatal("no sandbox waits for a script")
			}
			r := s.run(t, "julia", script, inputs(map[string]string{"a.txt": "2\n3\n"}), args{"stdin": "hello\nworld\n"})
			if r.Stdout != want || r.ReturnCode != 1 || !strings.Contains(r.Stderr, "on line 7") || !strings.Contains(r.Stderr, "/sandbox/main.jl:7") ||
				len(r.Files) != 1 || r.Files[0].Text == nil || *r.Files[0].Text != "42" {
				t.Errorf("%s", r)
			}
			if hits := s.pool(t, "hits_total", "julia"); hits > 0 != (name == "warm") {
				t.Errorf("%v runs found a waiting sandbox", hits)
			}
		})
	}
}

// TestScienceWithoutJulia: with the built-in table, Julia is one of science's
// runtimes, or it is said why it is not.
func TestScienceWithoutJulia(t *testing.T) {
	s := startServerWith(t, []string{"science"}, "SANDBOX_IMAGE=")
	julia, known := s.runtimes(t)["julia"]
	if !known {
		t.Fatal("no runtime julia")
	}
	if julia.Available {
		if r := s.succeed(t, "julia", "println(1 + 1)"); r.Stdout != "2\n" {
			t.Errorf("julia says %s", r)
		}
		return
	}
	if !regexp.MustCompile(`^the image "science" was built without it: .*Julia \d+\.\d+\.\d+`).MatchString(julia.Reason) {
		t.Errorf("julia is not there: %q", julia.Reason)
	}
}

// TestScienceTools: the programs that runtimes and previews call.
func TestScienceTools(t *testing.T) {
	r := scienceServer(t).succeed(t, "bash", `
for p in Rscript python3 gmt gdal_translate grass gnuplot octave-cli pdftoppm rsvg-convert gs convert \
	pdflatex xelatex lualatex bibtex biber latexmk awk bc curl jq unzip zip; do
	command -v $p >/dev/null || echo "no $p"
done
kpsewhich tikz.sty pgfplots.sty biblatex.sty booktabs.sty siunitx.sty beamer.cls | wc -l
Rscript -e 'for (p in c("ggplot2", "dplyr", "tidyr", "jsonlite")) library(p, character.only = TRUE)' 2>/dev/null || echo "R lacks packages"
Rscript -e 'cat(basename(dirname(extSoftVersion()[["BLAS"]])), "\n")'
python3 -c 'import os, numpy; numpy.ones((9, 9)) @ numpy.ones((9, 9)); print("openblas" in open("/proc/self/maps").read())'`)
	if r.Stdout != "6\nopenblas-pthread \nTrue\n" {
		t.Errorf("%s", r)
	}
}

// TestScienceIsWarm: what programs would compute in every run is in the image.
func TestScienceIsWarm(t *testing.T) {
	r := scienceServer(t).succeed(t, "bash", `
cat >a.tex <<'EOF'
\documentclass[11pt]{article}\title{T}\author{A}\begin{document}\maketitle
\section{S} Text, \textbf{bold}, \emph{italic}, \texttt{code}, $\sum_{i=1}^n x_i^2$.\end{document}
EOF
touch -d '1 second ago' before
MPLCONFIGDIR= python3 -c 'import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig("a.png")'
lualatex -interaction=batchmode a >/dev/null || cat a.log
fc-match serif >/dev/null
find /root/.cache /var/cache/fontconfig /var/lib/texmf -newer before -type f ! -name 'luaotfload-lookup-cache.*'`)
	if r.Stdout != "" {
		t.Errorf("written anew: %s", r)
	}
}
