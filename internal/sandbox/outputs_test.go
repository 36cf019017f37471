package sandbox

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A script that does not know of the output directory loses nothing, and
// hears where its files should go.
func TestBesideOutput(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		want   []string
		note   string // "" for none
	}{
		"one":       {"echo 1 >a.txt", []string{"a.txt"}, "a.txt was written to /sandbox; it is returned, but write to /sandbox/output"},
		"several":   {"echo 1 >b.txt; echo 2 >a.txt; echo 3 >output/c.txt", []string{"a.txt", "b.txt", "c.txt"}, "a.txt, b.txt were written to /sandbox; they are returned"},
		"many":      {"for i in 1 2 3 4 5 6 7; do echo $i >$i; done", []string{"1", "2", "3", "4", "5", "6", "7"}, "1, 2, 3, 4, 5 and 2 more were written"},
		"taken":     {"echo 1 >a.txt; echo 2 >output/a.txt", []string{"a-2.txt", "a.txt"}, "a.txt (returned as a-2.txt) was written to /sandbox"},
		"copied":    {"echo 1 >a.txt; cp a.txt output", []string{"a.txt"}, ""},
		"as long":   {"echo 1 >a.txt; echo 2 >output/a.txt; touch -r a.txt output/a.txt", []string{"a-2.txt", "a.txt"}, "returned as"},
		"unwanted":  {"echo 1 >.hidden; echo 1 >input/x; mkdir d; echo 1 >d/x; ln -s /etc/passwd link; mkfifo pipe; ls main.sh", nil, ""},
		"overwrite": {"echo exit >main.sh; echo 1 >main.txt", []string{"main.txt"}, "main.txt was"},
		"R's":       {"echo 1 >Rplots.pdf", []string{"Rplots.pdf"}, ""},
		"R's too":   {"echo 1 >Rplots.pdf; echo 1 >a", []string{"Rplots.pdf", "a"}, "a was written"},
		"R's second": {"echo 1 >Rplots.pdf; echo 2 >output/Rplots.pdf", []string{"Rplots-2.pdf", "Rplots.pdf"},
			"Rplots.pdf (returned as Rplots-2.pdf) was"},
		"no output":      {"rmdir output; echo 1 >a", []string{"a"}, "a was written"},
		"misleading":     {`echo 1 >$'a\nb'`, []string{"a\nb"}, `"a\nb" was written`},
		"no text":        {`printf '\377' >$'\377'`, []string{"\uFFFD"}, "was written"},
		"name of stdout": {`printf '\377'; echo 1 >stdout.log`, []string{"stdout-2.log", "stdout.log"}, "stdout.log was written"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			res := b.must(t, bash(tc.script))
			if diff := cmp.Diff(tc.want, names(res)); diff != "" || !res.Success {
				t.Errorf("stderr %q, names (-want +got):\n%s", res.Stderr, diff)
			}
			if tc.note != "" {
				wantNote(t, res, tc.note)
			} else if len(res.Notes) > 0 {
				t.Errorf("notes: %q", res.Notes)
			}
		})
	}
}

func TestBesideOutputByContent(t *testing.T) {
	b := newBench(t, func(o *Options) { o.InlineBytes = 1 })
	res := b.must(t, bash("echo mine >f; echo other >output/f; head -c 9000 /dev/zero >big; cp big output"))
	if diff := cmp.Diff([]string{"big", "f", "f-2"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"f": "other\n", "f-2": "mine\n"} {
		if _, data := b.file(t, res, name); string(data) != want {
			t.Errorf("%s holds %q", name, data)
		}
	}
}

// The output directory may be a link to somewhere else; what is beside it
// comes back all the same.
func TestBesideBrokenOutput(t *testing.T) {
	res := newBench(t).must(t, bash("rmdir output; ln -s /etc output; echo 1 >a"))
	if diff := cmp.Diff([]string{"a"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "output files are lost")
	wantNote(t, res, "a was written to /sandbox")
}

// What a language leaves behind is nobody's output.
func TestIgnoredFiles(t *testing.T) {
	b := newBench(t, withTable(t, `
[[runtime]]
name = "messy"
title = "Messy"
extension = "mess"
argv = ["bash", "{script}"]
version = ["bash", "--version"]
ignore = ["*.aux", "main.log", "gmt.?*"]
`))
	res := b.must(t, Request{Runtime: "messy", Script: "touch main.aux b.aux main.log gmt.history; echo 1 >other.log; echo 2 >main.pdf; echo 3 >output/main.log; echo 4 >main.sh"})
	if diff := cmp.Diff([]string{"main.log", "main.pdf", "main.sh", "other.log"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// The files below the output directory come first where not all have room.
func TestBesideTooMany(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxFiles = 3 })
	res := b.must(t, bash("for i in 1 2 3 4; do echo $i >a$i; done; echo 1 >output/x; echo 2 >output/y"))
	if diff := cmp.Diff([]string{"a1", "x", "y"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "left out: 3 more files, since a run may give back 3 at most")

	b = newBench(t, func(o *Options) { o.MaxFiles = 3 })
	res = b.must(t, bash("for i in {1000..1099}; do echo >$i; done; for i in 1 2 3 4; do echo $i >output/$i; done"))
	if diff := cmp.Diff([]string{"1", "2", "3"}, names(res)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantNote(t, res, "left out: 102 more files") // the script is taken for one, since it is beyond what is listed
	if strings.Contains(strings.Join(res.Notes, ""), "was written") {
		t.Errorf("notes: %q", res.Notes)
	}
}
