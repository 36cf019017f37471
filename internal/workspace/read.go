package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/sandbox"
)

// Defaults and bounds of Read.
const (
	defaultLines = 2000
	maxLine      = 2000      // bytes of a line that are shown
	maxScan      = 512 << 20 // bytes of a file that are looked through
	pictureEdge  = 1024      // pixels
	pictureBytes = 512 << 10
)

// ReadRequest asks for a file, or a part of it.
type ReadRequest struct {
	FileRef
	// Offset is the first line, or page, counted from 1; 0 is 1.
	Offset int
	// Limit is how many lines, or pages; 0 is as many as fit.
	Limit int
}

// Content is what a file holds, as far as it can be shown.
type Content struct {
	Path  string `json:"path"`
	MIME  string `json:"mime"`
	Bytes int64  `json:"bytes" jsonschema:"size of the whole file"`
	// Text is lines, each with its number and a tab before it, or that of
	// pages.
	Text string `json:"text,omitempty" jsonschema:"the lines, each after its number and a tab; or the text of pages"`
	// First and Last are the lines, or pages, that are shown; 0 if there are
	// none.
	First int `json:"first,omitempty" jsonschema:"number of the first line, or page, shown"`
	Last  int `json:"last,omitempty" jsonschema:"number of the last one"`
	// Total is how many there are, 0 if that is not known.
	Total    int       `json:"total,omitempty" jsonschema:"lines, or pages, of the whole file; absent if not counted"`
	Notes    []string  `json:"notes,omitempty"`
	Pictures []Picture `json:"-"`
}

// Picture is a small version of a picture.
type Picture struct {
	MIME string
	Data []byte
}

// Read shows a file: text by its lines, a picture as a smaller one, a PDF by
// its pages. Anything else is described.
func (f *Files) Read(ctx context.Context, r ReadRequest) (*Content, error) {
	if r.Offset < 0 || r.Limit < 0 {
		return nil, refuse("offset and limit: want 1 or more")
	}
	var c *Content
	err := f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) (err error) {
		c, err = f.read(ctx, ws, max(r.Offset, 1), r.Limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (f *Files) read(ctx context.Context, ws opened, offset, limit int) (*Content, error) {
	body, st, err := ws.c.ReadRange(ctx, ws.path, 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	head := make([]byte, 8<<10)
	n, err := io.ReadFull(body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF || int64(n) < min(st.Size, int64(len(head))) {
		return nil, errors.Join(errors.New("reading the beginning of a file"), err)
	}
	head = head[:n]
	c := &Content{Path: ws.path, MIME: artifact.MediaType(head, ws.path), Bytes: st.Size}
	switch {
	case n == 0:
		c.Notes = append(c.Notes, "the file is empty")
		return c, nil
	case isText(head, c.MIME):
		all := io.MultiReader(bytes.NewReader(head), body)
		return c, f.readLines(c, all, offset, limit)
	}
	body.Close() // the rest is read in the sandbox
	at, err := ws.real(ctx)
	if err != nil {
		return nil, err
	}
	if c.MIME == "application/pdf" {
		return c, f.readPages(ctx, ws.c, c, at, offset, limit)
	}
	mime, data, err := ws.c.Preview(ctx, at, pictureEdge, pictureBytes)
	switch {
	case err == nil:
		c.Pictures = append(c.Pictures, Picture{MIME: mime, Data: data})
		return c, nil
	case !errors.Is(err, agent.ErrNotPicture):
		f.log.Info("no picture of a file", "sandbox", ws.ID(), "type", c.MIME, "err", err)
	}
	c.Notes = append(c.Notes, "this file cannot be shown here; execute can look into it with the sandbox's programs, share_file gives the user a link to it")
	return c, nil
}

// real is the path without symbolic links.
func (ws opened) real(ctx context.Context) (string, error) {
	st, err := ws.c.Stat(ctx, ws.path)
	if err != nil {
		return "", err
	}
	if len(st.Real) > 0 {
		return string(st.Real), nil
	}
	return ws.path, nil
}

// isText reports whether a file that begins so can be shown by its lines.
func isText(head []byte, mime string) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	if utf8.Valid(sandbox.TrimEnd(head)) {
		return mime != "application/pdf"
	}
	return strings.HasPrefix(mime, "text/")
}

// readLines shows lines of text from offset on.
func (f *Files) readLines(c *Content, r io.Reader, offset, limit int) error {
	if limit == 0 {
		limit = defaultLines
	}
	lines := newLineReader(io.LimitReader(r, maxScan))
	var text strings.Builder
	var cut, invalid, number int
	full := false
	for {
		// What is beyond the part that is shown is counted only.
		wanted := number+1 >= offset && c.Last < offset+limit-1 && !full
		line, err := lines.next(wanted)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		number++
		if !wanted {
			continue
		}
		shown := strings.ToValidUTF8(string(line.text), "\uFFFD")
		if shown != string(line.text) {
			invalid++
		}
		if line.more > 0 {
			cut++
			shown += fmt.Sprintf("… [%d bytes more]", line.more)
		}
		if entry := fmt.Sprintf("%6d\t%s\n", number, shown); text.Len() > 0 && text.Len()+len(entry) > f.maxText {
			full = true
			continue
		} else {
			text.WriteString(entry)
		}
		if c.First == 0 {
			c.First = number
		}
		c.Last = number
	}
	c.Text = text.String()
	more := c.Bytes > maxScan
	if !more {
		c.Total = number
	}
	if c.First == 0 && !more {
		return refuse("%s has %d lines; offset %d is beyond them", show(c.Path), number, offset)
	}
	f.noteLines(c, number, cut, invalid, more)
	return nil
}

func (f *Files) noteLines(c *Content, counted, cut, invalid int, more bool) {
	note := func(format string, args ...any) { c.Notes = append(c.Notes, fmt.Sprintf(format, args...)) }
	if more {
		note("only the first %d MiB were looked through, %d lines; for what is beyond, use sed or tail by execute", maxScan>>20, counted)
	}
	if c.Last < counted && c.Last > 0 {
		note("lines %d to %d are shown; go on with offset %d", c.First, c.Last, c.Last+1)
	}
	if cut > 0 {
		note("%d long lines are cut after %d bytes; cut -c or fold by execute shows more of them", cut, maxLine)
	}
	if invalid > 0 {
		note("%d lines are not UTF-8; what is not was replaced by \uFFFD", invalid)
	}
}

// lineReader reads lines of any length in constant memory.
type lineReader struct {
	r   io.Reader
	buf []byte
	pos int
	end int
	err error
}

// line is a line without its end, of which at most maxLine bytes are kept.
type line struct {
	text []byte
	more int64 // bytes that are not kept
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{r: r, buf: make([]byte, 256<<10)} }

// next returns the next line, without its text if that is not wanted, or
// io.EOF.
func (l *lineReader) next(wanted bool) (line, error) {
	var out line
	any := false
	for {
		if l.pos == l.end {
			if l.err == nil {
				l.end, l.err = l.r.Read(l.buf)
				l.pos = 0
				continue
			}
			if any && l.err == io.EOF {
				return out.trimmed(), nil
			}
			return line{}, l.err
		}
		any = true
		part := l.buf[l.pos:l.end]
		i := bytes.IndexByte(part, '\n')
		if i >= 0 {
			part = part[:i]
			l.pos += i + 1
		} else {
			l.pos = l.end
		}
		if wanted {
			keep := min(len(part), maxLine+utf8.UTFMax-len(out.text))
			out.text = append(out.text, part[:keep]...)
			out.more += int64(len(part) - keep)
		}
		if i >= 0 {
			return out.trimmed(), nil
		}
	}
}

// trimmed drops the carriage return of a line, or cuts the line to its bound
// without splitting a character.
func (l line) trimmed() line {
	if l.more == 0 {
		l.text = bytes.TrimSuffix(l.text, []byte("\r"))
	}
	if len(l.text) > maxLine {
		keep := maxLine
		for keep > maxLine-utf8.UTFMax && !utf8.RuneStart(l.text[keep]) {
			keep--
		}
		l.more += int64(len(l.text) - keep)
		l.text = l.text[:keep]
	}
	return l
}
