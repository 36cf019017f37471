package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes a small tree: names with a slash at the end are directories.
func (sb *sandbox) tree(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			must(t, os.MkdirAll(sb.file(dir), 0o755))
			continue
		}
		if i := strings.LastIndexByte(name, '/'); i > 0 {
			must(t, os.MkdirAll(sb.file(name[:i]), 0o755))
		}
		must(t, os.WriteFile(sb.file(name), []byte(name), 0o644))
	}
}

// walk lists as "kind path size", and more of the answer if there is.
func (sb *sandbox) walk(t *testing.T, w Walk) string {
	t.Helper()
	found, err := sb.Walk(testContext(t), w)
	must(t, err)
	var b strings.Builder
	for _, e := range found.Entries {
		fmt.Fprintf(&b, "%s %s %d%s\n", e.Kind, e.Path, e.Size, strings.TrimSuffix(" > "+string(e.Target), " > "))
	}
	if found.More > 0 || found.Partial {
		fmt.Fprintf(&b, "more %d partial %v\n", found.More, found.Partial)
	}
	return b.String()
}

func TestWalk(t *testing.T) {
	sb := newSandbox(t)
	sb.tree(t, "a.go", "a/x.go", "a/b/y.go", "a/b/z.c", "a-b", "empty/", "\xff")
	must(t, os.Symlink("/etc", sb.file("etc")))
	must(t, os.Symlink("a", sb.file("to-a")))
	for name, tt := range map[string]struct {
		w    Walk
		want string
	}{
		"one level":     {Walk{Depth: 1}, "file a-b 3\nfile a.go 4\ndir a 0\ndir empty 0\nlink etc 0 > /etc\nlink to-a 0 > a\nfile \xff 1\n"},
		"two levels":    {Walk{Depth: 2, Glob: "a*/**"}, "file a-b 3\nfile a.go 4\ndir a 0\ndir a/b 0\nfile a/x.go 6\n"},
		"pattern":       {Walk{Depth: 9, Glob: "**/*.go"}, "file a.go 4\nfile a/b/y.go 8\nfile a/x.go 6\n"},
		"no such":       {Walk{Depth: 9, Glob: "q/*"}, ""},
		"bound":         {Walk{Depth: 9, Glob: "**/*.go", Max: 1}, "file a.go 4\nmore 2 partial false\n"},
		"below a link":  {Walk{Dir: "to-a", Depth: 1}, "dir b 0\nfile x.go 6\n"},
		"not below one": {Walk{Depth: 9, Glob: "to-a/**"}, "link to-a 0 > a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.w.Max == 0 {
				tt.w.Max = 100
			}
			tt.w.Dir = "/sandbox/" + tt.w.Dir
			if diff := cmp.Diff(tt.want, sb.walk(t, tt.w)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name, want := range map[string]error{"none": ErrNoFile, "a.go": ErrNotDir, "a.go/x": ErrNoFile} {
		if _, err := sb.Walk(testContext(t), Walk{Dir: "/sandbox/" + name, Depth: 1, Max: 1}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := sb.Walk(testContext(t), Walk{Dir: "/sandbox", Glob: "[", Depth: 1}); !errors.Is(err, ErrPattern) {
		t.Errorf("a malformed pattern: %v", err)
	}
}

// More names than may be looked at make a part of a listing.
func TestTraversalIsBounded(t *testing.T) {
	sb := newSandbox(t)
	sb.tree(t, "a/1", "a/2", "b/3", "c/4")
	for most, want := range map[int]string{
		100: "a a/1 a/2 b b/3 c c/4 <nil>", 5: "a a/1 a/2 b too many files and directories", 7: "a a/1 a/2 b b/3 c c/4 <nil>",
	} {
		dir, err := os.Open(sb.file(""))
		must(t, err)
		var seen []string
		tr := traversal{max: most, stop: func() error { return nil }, visit: func(n node) (bool, error) {
			seen = append(seen, n.path)
			return true, nil
		}}
		err = tr.walk(dir, "", 0)
		if got := fmt.Sprint(strings.Join(seen, " "), " ", err); got != want {
			t.Errorf("%d: %s, want %s", most, got, want)
		}
	}
}
