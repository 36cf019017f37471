package test

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	_ "image/gif"
	"image/png"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	diff "github.com/google/go-cmp/cmp"
)

// Real work in every runtime, with its outputs checked.
//
// A case is a directory testdata/runtimes/RUNTIME/CASE with
//
//	main.EXT   the script, EXT being the runtime's extension
//	input/     the run's input files, if any, with sub-directories
//	stdin      the run's standard input, if any
//	want.toml  what must come of it
//
// and want.toml holds, all of it optional:
//
//	returncode = 0             as the result has it
//	stdout = "all of it\n"     exactly
//	stdout_match = ['^a', 'b'] regular expressions that it matches somewhere
//	stderr = ""                likewise
//	stderr_match = []
//	error_match = []           of the result's error
//	notes_match = []           of the result's notes, one a line
//	number = [{match = 'slope (\S+)', value = 2.5, tolerance = 0.01}]
//	                           the first group, found in stdout, is about value
//	varies = ['\d+ ms']        what need not be equal in two runs, in text
//
//	[[file]]                   an output file; these, and no others, come back
//	name = "plot.pdf"          a path below output
//	width = 640                of a picture, in pixels;
//	height = 480               of a PDF's first page, in points, up to one
//	colours = 3                that a picture has at least, so that it is not
//	                           blank; of a PDF's pages, drawn; 2 if absent
//	pages = 1                  of a PDF
//	show = 'gdalinfo "$1"'     a command whose output is the file's text; it
//	                           runs in a sandbox of its own, as Bash
//	match = ['^Type: Float32'] regular expressions that the text matches
//	number = []                as above, found in the text
//
// The text of a PDF is what pdftotext makes of it, that of other files what
// is in them. Pictures are PNG, JPEG and GIF. In regular expressions ^ and $
// are the ends of lines.
//
// Every case runs cold, and if its runtime can start early also warm; both
// must come out as wanted, and as one another.

// wanted is a want.toml.
type wanted struct {
	ReturnCode  int      `toml:"returncode"`
	Stdout      *string  `toml:"stdout"`
	StdoutMatch []string `toml:"stdout_match"`
	Stderr      *string  `toml:"stderr"`
	StderrMatch []string `toml:"stderr_match"`
	ErrorMatch  []string `toml:"error_match"`
	NotesMatch  []string `toml:"notes_match"`
	Numbers     []number `toml:"number"`
	Varies      []string `toml:"varies"`
	Files       []struct {
		Name    string   `toml:"name"`
		Width   int      `toml:"width"`
		Height  int      `toml:"height"`
		Colours int      `toml:"colours"`
		Pages   int      `toml:"pages"`
		Show    string   `toml:"show"`
		Match   []string `toml:"match"`
		Numbers []number `toml:"number"`
	} `toml:"file"`
}

type number struct {
	Match     string  `toml:"match"`
	Value     float64 `toml:"value"`
	Tolerance float64 `toml:"tolerance"`
}

// looks is how an output file looks.
type looks struct {
	data   []byte
	text   string
	images []image.Image // a picture, or the pages of a PDF
}

// TestRuntimes runs the cases of testdata/runtimes, of which every runtime
// has some.
func TestRuntimes(t *testing.T) {
	cold, warm := scienceColdShared.get(t), scienceServer(t)
	for name := range cold.runtimes(t) {
		t.Run(name, func(t *testing.T) {
			cases := glob("testdata/runtimes/" + name + "/*")
			if len(cases) == 0 {
				t.Fatal("it has no case")
			}
			for _, dir := range cases {
				t.Run(filepath.Base(dir), func(t *testing.T) { testCase(t, cold, warm, name, dir) })
			}
		})
	}
}

func testCase(t *testing.T, cold, warm *server, runtime, dir string) {
	var want wanted
	meta, err := toml.DecodeFile(filepath.Join(dir, "want.toml"), &want)
	if err != nil {
		t.Fatal(err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		t.Fatalf("want.toml: unknown keys %v", unknown)
	}
	script, more := readCase(t, dir)
	first := cold.run(t, runtime, script, more)
	firstFiles := cold.look(t, first, want)
	check(t, "cold", want, first, firstFiles)
	second := warm.runWarm(t, runtime, script, more)
	secondFiles := warm.look(t, second, want)
	check(t, "warm", want, second, secondFiles)
	compare(t, want, first, second, firstFiles, secondFiles)
}

// readCase reads what is sent of a case.
func readCase(t *testing.T, dir string) (script string, more args) {
	t.Helper()
	main := glob(filepath.Join(dir, "main.*"))
	if len(main) != 1 {
		t.Fatalf("scripts: %q, want one", main)
	}
	files := map[string]string{}
	input := filepath.Join(dir, "input")
	err := filepath.WalkDir(input, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(input, file)
		files[name] = load(t, file)
		return err
	})
	if _, missing := os.Stat(input); err != nil && missing == nil {
		t.Fatal(err)
	}
	more = inputs(files)
	more["timeout"] = 300
	if stdin := filepath.Join(dir, "stdin"); len(glob(stdin)) > 0 {
		more["stdin"] = load(t, stdin)
	}
	return load(t, main[0]), more
}

// runWarm runs a script in a sandbox that has waited for it.
func (s *server) runWarm(t *testing.T, runtime, script string, more ...args) *result {
	t.Helper()
	if !eventually(func() bool { return s.waiting(t, runtime) }) {
		t.Fatal("no sandbox waits for its script")
	}
	hits := s.pool(t, "hits_total", runtime)
	r := s.run(t, runtime, script, more...)
	if s.pool(t, "hits_total", runtime) != hits+1 {
		t.Error("the warm run did not get a sandbox that waited")
	}
	return r
}

// pool sums up one of the pool's metrics for a runtime.
func (s *server) pool(t testing.TB, what, runtime string) (sum float64) {
	t.Helper()
	for _, kind := range []string{"bare", "light", "full"} {
		sum += s.metric(t, fmt.Sprintf("belljar_pool_%s{kind=%q,runtime=%q}", what, kind, runtime))
	}
	return sum
}

// waiting is whether all kinds of sandboxes wait that a runtime's script can
// begin in.
func (s *server) waiting(t testing.TB, runtime string) bool {
	return s.pool(t, "target", runtime) > 0 && s.pool(t, "ready", runtime) >= s.pool(t, "target", runtime)
}

// look fetches the output files. What the programs of the image science are
// needed for is done in a sandbox.
func (s *server) look(t *testing.T, r *result, want wanted) map[string]*looks {
	t.Helper()
	commands := map[string]string{}
	for _, f := range want.Files {
		commands[f.Name] = f.Show
	}
	all := map[string]*looks{}
	shown := map[string]string{} // input files of that run
	var show strings.Builder
	for i, f := range r.Files {
		l := &looks{data: []byte(f.data(t))}
		l.text = string(l.data)
		all[f.Name] = l
		command := commands[f.Name]
		if strings.HasPrefix(l.text, "%PDF-") {
			command = cmp.Or(command, `pdftotext -layout "$1" -`)
			fmt.Fprintf(&show, "pdftoppm -r 72 -png %q output/%d\n", fmt.Sprintf("input/%d/%s", i, path.Base(f.Name)), i)
		}
		if command != "" {
			shown[fmt.Sprintf("%d/%s", i, path.Base(f.Name))] = l.text
			fmt.Fprintf(&show, "show() { %s; }; show %q >output/%d.txt 2>&1\n", command, fmt.Sprintf("input/%d/%s", i, path.Base(f.Name)), i)
		}
		if img, _, err := image.Decode(bytes.NewReader(l.data)); err == nil {
			l.images = append(l.images, img)
		}
	}
	if len(shown) == 0 {
		return all
	}
	seen := s.succeed(t, "bash", show.String()+"true\n", inputs(shown))
	for i, f := range r.Files {
		for _, o := range seen.Files {
			switch {
			case o.Name == fmt.Sprintf("%d.txt", i):
				all[f.Name].text = o.data(t)
			case strings.HasPrefix(o.Name, fmt.Sprintf("%d-", i)):
				page, err := png.Decode(strings.NewReader(o.data(t)))
				if err != nil {
					t.Fatal(err)
				}
				all[f.Name].images = append(all[f.Name].images, page)
			}
		}
	}
	return all
}

// check compares a run with what is wanted of it.
func check(t *testing.T, how string, want wanted, r *result, files map[string]*looks) {
	t.Helper()
	if r.ReturnCode != want.ReturnCode || r.Success != (want.ReturnCode == 0) || r.TimedOut {
		t.Errorf("%s: return code %d, want %d", how, r.ReturnCode, want.ReturnCode)
	}
	if want.Stdout != nil && r.Stdout != *want.Stdout {
		t.Errorf("%s: stdout (-want +got):\n%s", how, diff.Diff(*want.Stdout, r.Stdout))
	}
	if want.Stderr != nil && r.Stderr != *want.Stderr {
		t.Errorf("%s: stderr (-want +got):\n%s", how, diff.Diff(*want.Stderr, r.Stderr))
	}
	match(t, how+": stdout", r.Stdout, want.StdoutMatch, want.Numbers)
	match(t, how+": stderr", r.Stderr, want.StderrMatch, nil)
	match(t, how+": the error", r.Error, want.ErrorMatch, nil)
	match(t, how+": the notes", strings.Join(r.Notes, "\n"), want.NotesMatch, nil)
	var names []string
	for _, f := range want.Files {
		names = append(names, f.Name)
		l := files[f.Name]
		if l == nil {
			continue // the comparison of names says it
		}
		what := how + ": " + f.Name
		match(t, what, l.text, f.Match, f.Numbers)
		if f.Pages > 0 && len(l.images) != f.Pages {
			t.Errorf("%s has %d pages, want %d", what, len(l.images), f.Pages)
		}
		if f.Width > 0 && len(l.images) == 0 {
			t.Errorf("%s is no picture", what)
		}
		if len(l.images) > 0 {
			size := l.images[0].Bounds().Size()
			slack := 0
			if bytes.HasPrefix(l.data, []byte("%PDF-")) {
				slack = 1
			}
			if f.Width > 0 && max(abs(size.X-f.Width), abs(size.Y-f.Height)) > slack {
				t.Errorf("%s is %d × %d, want %d × %d", what, size.X, size.Y, f.Width, f.Height)
			}
			if n, least := colours(l.images), cmp.Or(f.Colours, 2); n < least {
				t.Errorf("%s has %d colours, want %d", what, n, least)
			}
		}
	}
	slices.Sort(names)
	if d := diff.Diff(names, r.names()); d != "" && len(names)+len(r.Files) > 0 {
		t.Errorf("%s: the files (-want +got):\n%s", how, d)
	}
	if t.Failed() {
		t.Logf("%s: error %q, notes %q, stdout and stderr:\n%s\n%s", how, r.Error, r.Notes, tail(r.Stdout, 2000), tail(r.Stderr, 2000))
	}
}

func abs(n int) int { return max(n, -n) }

func match(t *testing.T, what, text string, patterns []string, numbers []number) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(text) {
			t.Errorf("%s does not match %q", what, p)
		}
	}
	for _, n := range numbers {
		m := regexp.MustCompile("(?m)" + n.Match).FindStringSubmatch(text)
		if len(m) < 2 {
			t.Errorf("%s: no number at %q", what, n.Match)
			continue
		}
		if got, err := strconv.ParseFloat(m[1], 64); err != nil || math.Abs(got-n.Value) > n.Tolerance {
			t.Errorf("%s: %q is %s, want %v ± %v", what, n.Match, m[1], n.Value, n.Tolerance)
		}
	}
}

// compare compares two runs of one script.
func compare(t *testing.T, want wanted, a, b *result, aFiles, bFiles map[string]*looks) {
	t.Helper()
	same := func(what, a, b string) {
		t.Helper()
		for _, p := range want.Varies {
			pattern := regexp.MustCompile("(?m)" + p)
			a, b = pattern.ReplaceAllString(a, "…"), pattern.ReplaceAllString(b, "…")
		}
		if a != b {
			t.Errorf("%s differs (-cold +warm):\n%s", what, diff.Diff(a, b))
		}
	}
	same("stdout", a.Stdout, b.Stdout)
	same("stderr", a.Stderr, b.Stderr)
	same("the error", a.Error, b.Error)
	same("the return code", strconv.Itoa(a.ReturnCode), strconv.Itoa(b.ReturnCode))
	same("the list of files", strings.Join(a.names(), "\n"), strings.Join(b.names(), "\n"))
	for name, l := range aFiles {
		m := bFiles[name]
		switch {
		case m == nil || bytes.Equal(l.data, m.data):
		case len(l.images) == 0:
			same(name, l.text, m.text)
		case !slices.EqualFunc(l.images, m.images, samePicture):
			t.Errorf("%s looks otherwise when warm", name)
		case l.text != string(l.data): // of a PDF
			same(name, l.text, m.text)
		}
	}
}

func samePicture(a, b image.Image) bool {
	if a.Bounds() != b.Bounds() {
		return false
	}
	for y := a.Bounds().Min.Y; y < a.Bounds().Max.Y; y++ {
		for x := a.Bounds().Min.X; x < a.Bounds().Max.X; x++ {
			if !sameColour(a.At(x, y), b.At(x, y)) {
				return false
			}
		}
	}
	return true
}

func sameColour(a, b color.Color) bool {
	return color.RGBA64Model.Convert(a) == color.RGBA64Model.Convert(b)
}

// colours counts the colours of pictures.
func colours(images []image.Image) int {
	seen := map[color.Color]bool{}
	for _, img := range images {
		for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
			for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
				seen[color.RGBA64Model.Convert(img.At(x, y))] = true
			}
		}
	}
	return len(seen)
}
