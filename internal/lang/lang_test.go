package lang

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestBuiltin(t *testing.T) {
	table, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bash", "gmt", "gnuplot", "grass", "julia", "latex", "octave", "python", "r"}, table.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	py, ok := table.Get("python")
	if !ok {
		t.Fatal("no python")
	}
	if diff := cmp.Diff([]string{"python3", "main.py"}, py.Command()); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"MPLBACKEND=Agg", "PYTHONPATH=/belljar/lib/python", "PYTHONUNBUFFERED=1"}, py.Environ()); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if _, ok := table.Get("cobol"); ok {
		t.Error("Get finds what is not there")
	}
}

func TestOperatorFiles(t *testing.T) {
	julia := write(t, `
[[runtime]]
name = "julia"
title = "Julia"
extension = "jl"
argv = ["julia", "--startup-file=no", "{script}"]
version = ["julia", "--version"]
image = "ghcr.io/example/julia:1.12"
`)
	dash := write(t, `
[[runtime]]
name = "bash"
title = "Dash"
extension = "sh"
argv = ["dash", "{script}"]
version = ["dash", "-c", "echo 1"]
`)
	table, err := Load(julia, dash)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bash", "gmt", "gnuplot", "grass", "julia", "latex", "octave", "python", "r"}, table.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if r, _ := table.Get("bash"); r.Title != "Dash" {
		t.Errorf("bash was not replaced: %+v", r)
	}
	if r, _ := table.Get("julia"); r.Image != "ghcr.io/example/julia:1.12" {
		t.Errorf("julia's image: %q", r.Image)
	}
	all := table.All()
	all[0].Title = "changed"
	if r, _ := table.Get("bash"); r.Title != "Dash" {
		t.Error("a caller's change reached the table")
	}
}

// TestJuliaElsewhere: the example differs from the built-in entry in its image
// alone.
func TestJuliaElsewhere(t *testing.T) {
	builtin, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	example, err := Load("../../examples/runtimes/julia.toml")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := builtin.Get("julia")
	got, _ := example.Get("julia")
	if got.Image == "" {
		t.Error("it names no image")
	}
	got.Image = ""
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Runtime{})); diff != "" {
		t.Errorf("the entry (-built in +example):\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	const entry = `
[[runtime]]
name = "x"
title = "X"
extension = "x"
argv = ["x", "{script}"]
version = ["x"]
`
	replace := func(old, new string) string { return strings.Replace(entry, old, new, 1) }
	for _, tc := range []struct{ name, text, want string }{
		{"syntax", "[[runtime", "line 1"},
		{"keep elsewhere", entry + "warm = true\nkeep = \"../made\"\n", `keep "../made": want the name of a directory`},
		{"keep of a cold one", entry + "keep = \"made\"\n", `in a runtime that is warm`},
		{"unknown table", "[server]\nport = 1\n" + entry, `unknown key "server"`},
		{"unknown key", entry + `colour = "red"`, `runtime 1 ("x"): unknown key "colour"; known are name, title`},
		{"second entry", entry + replace(`"x"`, `"y"`) + "z = 1", `runtime 2 ("y"): unknown key "z"`},
		{"wrong type", replace(`title = "X"`, "title = 1"), `runtime 1 ("x")`},
		{"twice", entry + entry, "twice"},
		{"no name", replace(`name = "x"`, ""), "name"},
		{"bad name", replace(`name = "x"`, `name = "X y"`), `name "X y": want`},
		{"no title", replace(`title = "X"`, ""), "title is missing"},
		{"dotted extension", replace(`extension = "x"`, `extension = ".x"`), "without a dot"},
		{"extension escapes", replace(`extension = "x"`, `extension = "x/../../etc"`), "extension"},
		{"no script", replace(`"{script}"`, `"script"`), "{script}"},
		{"no version", replace(`version = ["x"]`, ""), "version is missing"},
		{"empty program", replace(`version = ["x"]`, `version = [""]`), "version"},
		{"NUL", replace(`version = ["x"]`, `version = ["x", "\u0000"]`), "without NUL"},
		{"variable", entry + "[runtime.env]\n\"A=B\" = \"1\"", `env "A=B"`},
		{"image", entry + `image = "--rm"`, "image"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := write(t, tc.text)
			_, err := Load(file)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), file) {
				t.Errorf("got %v, want an error of %s with %q", err, file, tc.want)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.toml")); err == nil {
		t.Error("an absent file was accepted")
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "runtimes.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A script is looked through from its beginning, and not to the end of the data
// that it may hold.
func TestPreloads(t *testing.T) {
	table, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	py, _ := table.Get("python")
	bash, _ := table.Get("bash")
	data := "x = '''" + strings.Repeat("0123456789\n", 1<<20) + "'''\n"
	for _, c := range []struct {
		runtime Runtime
		script  string
		want    bool
	}{
		{py, "import numpy as np\n", true},
		{py, "print(1)\n", false},
		{py, "import numpys\n", false},
		{py, "import numpy\n" + data, true},
		{py, data + "import numpy\n", false},
		{bash, "import numpy\n", false},
	} {
		if got := c.runtime.Preloads(c.script); got != c.want {
			t.Errorf("%s, %.30q: %v, want %v", c.runtime.Name, c.script, got, c.want)
		}
	}
}
