package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"belljar/internal/agent"
)

const (
	maxLevels   = 128 // as deep as a listing goes
	maxPatterns = 16  // that one with braces stands for
)

// ListRequest asks for a directory's entries.
type ListRequest struct {
	FileRef
	// Glob is a pattern for the paths below the directory; elements are
	// matched as by path.Match, ** is any number of directories, and {a,b}
	// either. Empty is all.
	Glob string
	// Depth is how many levels are listed. 0 is 1 without a pattern, and all
	// with one.
	Depth int
}

// ListedFiles is what is in a directory.
type ListedFiles struct {
	Path    string       `json:"path"`
	Entries []ListedFile `json:"entries"`
	// More is how many entries are left out, since there are too many.
	More  int64    `json:"more,omitempty" jsonschema:"entries left out"`
	Notes []string `json:"notes,omitempty"`
}

// ListedFile is an entry of a directory.
type ListedFile struct {
	// Path is relative to the directory that is listed.
	Path     string    `json:"path"`
	Kind     string    `json:"kind" jsonschema:"file, dir, link or other"`
	Bytes    int64     `json:"bytes,omitempty" jsonschema:"size of a file"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty" jsonschema:"where a link leads"`
}

// List lists a directory, "/sandbox" if the path is empty. Links in it are
// named and not followed.
func (f *Files) List(ctx context.Context, r ListRequest) (*ListedFiles, error) {
	if r.Path == "" {
		r.Path = agent.Workdir
	}
	if r.Depth < 0 {
		return nil, refuse("depth: want 1 or more")
	}
	depth := min(r.Depth, maxLevels)
	if depth == 0 {
		depth = 1
		if r.Glob != "" {
			depth = maxLevels
		}
	}
	patterns, err := expandBraces(r.Glob)
	if err != nil {
		return nil, err
	}
	var list *ListedFiles
	err = f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) error {
		var found []agent.Walked
		for _, p := range patterns {
			w, err := ws.c.Walk(ctx, agent.Walk{Dir: ws.path, Glob: p, Depth: depth, Max: f.maxEntries})
			if errors.Is(err, agent.ErrPattern) {
				return refuse("glob: %q: want names with *, ?, [a-z] or {a,b}, ** for any directories, and no ..", clipText(r.Glob, 200))
			}
			if errors.Is(err, agent.ErrNotDir) {
				return refuse("%s is a file and not a directory; read_file shows it", show(ws.path))
			}
			if err != nil {
				return err
			}
			found = append(found, w)
		}
		list = f.listed(ws.path, found)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// listed puts together what patterns have found.
func (f *Files) listed(path string, found []agent.Walked) *ListedFiles {
	list := &ListedFiles{Path: path, Entries: []ListedFile{}}
	var all []agent.Entry
	partial := false
	for _, w := range found {
		all = append(all, w.Entries...)
		list.More += w.More
		partial = partial || w.Partial
	}
	if len(found) > 1 {
		slices.SortStableFunc(all, func(a, b agent.Entry) int { return cmp.Compare(string(a.Path), string(b.Path)) })
		all = slices.CompactFunc(all, func(a, b agent.Entry) bool { return string(a.Path) == string(b.Path) })
	}
	if over := len(all) - f.maxEntries; over > 0 {
		all = all[:f.maxEntries]
		list.More += int64(over)
	}
	for _, e := range all {
		list.Entries = append(list.Entries, ListedFile{
			Path: strings.ToValidUTF8(string(e.Path), "\uFFFD"), Kind: string(e.Kind), Bytes: e.Size, Modified: e.ModTime,
			Target: strings.ToValidUTF8(string(e.Target), "\uFFFD"),
		})
	}
	if list.More > 0 {
		list.Notes = append(list.Notes, fmt.Sprintf("%d more entries are left out; narrow the pattern, the path or the depth", list.More))
	}
	if partial {
		list.Notes = append(list.Notes, "there are so many files that not all were looked at; narrow the path or the depth")
	}
	return list
}

// expandBraces returns the patterns that one with {a,b} stands for.
func expandBraces(pattern string) ([]string, error) {
	if len(pattern) > 1024 {
		return nil, refuse("glob: want at most 1024 bytes")
	}
	all := []string{pattern}
	for i := 0; i < len(all); {
		before, rest, ok := strings.Cut(all[i], "{")
		if !ok {
			i++
			continue
		}
		inside, after, ok := strings.Cut(rest, "}")
		if !ok || strings.Contains(inside, "{") {
			return nil, refuse("glob: braces stand for alternatives, such as *.{js,ts}, and not within each other")
		}
		var with []string
		for choice := range strings.SplitSeq(inside, ",") {
			with = append(with, before+choice+after)
		}
		all = slices.Replace(all, i, i+1, with...)
		if len(all) > maxPatterns {
			return nil, refuse("glob: braces stand for more than %d patterns", maxPatterns)
		}
	}
	return all, nil
}
