package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"belljar/internal/agent"
)

const (
	maxEdit     = 16 << 20 // bytes of a file that is edited
	maxReplaced = 64 << 20 // of what becomes of it
	editTries   = 8        // when others change the file at the same time
)

// EditRequest asks for a text in a file to be replaced.
type EditRequest struct {
	FileRef
	// Old is the text as it stands in the file, New what comes in its place.
	Old, New string
	// All replaces each place where Old stands; without it there must be one.
	All bool
}

// Edited says what was replaced.
type Edited struct {
	Path     string `json:"path"`
	Replaced int    `json:"replaced" jsonschema:"number of places"`
	// Lines are where the first places are now, counted from 1.
	Lines []int `json:"lines" jsonschema:"lines at which the first places begin"`
	Bytes int64 `json:"bytes" jsonschema:"size of the file now"`
	// Snippet is the first place with the lines around it, numbered.
	Snippet string `json:"snippet,omitempty" jsonschema:"the first place, with the lines around it"`
}

// Edit replaces text in a file, exactly. The file keeps its mode and its line
// ends. Several edits of one file at the same time are all done.
func (f *Files) Edit(ctx context.Context, r EditRequest) (*Edited, error) {
	switch {
	case r.Old == "":
		return nil, refuse("old: want the text to replace; write_file makes a file")
	case r.Old == r.New:
		return nil, refuse("new: is the same as old, so nothing would change")
	}
	var done *Edited
	err := f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) (err error) {
		for range editTries {
			if done, err = edit(ctx, ws, r); !errors.Is(err, agent.ErrChanged) {
				return err
			}
		}
		return refuse("%s is changed by something else all the time; try again when that has ended", show(ws.path))
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

func edit(ctx context.Context, ws opened, r EditRequest) (*Edited, error) {
	body, st, err := ws.c.ReadRange(ctx, ws.path, 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if st.Size > maxEdit {
		return nil, refuse("%s has %d bytes; edit_file takes up to %d: use sed by execute", show(ws.path), st.Size, int64(maxEdit))
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	old, replacement := []byte(r.Old), []byte(r.New)
	if crlf := bytes.Count(data, []byte("\r\n")); crlf > 0 && crlf == bytes.Count(data, []byte("\n")) {
		// The text that a model has seen has no carriage returns.
		old, replacement = withCR(old), withCR(replacement)
	}
	places := positions(data, old)
	switch {
	case len(places) == 0:
		return nil, notFound(ws.path, string(data), r.Old)
	case len(places) > 1 && !r.All:
		return nil, refuse("old stands in %s at %d places, beginning at lines %s: give more of the text around the one that is meant, or set all", show(ws.path), len(places), some(linesOf(data, places)))
	case int64(len(data))+int64(len(places))*int64(len(replacement)-len(old)) > maxReplaced:
		return nil, refuse("%s would grow above %d bytes", show(ws.path), int64(maxReplaced))
	}
	result := bytes.ReplaceAll(data, old, replacement)
	// The version sees to it that no other change is lost.
	if _, err := ws.c.PutFile(ctx, agent.Put{Path: ws.path, Version: st.Version}, bytes.NewReader(result)); err != nil {
		return nil, err
	}
	for i := range places { // where they are now
		places[i] += i * (len(replacement) - len(old))
	}
	lines := linesOf(result, places[:min(len(places), 20)])
	return &Edited{
		Path: ws.path, Replaced: len(places), Lines: lines, Bytes: int64(len(result)),
		Snippet: snippet(result, lines[0], bytes.Count(replacement, []byte("\n"))+1),
	}, nil
}

// withCR ends lines as files of Windows do.
func withCR(text []byte) []byte {
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
}

// positions are where old stands, none overlapping another.
func positions(data, old []byte) []int {
	var at []int
	for from := 0; ; {
		i := bytes.Index(data[from:], old)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(old)
	}
}

// linesOf counts the lines, from 1, at which positions are, given in order.
func linesOf(data []byte, at []int) []int {
	lines := make([]int, len(at))
	n, from := 1, 0
	for i, p := range at {
		n += bytes.Count(data[from:p], []byte("\n"))
		lines[i], from = n, p
	}
	return lines
}

// some lists the first of some numbers.
func some(numbers []int) string {
	const named = 10
	var b strings.Builder
	for i, n := range numbers[:min(len(numbers), named)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
	}
	if more := len(numbers) - named; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// snippet shows some lines from first on, and those around them.
func snippet(data []byte, first, n int) string {
	const around, most = 3, 40
	lines := strings.Split(string(data), "\n")
	from, to := max(first-1-around, 0), min(first-1+min(n, most)+around, len(lines))
	var b strings.Builder
	for i := from; i < to; i++ {
		text := strings.ToValidUTF8(strings.TrimSuffix(lines[i], "\r"), "\uFFFD")
		fmt.Fprintf(&b, "%6d\t%s\n", i+1, clipText(text, 500))
	}
	return b.String()
}
