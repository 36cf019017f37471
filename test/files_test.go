package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFilesBesideOutput: a script that writes to its working directory loses
// nothing, and is told where to write.
func TestFilesBesideOutput(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "python", `
import matplotlib.pyplot as plt, os, shutil
plt.plot([1, 2, 3])
plt.savefig("plot.png")
open("table.csv", "w").write("a,b\n1,2\n")
shutil.copy("table.csv", "output")
open("notes.txt", "w").write("beside")
open("output/notes.txt", "w").write("below")
os.mkdir("work"); open("work/scratch", "w").write("x"); open(".hidden", "w").write("x")`)
	if diff := cmp.Diff([]string{"notes-2.txt", "notes.txt", "plot.png", "table.csv"}, r.names()); diff != "" {
		t.Error(diff)
	}
	if got := []string{r.file(t, "notes.txt").data(t), r.file(t, "notes-2.txt").data(t)}; got[0] != "below" || got[1] != "beside" {
		t.Errorf("notes.txt and notes-2.txt hold %q", got)
	}
	if w, h := size(t, download(t, r.file(t, "plot.png"))); w != 640 || h != 480 || len(r.images()) != 1 {
		t.Errorf("the plot is %d × %d, with %d previews", w, h, len(r.images()))
	}
	want := []string{"notes.txt (returned as notes-2.txt), plot.png were written to /sandbox; they are returned, but write to /sandbox/output"}
	if diff := cmp.Diff(want, r.Notes); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(r.text(), "note: "+want[0]) || !strings.Contains(r.text(), "- plot.png (image/png, ") {
		t.Errorf("the text: %s", r.text())
	}
}

// manyFiles writes 500 files, and some pictures that come last by name.
const manyFiles = `
for i in range(490): open(f"output/data-{i:03}.bin", "wb").write(b"\0%d" % i)
import matplotlib.pyplot as plt
for i in range(9):
    plt.figure(figsize=(2, 1)); plt.plot([1, i]); plt.savefig(f"output/plot-{i}.png")
open("output/readme.txt", "w").write("first read me")`

// TestManyFiles: 500 output files make an answer that clients take, and each
// of them can be had.
func TestManyFiles(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "python", manyFiles)
	structured, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	links, err := json.Marshal(r.links())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(structured) + len(r.text()) + len(links); n > 64<<10 {
		t.Errorf("an answer of %d bytes besides previews", n)
	}
	names := r.names()
	for _, name := range []string{"data-000.bin", "plot-0.png", "plot-3.png", "readme.txt", "output_files.json"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not listed", name)
		}
	}
	if len(r.images()) != 4 || r.links()["output_files.json"] == nil {
		t.Errorf("%d previews, links %v", len(r.images()), r.links())
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{
		fmt.Sprintf("%d of 500 output files are not listed here; all are listed in output_files.json", 500-len(names)+1),
		"no preview: plot-4.png, plot-5.png, plot-6.png, plot-7.png, plot-8.png; the files themselves are there",
	} {
		if !strings.Contains(notes, want) || !strings.Contains(r.text(), want) {
			t.Errorf("%q is not among the notes: %q", want, r.Notes)
		}
	}
	all := r.all(t)
	if len(all) != 500 {
		t.Errorf("%d files in the list of all", len(all))
	}
	for _, f := range all {
		if !strings.HasPrefix(f.Name, "data-") {
			continue
		}
		data := download(t, f)
		if f.Name != fmt.Sprintf("data-%03s.bin", data[1:]) || f.ExpiresIn != 3600 || f.MIME != "application/octet-stream" {
			t.Errorf("%+v holds %q", f, data)
		}
	}
}

// TestManyFilesFromShell: belljar run fetches every file.
func TestManyFilesFromShell(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "files")
	_, stderr, code := output(t, newState(t), manyFiles, "run", "python", "-", "--output", dir)
	if code != 0 || strings.Contains(stderr, "not listed") {
		t.Errorf("exit code %d: %s", code, tail(stderr, 2000))
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 500 {
		t.Errorf("%d files", len(found))
	}
	if data, err := os.ReadFile(filepath.Join(dir, "data-489.bin")); err != nil || string(data) != "\x00489" {
		t.Errorf("the last holds %q, %v", data, err)
	}
}

// TestFailureAdvice: a script that fails because of the sandbox is told what
// would be right.
func TestFailureAdvice(t *testing.T) {
	s := sharedServer(t)
	data := inputs(map[string]string{"data.csv": "1,2\n"})
	for _, tt := range []struct {
		runtime, script, want string
		more                  args
	}{
		{"python", "print(open('data.csv').read())", "input files stand in the directory input: this one is input/data.csv", data},
		{"bash", "cat data.csv", "input files stand in the directory input: this one is input/data.csv", data},
		{"gnuplot", "plot 'data.csv'", "input files stand in the directory input: this one is input/data.csv", data},
		{"python", "open('/mnt/data/plot.png', 'wb')", "files to give back go to /sandbox/output", nil},
		{"python", "import urllib.request as r; r.urlopen('http://192.0.2.1/', timeout=9)", "the sandbox's network refused 192.0.2.1:80 tcp: documentation address; it reaches the internet", nil},
		{"python", "import requests", "list_runtimes tells what is installed", nil},
		{"bash", "frobnicate", "list_runtimes tells what is installed", nil},
		{"python", "input()", "the argument stdin", nil},
		{"python", "open('output/x', 'wb').write(bytes(1 << 20)*1100)", " MiB on its disk and 512 MiB in /tmp", nil},
		{"python", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11 (segmentation fault)", nil},
		{"python", "while True: pass", "timed out after 0.5 s (timeout may be up to 300 s)", args{"timeout": 0.5}},
		{"python", "1/0", "", nil},
	} {
		r := s.run(t, tt.runtime, tt.script, tt.more)
		if r.Success || !strings.Contains(r.Error, tt.want) || tt.want == "" && r.Error != "" {
			t.Errorf("%s %q: error %q, want %q", tt.runtime, tt.script, r.Error, tt.want)
		}
		if first, _, _ := strings.Cut(r.text(), "\n"); !strings.HasSuffix(first, r.Error) {
			t.Errorf("%s %q: the text begins with %q", tt.runtime, tt.script, first)
		}
	}
}

// TestNoConverter: an image that cannot show a PDF gives it back without a
// word.
func TestNoConverter(t *testing.T) {
	r := sharedServer(t).succeed(t, "python", `
import matplotlib.pyplot as plt
plt.plot([1, 2, 3]); plt.savefig("output/a.pdf"); plt.savefig("output/b.pdf"); plt.savefig("output/c.png")`)
	if len(r.images()) != 1 || len(r.Notes) != 0 || !strings.Contains(r.text(), "- c.png (image/png, ") {
		t.Errorf("%d previews, %s", len(r.images()), r)
	}
}
