package workspace

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (p *place) readFile(t *testing.T, path string, offset, limit int) *Content {
	t.Helper()
	c, err := p.Read(testContext(t), ReadRequest{FileRef: ref(path), Offset: offset, Limit: limit})
	must(t, err)
	return c
}

func TestReadText(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	p.put(t, "a.txt", "one\ntwo\r\nthree\n\nfive")
	p.put(t, "latin.txt", "caf\xe9 au lait\nthe second line is plain\n")
	p.put(t, "empty", "")
	must(t, os.Symlink("a.txt", p.file("link")))
	must(t, os.Rename(p.file("empty"), filepath.Join(p.root, "root/empty")))
	for _, tt := range []struct {
		path          string
		offset, limit int
		want          Content
	}{
		{"a.txt", 0, 0, Content{Path: "/sandbox/a.txt", MIME: "text/plain", Bytes: 20, Text: "     1\tone\n     2\ttwo\n     3\tthree\n     4\t\n     5\tfive\n", First: 1, Last: 5, Total: 5}},
		{"/sandbox/./link", 2, 2, Content{Path: "/sandbox/link", MIME: "text/plain", Bytes: 20, Text: "     2\ttwo\n     3\tthree\n", First: 2, Last: 3, Total: 5,
			Notes: []string{"lines 2 to 3 are shown; go on with offset 4"}}},
		{"a.txt", 5, 100, Content{Path: "/sandbox/a.txt", MIME: "text/plain", Bytes: 20, Text: "     5\tfive\n", First: 5, Last: 5, Total: 5}},
		{"latin.txt", 0, 0, Content{Path: "/sandbox/latin.txt", MIME: "text/plain", Bytes: 38, Text: "     1\tcaf\uFFFD au lait\n     2\tthe second line is plain\n", First: 1, Last: 2, Total: 2,
			Notes: []string{"1 lines are not UTF-8; what is not was replaced by \uFFFD"}}},
		{"~/empty", 0, 0, Content{Path: "/root/empty", MIME: "text/plain", Notes: []string{"the file is empty"}}},
	} {
		if diff := cmp.Diff(&tt.want, p.readFile(t, tt.path, tt.offset, tt.limit)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.path, diff)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	p := newPlace(t, FilesOptions{MaxText: 1000})
	long := strings.Repeat("é", 1500) // 3000 bytes
	p.put(t, "long", "short\n"+long+"\nend\n")
	c := p.readFile(t, "long", 1, 1)
	if c.Text != "     1\tshort\n" || c.Total != 3 {
		t.Errorf("%+v", c)
	}
	p.maxText = 5000
	c = p.readFile(t, "long", 2, 0)
	if want := "     2\t" + strings.Repeat("é", 1000) + "… [1000 bytes more]\n     3\tend\n"; c.Text != want || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "1 long lines are cut") {
		t.Errorf("%q, %q", c.Text, c.Notes)
	}
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	p.put(t, "many", b.String())
	c = p.readFile(t, "many", 101, 0)
	if len(c.Text) > 5000 || c.First != 101 || c.Last < 300 || c.Total != 1000 || !strings.Contains(fmt.Sprint(c.Notes), fmt.Sprintf("go on with offset %d", c.Last+1)) {
		t.Errorf("%d bytes, lines %d to %d of %d, %q", len(c.Text), c.First, c.Last, c.Total, c.Notes)
	}
	if next := p.readFile(t, "many", c.Last+1, 1); !strings.HasSuffix(next.Text, fmt.Sprintf("\tline %d\n", c.Last+1)) {
		t.Errorf("after line %d comes %q", c.Last, next.Text)
	}
	// A single line that is larger than all of the answer, and no end of it.
	p.put(t, "huge", strings.Repeat("x", 3<<20))
	if c = p.readFile(t, "huge", 0, 0); len(c.Text) > 2100 || c.Total != 1 || !strings.Contains(c.Text, fmt.Sprintf("[%d bytes more]", 3<<20-2000)) {
		t.Errorf("%d bytes, %d lines", len(c.Text), c.Total)
	}
}

func TestReadRefuses(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	p.put(t, "a.txt", "one\n")
	for path, parts := range map[string][]string{
		"none": {"/sandbox/none does not exist", "list_files"}, ".": {"/sandbox is a directory", "list_files"}, "": {"path: want"},
		"a\x00b": {"NUL"}, strings.Repeat("x", 5000): {"4096"}, "a.txt/b": {"does not exist"}, "a\nb": {`"/sandbox/a\nb" does not exist`},
	} {
		_, err := p.Read(testContext(t), ReadRequest{FileRef: ref(path)})
		wantRefusal(t, err, parts...)
	}
	_, err := p.Read(testContext(t), ReadRequest{FileRef: ref("a.txt"), Offset: 7})
	wantRefusal(t, err, "has 1 lines", "offset 7")
	_, err = p.Read(testContext(t), ReadRequest{FileRef: ref("a.txt"), Offset: -1})
	wantRefusal(t, err, "offset and limit")
	other := ref("a.txt")
	other.Sandbox = "other"
	_, err = p.Read(testContext(t), ReadRequest{FileRef: other})
	wantRefusal(t, err, `no sandbox "other"`)
}

func TestReadPicturesAndOthers(t *testing.T) {
	p := newPlace(t, FilesOptions{})
	pic := image.NewRGBA(image.Rect(0, 0, 2000, 1000))
	pic.Set(5, 5, color.White)
	var b bytes.Buffer
	must(t, png.Encode(&b, pic))
	p.put(t, "pic.png", b.String())
	must(t, os.Symlink("pic.png", p.file("link")))
	for _, name := range []string{"pic.png", "link"} {
		c := p.readFile(t, name, 0, 0)
		if c.MIME != "image/png" || len(c.Pictures) != 1 || c.Bytes != int64(b.Len()) || c.Text != "" {
			t.Fatalf("%s: %+v", name, c)
		}
		small, _, err := image.DecodeConfig(bytes.NewReader(c.Pictures[0].Data))
		if err != nil || small.Width != 1024 || small.Height != 512 {
			t.Errorf("%s: %v, %v", name, small, err)
		}
	}
	p.put(t, "x.zip", "PK\x03\x04\x14\x00\x00\x00\x00\x00")
	if c := p.readFile(t, "x.zip", 0, 0); c.MIME != "application/zip" || c.Bytes != 10 || c.Text != "" || !strings.Contains(fmt.Sprint(c.Notes), "share_file") {
		t.Errorf("%+v", c)
	}
}

// tools puts programs by these names first in the PATH of jobs.
func tools(t *testing.T, scripts map[string]string) {
	dir := t.TempDir()
	for name, script := range scripts {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

func TestReadPDF(t *testing.T) {
	const pdf = "%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"
	// What poppler prints: pages end in a form feed.
	text := `while [ "$1" != -f ]; do shift; done; for i in $(seq $2 $4); do printf 'text of %d\n\n\f' $i; done`
	for name, tt := range map[string]struct {
		tools  map[string]string
		offset int
		want   Content
		shown  int
	}{
		"text": {map[string]string{"pdfinfo": `echo "Pages:          30"`, "pdftotext": text}, 29,
			Content{Text: "--- page 29 ---\ntext of 29\n--- page 30 ---\ntext of 30\n", First: 29, Last: 30, Total: 30}, 0},
		"scanned": {map[string]string{"pdfinfo": `echo "Pages: 5"`, "pdftotext": `printf '\f\f'`, "pdftoppm": `printf '\377\330\377\340picture'`}, 0,
			Content{First: 1, Last: 3, Total: 5, Notes: []string{"the pages have no text, so pictures of them are shown", "pages 1 to 3 are shown; go on with offset 4"}}, 3},
		"no picture": {map[string]string{"pdfinfo": `echo "Pages: 5"`, "pdftotext": `:`, "pdftoppm": `echo script`}, 0,
			Content{First: 1, Last: 5, Total: 5, Notes: []string{"the pages have no text, and no picture of them could be made"}}, 0},
		"damaged": {map[string]string{"pdfinfo": "exit 1", "pdftotext": "exit 1"}, 0,
			Content{Notes: []string{"the pages could not be read; the file may be damaged or locked by a password"}}, 0},
		"absent": {map[string]string{}, 0,
			Content{Notes: []string{"the pages are not shown, since poppler's programs are not in the sandbox; apt-get install poppler-utils brings them"}}, 0},
		"endless": {map[string]string{"pdfinfo": "yes Pages: 99999999999999999", "pdftotext": `head -c 1000000 /dev/zero | tr '\0' x`}, 0,
			Content{Text: "--- page 1 ---\n" + strings.Repeat("x", 100) + "\n", First: 1, Last: 1, Notes: []string{"the text is cut in page 1; ask for fewer pages at a time"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "absent" {
				t.Setenv("PATH", t.TempDir())
			} else {
				if name == "endless" {
					tt.tools["pdfinfo"] = "for i in 1 2 3; do echo Pages: 99999999999999999; done"
				}
				tools(t, tt.tools)
			}
			p := newPlace(t, FilesOptions{MaxText: 100})
			p.put(t, "a.pdf", pdf)
			got := p.readFile(t, "a.pdf", tt.offset, 0)
			if len(got.Pictures) != tt.shown {
				t.Errorf("%d pictures", len(got.Pictures))
			}
			got.Pictures = nil
			tt.want.Path, tt.want.MIME, tt.want.Bytes = "/sandbox/a.pdf", "application/pdf", int64(len(pdf))
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	tools(t, map[string]string{"pdfinfo": "echo Pages: 2"})
	p := newPlace(t, FilesOptions{})
	p.put(t, "a.pdf", pdf)
	_, err := p.Read(testContext(t), ReadRequest{FileRef: ref("a.pdf"), Offset: 3})
	wantRefusal(t, err, "has 2 pages", "offset 3")
}

// FuzzLines compares the lines of a file with those that a split makes.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nc"), 3)
	f.Add(bytes.Repeat([]byte("é"), 1200), 1)
	f.Fuzz(func(t *testing.T, data []byte, chunk int) {
		lines := newLineReader(io.MultiReader(bytes.NewReader(data[:len(data)/2]), bytes.NewReader(data[len(data)/2:])))
		lines.buf = lines.buf[:max(1, min(chunk, 100))]
		want := bytes.Split(data, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		for i := 0; ; i++ {
			got, err := lines.next(true)
			if err == io.EOF {
				if i != len(want) {
					t.Errorf("%d lines, want %d", i, len(want))
				}
				return
			}
			if err != nil || i >= len(want) {
				t.Fatalf("line %d: %v", i+1, err)
			}
			whole := want[i]
			if len(got.text)+int(got.more) != len(whole) && !bytes.Equal(got.text, bytes.TrimSuffix(whole, []byte("\r"))) ||
				!bytes.HasPrefix(whole, got.text) || len(got.text) > maxLine {
				t.Errorf("line %d: %d bytes and %d more of %d", i+1, len(got.text), got.more, len(whole))
			}
		}
	})
}

// An agent that lies is an internal error, and never more than is asked for.
func TestHostileAgent(t *testing.T) {
	const stat = `{"kind":"file","size":%d,"mode":420,"identity":"1","version":"1"}`
	for name, h := range map[string]http.HandlerFunc{
		"nonsense": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") },
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Belljar-File", fmt.Sprintf(stat, 100))
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, fmt.Sprintf(stat, 100)[:20])
		},
		"endless": func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); err != nil {
					return
				}
			}
		},
		"negative": func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, stat, -1) },
	} {
		t.Run(name, func(t *testing.T) {
			p := hostile(t, h)
			ctx := testContext(t)
			errs := map[string]error{}
			_, errs["read"] = p.Read(ctx, ReadRequest{FileRef: ref("f")})
			_, errs["write"] = p.Write(ctx, WriteRequest{FileRef: ref("f"), Data: []byte("x")})
			_, errs["edit"] = p.Edit(ctx, EditRequest{FileRef: ref("f"), Old: "a", New: "b"})
			_, errs["list"] = p.List(ctx, ListRequest{})
			_, errs["share"] = p.Share(ctx, ShareRequest{FileRef: ref("f")})
			_, errs["upload"] = p.UploadURL(ctx, UploadRequest{FileRef: ref("f")})
			for what, err := range errs {
				if err == nil {
					t.Errorf("%s is taken", what)
				}
				if ctx.Err() != nil {
					t.Fatalf("%s took for ever", what)
				}
			}
		})
	}
	refusing := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		fmt.Fprintf(w, `{"code":"refused","text":"no space\n\u001b[31m%s"}`, strings.Repeat("x", 900))
	})
	_, err := refusing.Write(testContext(t), WriteRequest{FileRef: ref("f")})
	wantRefusal(t, err, "/sandbox/f: the sandbox says: no space")
	if err != nil && (len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x1b")) {
		t.Errorf("the sandbox's words: %q", err)
	}
}
