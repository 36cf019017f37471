package test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRGraphicsExamples: the examples of R's base graphics, each page's as a
// script, end as they do bare.
func TestRGraphicsExamples(t *testing.T) {
	s := scienceServer(t)
	written := s.succeed(t, "r", `
pages <- tools::Rd_db("graphics")
for (page in names(pages)) tools::Rd2ex(pages[[page]], file.path("output", sub("Rd$", "R", page)))`)
	if len(written.Files) < 30 {
		t.Fatalf("only %d pages have examples", len(written.Files))
	}
	dir := t.TempDir()
	for _, f := range written.Files {
		put(t, filepath.Join(dir, f.Name), f.data(t))
	}
	// Bare is Rscript alone, in the same files.
	out := inImage(t, imageRoot(t, s.state, "science"), dir, `
		for script in "$dir"/*.R; do
			cp "$script" "$root/sandbox/main.R"
			code=0
			enter timeout 120 Rscript main.R </dev/null >/dev/null 2>&1 || code=$?
			echo "${script##*/} $code"
		done`)
	bare := strings.Fields(out)
	if len(bare) != 2*len(written.Files) {
		t.Fatalf("the bare runs say %q", out)
	}
	drawn := 0
	for i := 0; i < len(bare); i += 2 {
		name, want := bare[i], bare[i+1]
		r := s.run(t, "r", load(t, filepath.Join(dir, name)), args{"timeout": 120})
		if got := strconv.Itoa(r.ReturnCode); got != want {
			t.Errorf("%s ends with %s, bare with %s: %s", name, got, want, r)
		}
		for _, f := range r.Files {
			if f.Name == "Rplots.pdf" && f.Bytes > 1000 {
				drawn++
			}
		}
	}
	if drawn < 30 {
		t.Errorf("only %d of them drew", drawn)
	}
}
