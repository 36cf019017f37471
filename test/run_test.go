package test

import (
	"bytes"
	"fmt"
	"image"
	_ "image/jpeg"
	_ "image/png"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRunPrints(t *testing.T) {
	s := sharedServer(t)
	for runtime, script := range map[string]string{
		"python":  "print('hello from', 6*7)",
		"bash":    "echo hello from $((6*7))",
		"gnuplot": "print sprintf('hello from %d', 6*7)",
	} {
		r := s.succeed(t, runtime, script)
		if got := r.Stdout + r.Stderr; got != "hello from 42\n" { // gnuplot prints to stderr
			t.Errorf("%s printed %q", runtime, got)
		}
		if !strings.Contains(r.text(), "hello from 42") || !strings.Contains(r.text(), "exit code 0") {
			t.Errorf("%s: the text does not say it: %s", runtime, r.text())
		}
	}
}

func TestRunExitCodes(t *testing.T) {
	s := sharedServer(t)
	for _, tt := range []struct {
		runtime, script string
		code            int
	}{
		{"bash", "exit 3", 3},
		{"bash", "false", 1},
		{"bash", "kill -TERM $$", 128 + 15},
		{"bash", "kill -KILL $$", 128 + 9},
		{"bash", "nothing-of-this-name", 127},
		{"python", "import sys; sys.exit(42)", 42},
		{"python", "import os; os.abort()", 128 + 6},
		{"gnuplot", "exit status 5", 5},
	} {
		r := s.run(t, tt.runtime, tt.script)
		if r.ReturnCode != tt.code || r.Success || r.TimedOut {
			t.Errorf("%s %q: %s", tt.runtime, tt.script, r)
		}
	}
}

// TestRunTracebackNamesTheLine: a script is a file, so errors say where.
func TestRunTracebackNamesTheLine(t *testing.T) {
	s := sharedServer(t)
	r := s.run(t, "python", "import math\n\nprint(math.sqrt(-1))\n")
	if r.ReturnCode != 1 || !strings.Contains(r.Stderr, `File "/sandbox/main.py", line 3`) &&
		!strings.Contains(r.Stderr, `File "main.py", line 3`) {
		t.Errorf("python: %s", r)
	}
	if r := s.run(t, "bash", "\n\nnothing-here\n"); !strings.Contains(r.Stderr, "main.sh: line 3: nothing-here") {
		t.Errorf("bash: %s", r)
	}
	if r := s.run(t, "gnuplot", "\nplot nothing\n"); !strings.Contains(r.Stderr, `"main.gp" line 2`) {
		t.Errorf("gnuplot: %s", r)
	}
}

func TestRunStdin(t *testing.T) {
	s := sharedServer(t)
	stdin := "first line\nséçond\n" + strings.Repeat("x", 100_000)
	r := s.succeed(t, "python", "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())", args{"stdin": stdin})
	if want := hash(stdin) + "\n"; r.Stdout != want {
		t.Errorf("read %q, want %q", r.Stdout, want)
	}
	if r := s.succeed(t, "bash", "wc -c"); r.Stdout != "0\n" {
		t.Errorf("without stdin: %q", r.Stdout)
	}
}

func TestRunInputs(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "bash", "pwd; cd input; find . -type f | sort; cat 'tables/2024/a b.csv' ümlaut.txt",
		inputs(map[string]string{"tables/2024/a b.csv": "1,2\n", "ümlaut.txt": "ü\n", "z.bin": "\x00\xff"}))
	want := "/sandbox\n./tables/2024/a b.csv\n./z.bin\n./ümlaut.txt\n1,2\nü\n"
	if diff := cmp.Diff(want, r.Stdout); diff != "" {
		t.Error(diff)
	}
}

func TestRunRefusesWithAdvice(t *testing.T) {
	s := sharedServer(t)
	for _, tt := range []struct {
		runtime, script string
		more            args
		want            []string
	}{
		{"cobol", "x", nil, []string{"cobol", "known are bash, "}},
		{"python", " \n", nil, []string{"empty"}},
		{"python", "1", args{"timeout": 301}, []string{"301", "300"}},
		{"python", "1", args{"timeout": -1}, []string{"-1", "positive"}},
		{"python", "1", args{"input_files": args{"a.csv": "%%%"}}, []string{`"a.csv"`, "base64"}},
		{"python", "1", inputs(map[string]string{"../../etc/passwd": "x"}), []string{"../../etc/passwd", "leads out"}},
		{"python", "1", inputs(map[string]string{"/etc/passwd": "x"}), []string{"/etc/passwd", "absolute"}},
		{"python", "1", inputs(map[string]string{"a/./b": "x", "a/b": "y"}), []string{"a/b", "twice"}},
		{"python", "1", args{"colour": "red"}, []string{"colour"}},
	} {
		text := s.refused(t, tt.runtime, tt.script, tt.more)
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s %v: refused with %q, which lacks %q", tt.runtime, tt.more, text, want)
			}
		}
	}
}

// TestFault14Base64InAnySpelling: models pad, break and spell base64 as they
// like.
func TestFault14Base64InAnySpelling(t *testing.T) {
	s := sharedServer(t)
	want := "\xfb\xff\xfe any bytes?>"
	spellings := args{
		"padded":     "+//+IGFueSBieXRlcz8+",
		"url":        "-__-IGFueSBieXRlcz8-",
		"lines":      "+//+IGFu\r\neSBieXRl\ncz8+\n",
		"one":        "/w==",
		"one-naked":  "_w",
		"with-space": " +//+ IGFueSBieXRlcz8+ ",
	}
	r := s.succeed(t, "python", `
import os, hashlib
for n in sorted(os.listdir("input")):
    print(n, hashlib.sha256(open("input/"+n, "rb").read()).hexdigest())`, args{"input_files": spellings})
	sums := strings.NewReplacer("ALL", hash(want), "ONE", hash("\xff")).
		Replace("lines ALL\none ONE\none-naked ONE\npadded ALL\nurl ALL\nwith-space ALL\n")
	if diff := cmp.Diff(sums, r.Stdout); diff != "" {
		t.Error(diff)
	}
	if text := s.refused(t, "bash", "true", args{"input_files": args{"ok.txt": "YQ==", "broken.png": "data:image/png;base64,"}}); !strings.Contains(text, `"broken.png"`) {
		t.Errorf("the error does not name the file: %s", text)
	}
}

// TestFault20NestedOutputs: the tree below output comes back with its paths.
func TestFault20NestedOutputs(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "bash", `
cd output
mkdir -p a/b/c empty/empty
echo top > top.txt
echo deep > a/b/c/deep.txt
head -c 5000 /dev/zero | tr '\0' x > a/long.txt
printf '\0\1' > a/b/two.bin
deep=$(printf 'd/%.0s' {1..40}); mkdir -p $deep; echo far > $deep/far.txt`)
	want := []string{"a/b/c/deep.txt", "a/b/two.bin", "a/long.txt", strings.Repeat("d/", 40) + "far.txt", "top.txt"}
	if diff := cmp.Diff(want, r.names()); diff != "" {
		t.Error(diff)
	}
	// Small text comes as text; long text and bytes as links.
	if f := r.file(t, "a/b/c/deep.txt"); f.Text == nil || *f.Text != "deep\n" || f.URL != "" || f.SHA256 != hash("deep\n") {
		t.Errorf("%+v", f)
	}
	if f := r.file(t, "a/long.txt"); f.Text != nil || string(download(t, f)) != strings.Repeat("x", 5000) {
		t.Errorf("%+v", f)
	}
	if f := r.file(t, "a/b/two.bin"); f.Text != nil || string(download(t, f)) != "\x00\x01" {
		t.Errorf("%+v", f)
	}
}

// TestFault13Pictures: a picture comes as a small image block and a link,
// once each, and its bytes are not in structured content.
func TestFault13Pictures(t *testing.T) {
	s := sharedServer(t)
	for _, tt := range []struct {
		name, runtime, script string
		width, height         int
	}{
		{"plot.png", "python", `
import matplotlib.pyplot as plt, numpy as np
x = np.linspace(0, 10, 500)
plt.figure(figsize=(20, 10), dpi=100)
plt.plot(x, np.sin(x)); plt.title("sine")
plt.savefig("output/plot.png")`, 2000, 1000},
		{"small.png", "gnuplot", `
set terminal pngcairo size 640,480
set output "output/small.png"
plot sin(x)`, 640, 480},
	} {
		t.Run(tt.runtime, func(t *testing.T) {
			r := s.succeed(t, tt.runtime, tt.script)
			f := r.file(t, tt.name)
			if f.MIME != "image/png" || f.Text != nil {
				t.Errorf("%+v", f)
			}
			if w, h := size(t, download(t, f)); w != tt.width || h != tt.height {
				t.Errorf("the file is %d × %d, want %d × %d", w, h, tt.width, tt.height)
			}
			link := r.links()[tt.name]
			if link == nil || link.URI != f.URL || link.MIMEType != "image/png" || link.Size == nil || *link.Size != f.Bytes {
				t.Errorf("the link: %+v", link)
			}
			if len(r.images()) != 1 {
				t.Fatalf("%d image blocks", len(r.images()))
			}
			w, h := size(t, r.images()[0].Data)
			scale := max(1, float64(max(tt.width, tt.height))/1024)
			if w > 1024 || h > 1024 || w != int(float64(tt.width)/scale) || h != int(float64(tt.height)/scale) {
				t.Errorf("the block is %d × %d", w, h)
			}
			if len(r.String()) > 5000 {
				t.Errorf("%d bytes of structured content", len(r.String()))
			}
		})
	}
}

// TestDownloadHeaders: what a browser could run on our origin it must save
// instead.
func TestDownloadHeaders(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "python", `
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.savefig("output/plot.pdf"); plt.savefig("output/plot.svg"); plt.savefig("output/plot.png")
open("output/page.html", "w").write("<html><script>alert(1)</script>" + " "*5000)
open("output/long.txt", "w").write("text\n"*2000)`)
	for name, want := range map[string]struct{ mime, disposition string }{
		"plot.pdf":  {"application/pdf", "inline"},
		"plot.png":  {"image/png", "inline"},
		"long.txt":  {"text/plain", "inline"},
		"plot.svg":  {"image/svg+xml", "attachment"},
		"page.html": {"text/html", "attachment"},
	} {
		f := r.file(t, name)
		download(t, f)
		for _, method := range []string{http.MethodHead, http.MethodGet} {
			res, _ := do(t, method, f.URL, nil)
			h := res.Header
			got := []string{
				strings.Split(h.Get("Content-Type"), ";")[0], h.Get("Content-Disposition"), h.Get("X-Content-Type-Options"),
				h.Get("X-Robots-Tag"), h.Get("Referrer-Policy"), strings.Split(h.Get("Content-Security-Policy"), ";")[0],
				h.Get("Etag"), h.Get("Accept-Ranges"), fmt.Sprint(res.ContentLength),
			}
			all := []string{
				want.mime, fmt.Sprintf("%s; filename=%q", want.disposition, name), "nosniff",
				"noindex", "no-referrer", "sandbox", `"` + f.SHA256 + `"`, "bytes", fmt.Sprint(f.Bytes),
			}
			if diff := cmp.Diff(all, got); diff != "" {
				t.Errorf("%s %s:\n%s", method, name, diff)
			}
		}
		if f.MIME != want.mime {
			t.Errorf("%s: the result says %s", name, f.MIME)
		}
	}
}

// TestRunIsFresh: whatever one run does to its sandbox, the next has none of
// it.
func TestRunIsFresh(t *testing.T) {
	s := sharedServer(t)
	spoil := `
set -e
for d in / /root /usr/bin /etc /tmp /sandbox /sandbox/input /sandbox/output /var/tmp /dev/shm; do echo x > $d/residue; done
rm -rf /usr/lib/python3/dist-packages/numpy
echo 'echo spoilt' > /usr/bin/python3
(setsid sleep 1000 &)`
	s.succeed(t, "bash", spoil)
	r := s.succeed(t, "bash", `find / -xdev -name residue 2>/dev/null; ls /tmp /dev/shm output; pgrep sleep; python3 -c 'import numpy; print("whole")'`)
	if r.Stdout != "/dev/shm:\n\n/tmp:\n\noutput:\nwhole\n" && !strings.HasSuffix(r.Stdout, "whole\n") || strings.Contains(r.Stdout, "residue") {
		t.Errorf("the next run sees: %s", r)
	}
}

func TestListRuntimes(t *testing.T) {
	s := sharedServer(t)
	res, err := s.call(t.Context(), modern, "list_runtimes", nil)
	if err != nil || res.IsError {
		t.Fatalf("%v %v", err, res)
	}
	text := texts(res.Content)
	for _, want := range []string{"python: Python, version 3.", "bash: Bash, version 5.", "gnuplot: gnuplot, version 6", "numpy 2.", "matplotlib 3.", "memory 2048 MiB, 2 CPUs, 512 processes"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// size decodes a picture and returns its size in pixels.
func size(t testing.TB, data []byte) (width, height int) {
	t.Helper()
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return img.Bounds().Dx(), img.Bounds().Dy()
}
