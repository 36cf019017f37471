package agent

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// unpack lists an archive as "name mode content".
func unpack(t *testing.T, format Format, data []byte) string {
	t.Helper()
	var b strings.Builder
	show := func(name string, mode fs.FileMode, content string) {
		fmt.Fprintf(&b, "%q %v %q\n", name, mode, content)
	}
	if format == Zip {
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		must(t, err)
		for _, f := range z.File {
			r, err := f.Open()
			must(t, err)
			content, err := io.ReadAll(r)
			must(t, err)
			show(f.Name, f.Mode(), string(content))
		}
		return b.String()
	}
	gz, err := gzip.NewReader(bytes.NewReader(data))
	must(t, err)
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if err == io.EOF {
			return b.String()
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		show(h.Name, h.FileInfo().Mode(), string(content)+h.Linkname)
	}
}

func TestArchive(t *testing.T) {
	sb := newSandbox(t)
	long := strings.Repeat("long/", 60) + "name"
	sb.tree(t, "d/a/one", "d/empty/", "d/é", "d/\xff", "d/"+long, "outside")
	oddities(t, sb.file("d/a"))
	must(t, os.Chmod(sb.file("d/a/one"), 0o751))
	for link, target := range map[string]string{
		"d/a/up": "../é", "d/a/out": "../../outside", "d/way": "a/../../outside", "d/in": "a/one", "d/a/top": "..", "d/self": "self", "d/over": "..",
	} {
		must(t, os.Symlink(target, sb.file(link)))
	}
	for _, format := range []Format{TarGz, Zip} {
		r, err := sb.Archive(testContext(t), "/sandbox/d", format)
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, err)
		r.Close()
		want := `"d/a/" drwxr-xr-x ""
"d/a/dangling" Lrwxrwxrwx "nowhere"
"d/a/one" -rwxr-x--x "d/a/one"
"d/a/top" Lrwxrwxrwx ".."
"d/a/up" Lrwxrwxrwx "../é"
"d/empty/" drwxr-xr-x ""
"d/in" Lrwxrwxrwx "a/one"
`
		for i := range 60 {
			want += fmt.Sprintf("%q drwxr-xr-x \"\"\n", "d/"+strings.Repeat("long/", i+1))
		}
		want += fmt.Sprintf("%q -rw-r--r-- %q\n\"d/self\" Lrwxrwxrwx \"self\"\n", "d/"+long, "d/"+long) +
			`"d/é" -rw-r--r-- "d/é"` + "\n" + `"d/\xff" -rw-r--r-- "d/\xff"` + "\n"
		if diff := cmp.Diff(want, unpack(t, format, data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
	for name, want := range map[string]error{"none": ErrNoFile, "outside": ErrNotDir} {
		if _, err := sb.Archive(testContext(t), "/sandbox/"+name, Zip); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := sb.Archive(testContext(t), "/sandbox/d", "rar"); err == nil {
		t.Error("an unknown format is taken")
	}
}

// A large tree takes no memory, an archive that cannot be completed is no
// whole one, and who stops reading stops the packing.
func TestArchiveStreams(t *testing.T) {
	sb := newSandbox(t)
	sb.tree(t, "d/a", "d/b")
	must(t, os.Truncate(sb.file("d/a"), 64<<20))
	grew := memoryPeak(t, func() {
		for _, format := range []Format{TarGz, Zip} {
			r, err := sb.Archive(testContext(t), "/sandbox/d", format)
			must(t, err)
			if n, err := io.Copy(io.Discard, r); err != nil || n < 10_000 {
				t.Errorf("%s: %d bytes, %v", format, n, err)
			}
			r.Close()
		}
	})
	if grew > 32<<20 {
		t.Errorf("memory grew by %d MiB", grew>>20)
	}
	must(t, os.Truncate(sb.file("d/a"), 64<<30))
	r, err := sb.Archive(testContext(t), "/sandbox/d", TarGz)
	must(t, err)
	_, err = io.CopyN(io.Discard, r, 1<<10)
	must(t, err)
	must(t, os.Truncate(sb.file("d/a"), 0)) // it shrinks under the packer
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("an archive that was broken off looks whole")
	}
	r.Close()
	must(t, os.Truncate(sb.file("d/a"), 64<<30))
	r, err = sb.Archive(testContext(t), "/sandbox/d", TarGz)
	must(t, err)
	_, err = io.CopyN(io.Discard, r, 1<<10)
	must(t, err)
	r.Close()
	closed := make(chan struct{})
	go func() { sb.server.idle(t); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("packing goes on for nobody")
	}
}

// idle returns when this process has no open descriptor of the packed file.
func (s *Server) idle(t *testing.T) {
	for open := true; open; time.Sleep(time.Millisecond) {
		open = false
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, fd := range fds {
			to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			open = open || strings.HasSuffix(to, "/sandbox/d/a")
		}
	}
}
