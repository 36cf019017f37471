package artifact

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestFileName(t *testing.T) {
	long := strings.Repeat("é", 150) // 300 bytes
	tests := []struct{ path, want string }{
		{"figure.png", "figure.png"},
		{"plots/2026/figure 1.png", "figure 1.png"},
		{"Ωμέγα 图.png", "Ωμέγα 图.png"},
		{"family 👨‍👩‍👧.txt", "family 👨‍👩‍👧.txt"}, // joiners are kept
		{"", "file"},
		{".", "file"},
		{"..", "file"},
		{"../..", "file"},
		{"../../etc/passwd", "passwd"},
		{"/etc/passwd", "passwd"},
		{"dir/", "dir"},
		{"///", "file"},
		{".bashrc", "bashrc"},
		{" . .x ", "x"},
		{`..\..\boot.ini`, `_.._boot.ini`},
		{"a\nb\rc\td\x00e\x7f.txt", "a_b_c_d_e_.txt"},
		{"a\u0085b", "a_b"}, // a control character beyond ASCII
		{"bad\xff\xfe.csv", "bad\uFFFD.csv"},
		{"exe\u202egnp.exe", "exe_gnp.exe"},
		{"a\u200fb\u2067c\u061cd\u2028e\ufefff", "a_b_c_d_e_f"},
		{long + ".png", strings.Repeat("é", 98) + ".png"},
		{"." + long, strings.Repeat("é", 100)},
		{"a." + strings.Repeat("x", 300), "a." + strings.Repeat("x", 198)},
	}
	for _, tt := range tests {
		if got := fileName(tt.path); got != tt.want {
			t.Errorf("fileName(%q) = %q, want %q", tt.path, got, tt.want)
		}
	}
}

func TestValidPath(t *testing.T) {
	if got := validPath("a/\xff/../b\n"); got != "a/\uFFFD/../b\n" {
		t.Errorf("validPath = %q", got)
	}
	if got := validPath(strings.Repeat("图", 3000)); len(got) != 4095 || !utf8.ValidString(got) {
		t.Errorf("a path of 9000 bytes became %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}

func FuzzFileName(f *testing.F) {
	for _, s := range []string{"a.png", "../x", ".", "\xff\u202e", strings.Repeat("é.", 200), " .a. "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		name := fileName(path)
		switch {
		case name == "", len(name) > maxName, !utf8.ValidString(name),
			strings.HasPrefix(name, "."), strings.ContainsAny(name, "/\\"),
			strings.ContainsFunc(name, unicode.IsControl),
			strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }):
			t.Errorf("fileName(%q) = %q", path, name)
		}
		if again := fileName(name); again != name {
			t.Errorf("fileName(%q) = %q, and of that %q", path, name, again)
		}
	})
}

func TestMediaType(t *testing.T) {
	png := "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	svg := `<svg xmlns="http://www.w3.org/2000/svg"></svg>`
	tests := []struct{ name, head, want string }{
		{"a.png", png, "image/png"},
		{"a.html", png, "image/png"}, // content decides
		{"a.jpg", "\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"},
		{"a.gif", "GIF89a", "image/gif"},
		{"a.webp", "RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"},
		{"a.pdf", "%PDF-1.7\n", "application/pdf"},
		{"a.txt", "hello\n", "text/plain"},
		{"a", "hello\n", "text/plain"},
		{"a.TXT", "1,2\n3,4\n", "text/plain"},
		{"a.csv", "1,2\n3,4\n", "text/csv"},
		{"a.csv", "x\n", "text/csv"},
		{"a.tsv", "x\n", "text/tab-separated-values"},
		{"a.json", `{"a":1}`, "application/json"},
		{"a.json", "not json", "application/json"},
		{"a.txt", `{"a":1}`, "text/plain"},
		{"a.py", "print(1)\n", "text/x-python"},
		{"a.md", "# x\n", "text/markdown"},
		{"a.svg", svg, "image/svg+xml"},
		{"a.svg", "<!-- x -->" + svg, "image/svg+xml"},
		{"a.svg", "no picture", "image/svg+xml"},
		{"a.txt", svg, "image/svg+xml"}, // a disguise
		{"a.html", "hello", "text/html"},
		{"a.txt", "<html><script>alert(1)</script>", "text/html"},
		{"a.png", "<!DOCTYPE html>", "text/html"},
		{"a.npy", "\x93NUMPY\x01\x00", "application/x-npy"},
		{"a.bin", "\x00\x01\x02", "application/octet-stream"},
		{"a.txt", "\x00\x01\x02", "application/octet-stream"},
		{"a.txt", "", "text/plain"},
	}
	for _, tt := range tests {
		if got := MediaType([]byte(tt.head), tt.name); got != tt.want {
			t.Errorf("MediaType(%.20q, %q) = %q, want %q", tt.head, tt.name, got, tt.want)
		}
	}
}

func TestInline(t *testing.T) {
	for _, mime := range []string{"text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "text/css", "application/octet-stream", ""} {
		if inline(mime) {
			t.Errorf("%q is shown inline", mime)
		}
	}
}

func TestValidToken(t *testing.T) {
	token := newToken()
	if !validToken(token) {
		t.Errorf("validToken refused a new token")
	}
	for _, bad := range []string{
		"", token[:42], token + "A", token + "=", token[:42] + ".", token[:42] + "/",
		"\n" + token[:42], token[:21] + "\r\n" + token[23:],
		strings.Repeat("A", 42) + "B", // bits beyond the 256
	} {
		if validToken(bad) {
			t.Errorf("validToken(%q)", bad)
		}
	}
	seen := map[string]bool{}
	for range 1000 {
		seen[newToken()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different tokens of 1000", len(seen))
	}
}

func TestRedact(t *testing.T) {
	token := strings.Repeat("aZ-_9", 9)[:43]
	tests := []struct{ path, want string }{
		{"/healthz", "/healthz"},
		{"/sandbox-out/" + token + "/a.png", "/sandbox-out/…/a.png"},
		{"/sandbox-out/" + token, "/sandbox-out/…"},
		{"/sandbox-out/", "/sandbox-out/"},
		{"/sandbox-out/short/a.png", "/sandbox-out/…/a.png"},
		{"//sandbox-out//" + token + "/a", "//sandbox-out//…/a"},
		{"/x/SANDBOX-OUT/" + token, "/x/SANDBOX-OUT/…"},
		{"/other/" + token + "/a", "/other/…/a"},
		{"/sandbox-out%2F" + token, "/sandbox-out%…"},
		{"/" + token[:42] + "!/a", "/…!/a"},
		{"open " + token + ": no such file", "open …: no such file"},
		{"", ""},
	}
	for _, tt := range tests {
		if got := Redact(tt.path); got != tt.want {
			t.Errorf("Redact(%q) = %q, want %q", tt.path, got, tt.want)
		}
	}
}

func TestDisposition(t *testing.T) {
	tests := []struct{ name, want string }{
		{"a b.csv", `inline; filename="a b.csv"`},
		{`a"b\c.csv`, `inline; filename="a_b_c.csv"; filename*=UTF-8''a%22b%5Cc.csv`},
		{"100%.csv", `inline; filename="100_.csv"; filename*=UTF-8''100%25.csv`},
		{"é€'().csv", `inline; filename="__'().csv"; filename*=UTF-8''%C3%A9%E2%82%AC%27%28%29.csv`},
	}
	for _, tt := range tests {
		if got := disposition("inline", tt.name); got != tt.want {
			t.Errorf("disposition(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
}
