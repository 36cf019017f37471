package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/sandbox"
)

// Bounds on showing a PDF.
const (
	pdfTime      = 20 * time.Second // of each program
	maxPages     = 20               // of text at a time
	maxDrawn     = 3                // pages as pictures
	exitNotFound = 127
)

// errAbsent says that a program is not in the sandbox.
var errAbsent = errors.New("the program is not there")

var pagesLine = regexp.MustCompile(`(?m)^Pages:\s+(\d{1,7})\s*$`)

// readPages shows pages of a PDF: their text or, if they have none, since they
// were scanned, pictures of them. Poppler's programs in the sandbox do it.
func (f *Files) readPages(ctx context.Context, c *agent.Client, out *Content, at string, offset, limit int) error {
	pages := min(max(limit, 0), maxPages)
	if pages == 0 {
		pages = maxPages
	}
	info, err := runTool(ctx, c, 16<<10, "pdfinfo", at)
	if err == nil {
		if m := pagesLine.FindSubmatch(info.head); m != nil {
			out.Total, _ = strconv.Atoi(string(m[1])) // seven digits fit
		}
	}
	if out.Total > 0 && offset > out.Total {
		return refuse("%s has %d pages; offset %d is beyond them", show(out.Path), out.Total, offset)
	}
	last := offset + pages - 1
	if out.Total > 0 {
		last = min(last, out.Total)
	}
	text, err := runTool(ctx, c, f.maxText, "pdftotext", "-layout", "-enc", "UTF-8", "-f", strconv.Itoa(offset), "-l", strconv.Itoa(last), at, "-")
	switch {
	case errors.Is(err, errAbsent):
		out.Notes = append(out.Notes, "the pages are not shown, since poppler's programs are not in the sandbox; apt-get install poppler-utils brings them")
		return nil
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		f.log.Info("no text of a PDF", "err", err)
		out.Notes = append(out.Notes, "the pages could not be read; the file may be damaged or locked by a password")
		return nil
	}
	out.First, out.Last = offset, last
	shown := strings.ToValidUTF8(string(sandbox.TrimEnd(text.head)), "\uFFFD")
	if strings.TrimSpace(strings.ReplaceAll(shown, "\f", "")) == "" {
		return f.drawPages(ctx, c, out, at)
	}
	if text.dropped > 0 {
		out.Last = offset + strings.Count(shown, "\f")
		out.Notes = append(out.Notes, fmt.Sprintf("the text is cut in page %d; ask for fewer pages at a time", out.Last))
	}
	var b strings.Builder
	for i, page := range strings.Split(strings.TrimSuffix(shown, "\f"), "\f") {
		fmt.Fprintf(&b, "--- page %d ---\n%s\n", offset+i, strings.TrimRight(page, "\n \r"))
	}
	out.Text = b.String()
	f.notePages(out)
	return nil
}

// drawPages shows the first of the pages as pictures.
func (f *Files) drawPages(ctx context.Context, c *agent.Client, out *Content, at string) error {
	last := min(out.Last, out.First+maxDrawn-1)
	for page := out.First; page <= last; page++ {
		n := strconv.Itoa(page)
		pic, err := runTool(ctx, c, pictureBytes, "pdftoppm", "-jpeg", "-singlefile", "-f", n, "-l", n, "-scale-to", strconv.Itoa(pictureEdge), at)
		if err == nil && (pic.dropped > 0 || artifact.MediaType(pic.head, "") != "image/jpeg") {
			err = fmt.Errorf("%d bytes that are no small picture", pic.dropped+int64(len(pic.head)))
		}
		if err != nil {
			f.log.Info("no picture of a page", "err", err)
			break
		}
		out.Pictures = append(out.Pictures, Picture{MIME: "image/jpeg", Data: pic.head})
	}
	if len(out.Pictures) == 0 {
		out.Notes = append(out.Notes, "the pages have no text, and no picture of them could be made")
		return nil
	}
	out.Last = out.First + len(out.Pictures) - 1
	out.Notes = append(out.Notes, "the pages have no text, so pictures of them are shown")
	f.notePages(out)
	return nil
}

func (f *Files) notePages(out *Content) {
	if out.Last < out.Total {
		out.Notes = append(out.Notes, fmt.Sprintf("pages %d to %d are shown; go on with offset %d", out.First, out.Last, out.Last+1))
	}
}

// printed is what a program printed.
type printed struct {
	head    []byte
	dropped int64 // bytes after the head
}

// runTool runs a program of the sandbox, which may be anything by its name, to
// its end.
func runTool(ctx context.Context, c *agent.Client, keep int, argv ...string) (printed, error) {
	job := agent.JobSpec{ID: "file-" + rand.Text()[:16], Argv: argv, Timeout: pdfTime, Keep: keep}
	if err := c.StartJob(ctx, job); err != nil {
		return printed{}, err
	}
	s, err := c.WaitJob(ctx, job.ID)
	switch {
	case err != nil:
		return printed{}, err
	case s.ExitCode == exitNotFound && s.Error != "":
		return printed{}, errAbsent
	case s.ExitCode != 0:
		return printed{}, fmt.Errorf("%s: exit code %d: %s", argv[0], s.ExitCode, clipText(strings.ToValidUTF8(string(s.Stderr.Head), "\uFFFD"), 200))
	}
	return printed{s.Stdout.Head, s.Stdout.Bytes - int64(len(s.Stdout.Head))}, nil
}
