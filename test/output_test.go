package test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// These tests measure the server's memory, so each has a server of its own,
// and they do not run in parallel.

// allowedGrowth is by how much a run may make the server grow, whatever it
// does.
const allowedGrowth = 32 << 20

// TestFault10EndlessOutput: a script prints 10 GB. The server's memory stays
// as it is, the text is cut in the middle, and the start of the output is in
// a file of bounded size.
func TestFault10EndlessOutput(t *testing.T) {
	s := startServer(t)
	const size = 10 << 30
	script := func(n int64) string {
		return fmt.Sprintf(`
import os
line = b"".join(b"%%09d\n" %% i for i in range(100000))
left = %d
while left: left -= os.write(1, line[:left])
os.write(2, b"that was all\n")`, n)
	}
	s.run(t, "python", script(32<<20)) // the same on a small scale first
	grown := growth(t, s.pid)
	r := s.succeed(t, "python", script(size), args{"timeout": 300})
	if n := grown(); n > allowedGrowth {
		t.Errorf("the server grew by %d MiB", n>>20)
	} else {
		t.Logf("the server grew by %d KiB", n>>10)
	}
	if r.Stderr != "that was all\n" {
		t.Errorf("stderr: %q", r.Stderr)
	}
	checkCut(t, r, size)
	// Written in pieces of whole lines, so that both ends are recognisable.
	if !strings.HasPrefix(r.Stdout, "000000000\n000000001\n") {
		t.Errorf("stdout begins with %q", r.Stdout[:40])
	}
	log := download(t, r.file(t, "stdout.log"))
	if len(log) != 16<<20 || !bytes.HasPrefix(log, []byte("000000000\n000000001\n")) {
		t.Errorf("the log has %d bytes and begins with %q", len(log), log[:40])
	}
}

// checkCut checks that stdout was cut in the middle, with the number of bytes
// dropped in their place, and returns what is before and after.
func checkCut(t *testing.T, r *result, size int64) (head, tail string) {
	t.Helper()
	marker := regexp.MustCompile(`\n\[\.\.\. (\d+) bytes dropped \.\.\.\]\n`)
	m := marker.FindStringSubmatchIndex(r.Stdout)
	if m == nil {
		t.Fatalf("nothing says what was cut in %d bytes", len(r.Stdout))
	}
	head, tail = r.Stdout[:m[0]], r.Stdout[m[1]:]
	dropped, err := strconv.ParseInt(r.Stdout[m[2]:m[3]], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if kept := int64(len(head) + len(tail)); kept+dropped != size || kept > 64<<10 || kept < 60<<10 {
		t.Errorf("%d bytes kept and %d dropped of %d", kept, dropped, size)
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), fmt.Sprintf("stdout holds %d bytes", size)) {
		t.Errorf("the notes do not say it: %q", r.Notes)
	}
	return head, tail
}

// TestFault10StderrFlood: as much on stderr, while nobody reads stdout.
func TestFault10StderrFlood(t *testing.T) {
	s := startServer(t)
	s.run(t, "bash", "head -c 1M /dev/zero >&2")
	grown := growth(t, s.pid)
	r := s.succeed(t, "bash", "echo quiet; head -c 2G /dev/zero | tr '\\0' 'e' >&2", args{"timeout": 300})
	if n := grown(); n > allowedGrowth {
		t.Errorf("the server grew by %d MiB", n>>20)
	}
	if r.Stdout != "quiet\n" || len(r.Stderr) > 65<<10 || !strings.Contains(r.Stderr, "bytes dropped") {
		t.Errorf("stdout %q, %d bytes of stderr", r.Stdout, len(r.Stderr))
	}
}

// TestFault11TheMiddleIsCut: both ends are kept, and all of the output is in
// a file where it has room.
func TestFault11TheMiddleIsCut(t *testing.T) {
	s := startServer(t)
	s.run(t, "bash", "head -c 1M /dev/zero | tr '\\0' x")
	grown := growth(t, s.pid)
	r := s.succeed(t, "bash", "seq 1 100000")
	var all strings.Builder
	for i := 1; i <= 100000; i++ {
		fmt.Fprintln(&all, i)
	}
	head, tail := checkCut(t, r, int64(all.Len()))
	if !strings.HasPrefix(all.String(), head) || !strings.HasSuffix(all.String(), tail) {
		t.Errorf("the ends are not those of the output: %.30q … %q", head, tail[len(tail)-30:])
	}
	if got := download(t, r.file(t, "stdout.log")); string(got) != all.String() {
		t.Errorf("the log is another: %d bytes of %d", len(got), all.Len())
	}

	// One line of 1 GB.
	r = s.succeed(t, "bash", "echo begin; head -c 1G /dev/zero | tr '\\0' x; echo; echo end", args{"timeout": 300})
	if n := grown(); n > allowedGrowth {
		t.Errorf("the server grew by %d MiB", n>>20)
	}
	head, tail = checkCut(t, r, 1<<30+11)
	if !strings.HasPrefix(head, "begin\nxxx") || !strings.HasSuffix(tail, "xxx\nend\n") {
		t.Errorf("%.20q … %q", head, tail[len(tail)-20:])
	}
}

// TestFault12CharactersAreWhole: no character is split by the cut, what is no
// UTF-8 is replaced in the text and kept in the file.
func TestFault12CharactersAreWhole(t *testing.T) {
	s := sharedServer(t)
	for shift := range 4 { // the cut falls on each byte of a character
		r := s.succeed(t, "python", fmt.Sprintf(`
import sys
sys.stdout.buffer.write(b"."*%d + "\U0001F514".encode()*50000)`, shift))
		head, tail := checkCut(t, r, int64(shift+4*50000))
		for _, part := range []string{head[shift:], tail} {
			if strings.Trim(part, "🔔") != "" || part == "" {
				t.Errorf("shifted by %d: %.20q … is not all bells", shift, part)
			}
		}
	}

	bad := "ok \xff\xfe\xc3 \xed\xa0\x80 \xf4\x90\x80\x80 \x00 end\n"
	r := s.succeed(t, "python", fmt.Sprintf("import sys; sys.stdout.buffer.write(bytes(%v))", commas([]byte(bad))))
	if !utf8.ValidString(r.Stdout) || !strings.HasPrefix(r.Stdout, "ok \ufffd\ufffd\ufffd ") || !strings.HasSuffix(r.Stdout, " \x00 end\n") {
		t.Errorf("stdout: %q", r.Stdout)
	}
	if got := download(t, r.file(t, "stdout.log")); string(got) != bad {
		t.Errorf("the log: %q", got)
	}

	// A stream header of an engine, as a script would print it: it is data.
	r = s.succeed(t, "bash", `printf '\1\0\0\0\0\0\0\5hello'`)
	if r.Stdout != "\x01\x00\x00\x00\x00\x00\x00\x05hello" {
		t.Errorf("stdout: %q", r.Stdout)
	}
}

// commas writes bytes as a Python list.
func commas(b []byte) string { return strings.ReplaceAll(fmt.Sprint(b), " ", ",") }

// TestFault18LargeInputs: files stream in; none has to fit on a command line.
func TestFault18LargeInputs(t *testing.T) {
	s := sharedServer(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	script := "import hashlib\nprint(hashlib.sha256(open('input/big.bin','rb').read()).hexdigest(), len(FILL))\n"
	script = "FILL = '" + strings.Repeat("f", 1<<20) + "'\n" + script
	r := s.succeed(t, "python", script, inputs(map[string]string{"big.bin": string(data)}))
	if want := fmt.Sprintf("%x %d\n", sha256.Sum256(data), 1<<20); r.Stdout != want {
		t.Errorf("%q, want %q", r.Stdout, want)
	}
}

// TestFault19LargeOutputs: a file goes out in constant memory, whole and by
// ranges.
func TestFault19LargeOutputs(t *testing.T) {
	s := startServer(t)
	const size = 300 << 20
	script := `
import hashlib
left, i = %d, 0
with open("output/large.bin", "wb") as f:
    while left:
        block = hashlib.sha256(b"%%d" %% i).digest()*2048
        i += 1
        left -= f.write(block[:left])`
	s.run(t, "python", fmt.Sprintf(script, 10<<20))
	grown := growth(t, s.pid)
	f := s.succeed(t, "python", fmt.Sprintf(script, size)).file(t, "large.bin")
	if f.Bytes != size {
		t.Fatalf("%+v", f)
	}
	res, err := http.Get(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, res.Body); err != nil || n != size || fmt.Sprintf("%x", sum.Sum(nil)) != f.SHA256 {
		t.Errorf("downloaded %d bytes, %v, hash %x, want %s", n, err, sum.Sum(nil), f.SHA256)
	}
	// The last of the blocks of 64 KiB, which is one hash over and over.
	block := sha256.Sum256([]byte(strconv.Itoa(size>>16 - 1)))
	for _, r := range []string{fmt.Sprintf("bytes=%d-", size-32), "bytes=-32"} {
		res, body := do(t, http.MethodGet, f.URL, http.Header{"Range": {r}})
		if res.StatusCode != http.StatusPartialContent || !bytes.Equal(body, block[:]) {
			t.Errorf("Range %s: %s, %x", r, res.Status, body)
		}
	}
	if res, _ := do(t, http.MethodGet, f.URL, http.Header{"Range": {fmt.Sprintf("bytes=%d-", size)}}); res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a range behind the end: %s", res.Status)
	}
	if n := grown(); n > allowedGrowth {
		t.Errorf("the server grew by %d MiB", n>>20)
	}
}

// TestFault15SameNameTwice: every file has a token of its own, so runs, and
// files within a run, never meet; of two writes in one run the last counts.
func TestFault15SameNameTwice(t *testing.T) {
	s := sharedServer(t)
	seen := map[string]bool{}
	var files []file
	for i := range 3 {
		r := s.succeed(t, "bash", fmt.Sprintf(`mkdir output/a output/b
for f in output/fig.bin output/a/fig.bin output/b/fig.bin; do echo first > $f; printf '%d %%s\0' $f > $f; done`, i))
		for _, name := range []string{"fig.bin", "a/fig.bin", "b/fig.bin"} {
			f := r.file(t, name)
			if seen[f.token()] || len(f.token()) != 43 { // 256 bits in base64
				t.Errorf("%s: the token is %d characters long, or has been seen", name, len(f.token()))
			}
			seen[f.token()] = true
			files = append(files, f)
		}
	}
	for i, f := range files {
		if want := fmt.Sprintf("%d output/%s\x00", i/3, f.Name); string(download(t, f)) != want {
			t.Errorf("%s of run %d holds %q", f.Name, i/3, download(t, f))
		}
	}
}

// TestFault16LinksSayWhenTheyExpire, wherever a link stands.
func TestFault16LinksSayWhenTheyExpire(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "bash", `for i in 1 2 3; do head -c 5000 /dev/urandom > output/$i.bin; done; echo small > output/small.txt; seq 1 100000`)
	if len(r.Files) != 5 {
		t.Fatalf("%s", r)
	}
	for _, f := range r.Files {
		link := r.links()[f.Name]
		switch {
		case f.URL == "" && (f.ExpiresIn != 0 || link != nil):
			t.Errorf("%s has no link, and more: %+v %+v", f.Name, f, link)
		case f.URL == "":
		case f.ExpiresIn != 3600 || link == nil || link.Description != "expires in 60 min":
			t.Errorf("%s does not say when it expires: %+v %+v", f.Name, f, link)
		case !strings.Contains(r.text(), f.URL+" (expires in 60 min)"):
			t.Errorf("the text does not say it of %s", f.Name)
		}
	}
}

// TestFault17HostileOutputs: only regular files below output come back, and
// nothing leads out of it, on the way in or out.
func TestFault17HostileOutputs(t *testing.T) {
	s := sharedServer(t)
	r := s.succeed(t, "python", `
import os, socket, stat
os.chdir("output")
os.symlink("/etc/passwd", "absolute"); os.symlink("../../etc/shadow", "relative")
os.symlink("nowhere", "dangling"); os.symlink("loop", "loop"); os.symlink("/", "root")
os.symlink("/proc/1/environ", "environ"); os.symlink("/belljar/run", "share")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
try: os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
except PermissionError: print("no device nodes")
os.link("/etc/hostname" if os.path.exists("/etc/hostname") else "/etc/passwd", "hard")
open("real.txt", "w").write("real")
for name in [b"new\nline.txt", "\u202egnp.exe.txt".encode(), b"bad\xff\xfe.txt", b"n"*255, b"-rf", b"quote\"'<b>.txt", b"a%2e%2e%2fb.txt", b"C:\\x.txt", b" ", b"..."]:
    open(name, "wb").write(b"x"*5000)
with open("sparse", "wb") as f:
    try: os.ftruncate(f.fileno(), 1 << 40)
    except OSError as e: print("sparse:", e.strerror); os.ftruncate(f.fileno(), 4 << 30)
`)
	if !strings.Contains(r.Stdout, "no device nodes\n") {
		t.Errorf("stdout: %q", r.Stdout)
	}
	want := map[string]bool{}
	for _, name := range []string{"new\nline.txt", "\u202egnp.exe.txt", "bad\ufffd.txt", strings.Repeat("n", 255), "-rf", `quote"'<b>.txt`, "a%2e%2e%2fb.txt", `C:\x.txt`, " ", "..."} {
		want[name] = true
		if got := download(t, r.file(t, name)); len(got) != 5000 {
			t.Errorf("%q: %d bytes", name, len(got))
		}
	}
	want["real.txt"], want["hard"] = true, true
	for _, name := range r.names() {
		if !want[name] {
			t.Errorf("%q came back", name)
		}
	}
	notes := strings.Join(r.Notes, "\n")
	if !strings.Contains(notes, "9 entries that are neither files nor directories") || !strings.Contains(notes, "sparse") {
		t.Errorf("the notes: %q", r.Notes)
	}
	for _, text := range []string{r.text(), notes} {
		if strings.Contains(text, "new\nline") || strings.Contains(text, "- \u202e") {
			t.Errorf("a name leads the reader astray in:\n%s", text)
		}
	}
	// On the server's disk a name is one component, whatever it says.
	for _, dir := range []string{"..", "../..", "output"} {
		if _, err := os.Stat(s.state + "/output/" + dir + "/b.txt"); err == nil {
			t.Errorf("a file was written to %s", dir)
		}
	}
}

// TestFault17SwappedWhileCollecting: files that turn into links to the
// server's own, or into other files, while they are fetched.
func TestFault17SwappedWhileCollecting(t *testing.T) {
	s := sharedServer(t)
	secret := s.state + "/native/id"
	r := s.run(t, "python", fmt.Sprintf(`
import os, subprocess
for i in range(100): open(f"output/{i:03}", "w").write("mine "*2000)
swap = '''
import os, itertools
for n in itertools.count():
    i = n %% 100
    try:
        os.symlink([%q, "/etc/shadow", "/proc/1/environ"][n %% 3], "t"); os.rename("t", f"output/{i:03}")
        open("u", "w").write("mine "*2000); os.rename("u", f"output/{i:03}")
    except OSError: pass
'''
subprocess.Popen(["python3", "-c", swap], start_new_session=True)
`, secret))
	files := r.all(t)
	if len(files) < 10 {
		t.Errorf("only %d files came back", len(files))
	}
	for _, f := range files {
		if data := f.data(t); strings.Trim(data, "mine ") != "" {
			t.Errorf("%s holds %.100q", f.Name, data)
		}
	}
	s.settled(t)
}
