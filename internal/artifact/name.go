package artifact

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxName = 200  // bytes; file systems allow 255, some clients add a suffix
	maxExt  = 20   // bytes of a name's extension that survive a cut
	maxPath = 4096 // bytes, as PATH_MAX
)

// fileName makes a file name of the last element of a script's path: one that
// is safe in a URL, on disk, in a header and in a chat. It is idempotent.
func fileName(p string) string {
	p = strings.TrimRight(p, "/")
	p = p[strings.LastIndexByte(p, '/')+1:]
	name := trim(strings.Map(safeRune, strings.ToValidUTF8(p, "\uFFFD")))
	if len(name) > maxName {
		ext := path.Ext(name)
		if len(ext) > maxExt {
			ext = ""
		}
		name = trim(cut(name[:len(name)-len(ext)], maxName-len(ext)) + ext)
	}
	if name == "" {
		return "file"
	}
	return name
}

// safeRune replaces what would break a header, a path or the reader's eye:
// with a right-to-left mark, "exe.png" may be a program.
func safeRune(r rune) rune {
	switch {
	case unicode.IsControl(r), r == '/', r == '\\',
		unicode.Is(unicode.Bidi_Control, r),
		r == '\u2028', r == '\u2029', // line and paragraph separators
		r == '\uFEFF': // byte order mark
		return '_'
	}
	return r
}

// trim removes leading dots, so that no name is hidden or a step upwards, and
// spaces at both ends.
func trim(name string) string {
	name = strings.TrimRightFunc(name, unicode.IsSpace)
	return strings.TrimLeftFunc(name, func(r rune) bool { return r == '.' || unicode.IsSpace(r) })
}

// validPath keeps a script's path, as valid UTF-8 of bounded length.
func validPath(p string) string {
	return cut(strings.ToValidUTF8(p, "\uFFFD"), maxPath)
}

// cut shortens s to at most n bytes, on a character boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
