package sandbox

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"belljar/internal/agent"

	"github.com/google/go-cmp/cmp"
)

// pngOf is a picture of that size.
func pngOf(t *testing.T, w, h int) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for x := range w {
		for y := range h {
			img.Set(x, y, color.RGBA{uint8(x), uint8(y), 100, 255})
		}
	}
	var buf bytes.Buffer
	if err := png.Encode(&buf, img); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// shows lists the previews of a result, with their sizes.
func shows(t *testing.T, res *Result) []string {
	t.Helper()
	var all []string
	for _, p := range res.Images {
		c, kind, err := image.DecodeConfig(bytes.NewReader(p.Data))
		if err != nil || p.MIME != "image/"+kind {
			t.Errorf("the preview of %s is %s: %v", p.Name, p.MIME, err)
		}
		what := fmt.Sprintf("%s %dx%d", p.Name, c.Width, c.Height)
		if p.Part != "" {
			what += " " + p.Part
		}
		all = append(all, what)
	}
	return all
}

// Fault 13.
func TestPreviews(t *testing.T) {
	data := pngOf(t, 2000, 500)
	b := newBench(t)
	r := bash(`cd output; for i in 1 2 3 4; do cp ../input/p.png p$i.png; done; echo no picture >fake.png; head -c 100 ../input/p.png >a-broken.png`)
	r.Inputs = []Input{{Name: "p.png", Data: data}}
	res := b.must(t, r)
	if _, got := b.file(t, res, "p1.png"); !bytes.Equal(got, data) {
		t.Error("the file itself was changed")
	}
	// The broken one was tried as well, and the fake one is text. Neither is
	// worth a word.
	want := []string{"p1.png 1024x256", "p2.png 1024x256", "p3.png 1024x256", "p4.png 1024x256"}
	if diff := cmp.Diff(want, shows(t, res)); diff != "" || len(res.Notes) > 0 {
		t.Errorf("notes %q, previews (-want +got):\n%s", res.Notes, diff)
	}
	total := 0
	for _, p := range res.Images {
		total += len(p.Data)
	}
	if total > allPreviewBytes {
		t.Errorf("%d bytes of previews", total)
	}
}

// More than a few pictures are named, not sent.
func TestManyPictures(t *testing.T) {
	b := newBench(t)
	r := bash(`cd output; for i in $(seq 10 20); do cp ../input/p.png p$i.png; done`)
	r.Inputs = []Input{{Name: "p.png", Data: pngOf(t, 20, 10)}}
	res := b.must(t, r)
	if diff := cmp.Diff([]string{"p10.png 20x10", "p11.png 20x10", "p12.png 20x10", "p13.png 20x10"}, shows(t, res)); diff != "" {
		t.Errorf("previews (-want +got):\n%s", diff)
	}
	wantNote(t, res, "no preview: p14.png, p15.png, p16.png, p17.png, p18.png and 2 more; the files themselves are there")

	r.Script = `cd output; for i in 1 2 3 4 5; do cp ../input/p.png p$i.png; done`
	wantNote(t, b.must(t, r), "no preview: p5.png; the file itself is there")
}

// Pictures that cannot be decoded take some of the time and no more.
func TestManyBrokenPictures(t *testing.T) {
	b := newBench(t)
	r := bash(`cd output; for i in $(seq 10 30); do head -c 50 ../input/p.png >p$i.png; done; cp ../input/p.png z.png`)
	r.Inputs = []Input{{Name: "p.png", Data: pngOf(t, 20, 10)}}
	res := b.must(t, r)
	if n := strings.Count(b.log.String(), "no preview"); len(res.Images) != 0 || n != maxPreviewTries {
		t.Errorf("%d previews, %d failed", len(res.Images), n)
	}
	wantNote(t, res, "no preview: p22.png,", "and 5 more")
}

// withConverters makes programs of a test, and none else but a few tools, the
// ones that sandboxes find. Each is a shell script.
func withConverters(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"bash", "sh", "cat", "cp", "head", "mkdir"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// What the agent cannot decode, a program of the image makes a picture of.
func TestConverters(t *testing.T) {
	dir := t.TempDir()
	picture, calls := filepath.Join(dir, "p.png"), filepath.Join(dir, "calls")
	if err := os.WriteFile(picture, pngOf(t, 30, 40), 0o644); err != nil {
		t.Fatal(err)
	}
	say := `echo "${0##*/} $*" >>` + calls + "\n"
	show := say + "cat " + picture + "\n"
	fail := say + "echo broken >&2; exit 3\n"
	const pdf = `echo %PDF-1.4 >output/a.pdf; `
	for name, tc := range map[string]struct {
		converters map[string]string
		script     string
		want       []string
		called     string // the programs, in order
	}{
		"pdf":          {map[string]string{"pdftoppm": show, "gs": show}, pdf, []string{"a.pdf 30x40 first page"}, "pdftoppm"},
		"second":       {map[string]string{"pdftoppm": fail, "gs": show}, pdf, []string{"a.pdf 30x40 first page"}, "pdftoppm gs"},
		"other":        {map[string]string{"gs": show}, pdf, []string{"a.pdf 30x40 first page"}, "gs"},
		"none":         {nil, pdf + `echo %PDF-1.4 >output/b.pdf`, nil, ""},
		"failing":      {map[string]string{"pdftoppm": fail, "gs": fail}, pdf, nil, "pdftoppm gs"},
		"no picture":   {map[string]string{"pdftoppm": say + "echo hello"}, pdf, nil, "pdftoppm"},
		"too much":     {map[string]string{"pdftoppm": show + "head -c 33M /dev/zero"}, pdf, nil, "pdftoppm"},
		"svg":          {map[string]string{"rsvg-convert": show}, `echo '<svg xmlns="http://www.w3.org/2000/svg"/>' >output/a.svg`, []string{"a.svg 30x40"}, "rsvg-convert"},
		"eps":          {map[string]string{"gs": show}, `echo '%!PS-Adobe-3.0 EPSF-3.0' >output/a.eps`, []string{"a.eps 30x40 first page"}, "gs"},
		"one band":     {map[string]string{"gdal_translate": say + `case "$*" in *"-b 2"*) exit 1; esac; cat ` + picture}, `printf 'II*\0 not for the agent' >output/a.tif`, []string{"a.tif 30x40"}, "gdal_translate gdal_translate"},
		"without gdal": {map[string]string{"convert": show}, `printf 'II*\0 not for the agent' >output/a.tif`, []string{"a.tif 30x40"}, "convert"},
		"ppm":          {map[string]string{"convert": show}, `printf 'P6\n1 1\n255\nabc' >output/a.ppm`, []string{"a.ppm 30x40"}, "convert"},
		"beside":       {map[string]string{"pdftoppm": show}, `echo %PDF-1.4 >Rplots.pdf`, []string{"Rplots.pdf 30x40 first page"}, "pdftoppm"},
		"odd name":     {map[string]string{"pdftoppm": show}, `echo %PDF-1.4 >output/'-a %d$(x) "b.pdf'`, []string{`-a %d$(x) "b.pdf 30x40 first page`}, "pdftoppm"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(calls, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			withConverters(t, tc.converters)
			b := newBench(t)
			res := b.must(t, bash(tc.script))
			if diff := cmp.Diff(tc.want, shows(t, res)); diff != "" {
				t.Errorf("previews (-want +got):\n%s\nlog: %s", diff, b.log)
			}
			if !res.Success || len(res.Notes) > 0 || len(res.OutputFiles) == 0 {
				t.Errorf("a user hears of it: %+v", res)
			}
			if n := strings.Count(b.log.String(), "no preview"); tc.called == "" && n != 1 {
				t.Errorf("programs that are not there were looked for for %d files, want 1", n)
			}
			text, err := os.ReadFile(calls)
			if err != nil {
				t.Fatal(err)
			}
			var called []string
			for line := range strings.Lines(string(text)) {
				program, _, _ := strings.Cut(line, " ")
				called = append(called, program)
				if strings.Contains(line, filePlace) || !strings.Contains(line, "/sandbox/") {
					t.Errorf("called as %q", line)
				}
			}
			if got := strings.Join(called, " "); got != tc.called {
				t.Errorf("called %q, want %q", got, tc.called)
			}
		})
	}
}

// Every type stands in the table once, and every command names the file once.
func TestPictureKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range pictureKinds {
		if !kind.native && len(kind.commands) == 0 {
			t.Errorf("nothing shows %q", kind.types)
		}
		for _, mime := range kind.types {
			if seen[mime] {
				t.Errorf("%s stands in the table twice", mime)
			}
			seen[mime] = true
		}
		for _, command := range kind.commands {
			n := 0
			for _, arg := range command {
				if arg == filePlace {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%q names the file %d times", command, n)
			}
		}
	}
}

// Converters run next to what the script left, which may have taken their
// place and the agent's: they end, one by one and all together.
func TestConverterThatNeverEnds(t *testing.T) {
	started := 0
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == "PUT" && strings.Contains(r.URL.Path, "/jobs/preview-"):
			started++
			answer(w, struct{}{})
		case r.Method != "GET":
			answer(w, struct{}{})
		case strings.HasSuffix(r.URL.Path, "/jobs/"+jobID):
			answer(w, agent.JobStatus{ID: jobID, State: agent.JobExited})
		case strings.Contains(r.URL.Path, "/jobs/"):
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Second):
				answer(w, agent.JobStatus{ID: strings.TrimPrefix(r.URL.Path, "/v1/jobs/"), State: agent.JobRunning})
			}
		case strings.HasSuffix(r.URL.Path, "/list"):
			for i := range 9 {
				answer(w, map[string]any{"file": agent.FileInfo{Path: []byte(strconv.Itoa(i) + ".pdf"), Size: 9, Mode: 0o644}})
			}
			answer(w, map[string]any{"end": struct{}{}})
			answer(w, map[string]any{"end": struct{}{}})
		case strings.HasSuffix(r.URL.Path, "/file"):
			w.Header().Set("Belljar-File", `{"size":9,"mode":420}`)
			w.Header().Set("Content-Length", "9")
			w.Write([]byte("%PDF-1.4\n"))
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}
	againstHostile(t, handler, func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration) {
		if err != nil {
			t.Fatal(err)
		}
		if len(res.OutputFiles) != 9 || len(res.Images) > 0 || started < 2 || took > previewsTime+time.Second {
			t.Errorf("after %v and %d converters: %d files, %d previews", took, started, len(res.OutputFiles), len(res.Images))
		}
		wantNote(t, res, "no preview: ", "the files themselves are there")
	})
}
