package agent

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A glob is a pattern for paths, an element of it for each element of a path:
// as in path.Match, and "**" for any number of elements, none included.
//
// It is matched on the way down a tree: a position says how much of the
// pattern the elements so far may have used up, so that a directory is entered
// only if something below it can match.
type glob []string

// anything is the pattern that every path matches.
const anything = "**"

func parseGlob(pattern string) (glob, error) {
	var g glob
	for e := range strings.SplitSeq(pattern, "/") {
		if e == "" || e == "." || e == anything && len(g) > 0 && g[len(g)-1] == anything {
			continue
		}
		if e == ".." {
			return nil, errors.New("a pattern cannot lead upwards")
		}
		if _, err := path.Match(e, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", e, err)
		}
		g = append(g, e)
	}
	if len(g) == 0 {
		g = glob{anything}
	}
	return g, nil
}

// position is a set of places between the elements of a pattern.
type position []bool

func (g glob) start() position {
	at := make(position, len(g)+1)
	at[0] = true
	return g.skip(at)
}

// step is the position after one more element of a path.
func (g glob) step(at position, name string) position {
	next := make(position, len(g)+1)
	for i, e := range g {
		if !at[i] {
			continue
		}
		if e == anything {
			next[i] = true
		} else if ok, _ := path.Match(e, name); ok {
			next[i+1] = true
		}
	}
	return g.skip(next)
}

// skip adds the places that are reached by letting "**" stand for nothing.
func (g glob) skip(at position) position {
	for i, e := range g {
		if at[i] && e == anything {
			at[i+1] = true
		}
	}
	return at
}

// matched reports whether the path so far matches.
func (at position) matched() bool { return at[len(at)-1] }

// open reports whether a longer path may match.
func (at position) open() bool { return slices.Contains(at[:len(at)-1], true) }
