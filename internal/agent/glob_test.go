package agent

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func (g glob) match(path string) bool {
	at := g.start()
	for e := range strings.SplitSeq(path, "/") {
		if !at.open() {
			return false
		}
		at = g.step(at, e)
	}
	return at.matched()
}

func TestGlob(t *testing.T) {
	for pattern, paths := range map[string]string{
		"":             "a a/b .c",
		"*.go":         "x.go .go !a/x.go !x.gox",
		"**/*.go":      "x.go a/x.go a/b/c/x.go !x.c !x.go/y",
		"a/**":         "a a/b a/b/c !b !ab",
		"a/**/b":       "a/b a/x/b a/x/y/b !a !b !a/b/c",
		"**/a/**/b/**": "a/b x/a/y/b/z !a !b/a",
		"./a//b/":      "a/b !a !a/b/c",
		"[a-c]?":       "ab c1 !d1 !a",
		"**/**/**":     "a a/b",
		`\*`:           "* !a",
	} {
		g, err := parseGlob(pattern)
		if err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		for path := range strings.FieldsSeq(paths) {
			path, not := strings.CutPrefix(path, "!")
			if g.match(path) == not {
				t.Errorf("%q matches %q: %v", pattern, path, !not)
			}
		}
	}
	for _, pattern := range []string{"[", "a/../b", "..", "a[]", `\`} {
		if _, err := parseGlob(pattern); err == nil {
			t.Errorf("%q is taken", pattern)
		}
	}
}

// FuzzGlob compares with a regular expression, and takes no pattern that costs
// more than its length.
func FuzzGlob(f *testing.F) {
	f.Add("**/a*/?", "b/ax/c")
	f.Add("**/a/**/a/**/a/**/a", strings.Repeat("a/", 50)+"b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if !utf8.ValidString(pattern) || strings.ContainsAny(pattern, `[]\^`) || strings.Trim(path, "abc/") != "" || strings.Contains("/"+path+"/", "//") {
			return
		}
		g, err := parseGlob(pattern)
		if err != nil {
			return
		}
		re := "^"
		for _, e := range g {
			switch e {
			case anything:
				re += "([^/]+/)*"
			default:
				re += strings.NewReplacer(`\*`, "[^/]*", `\?`, "[^/]").Replace(regexp.QuoteMeta(e)) + "/"
			}
		}
		want := regexp.MustCompile(re + "$").MatchString(path + "/")
		if got := g.match(path); got != want {
			t.Errorf("%q of %q: %v, want %v", pattern, path, got, want)
		}
	})
}
