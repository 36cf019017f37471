package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// checkJobID reports whether id can name a job; it becomes part of paths.
func checkJobID(id string) error {
	ok := len(id) >= 1 && len(id) <= 64
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if !ok {
		return fmt.Errorf("job id %q: want 1 to 64 of a-z, A-Z, 0-9, - and _", id)
	}
	return nil
}

// check reports the first field that is out of bounds.
func (s *JobSpec) check() error {
	if err := checkJobID(s.ID); err != nil {
		return err
	}
	switch {
	case len(s.Argv) == 0 || s.Argv[0] == "":
		return errors.New("job has no command")
	case s.Timeout <= 0:
		return errors.New("job has no timeout")
	case s.Keep < 0 || s.Keep > MaxKeep:
		return fmt.Errorf("job keeps %d bytes: want 0 to %d", s.Keep, MaxKeep)
	case s.Terminal != nil && (s.Gate || s.Sole):
		return errors.New("job has a terminal, and a gate or a sandbox to itself")
	case (s.Input || s.Terminal != nil) && s.Stdin != "":
		return errors.New("job has two standard inputs")
	case s.LogBytes < 0:
		return errors.New("job has a negative log size")
	}
	for _, text := range [][]string{s.Argv, s.Env, {s.Dir, s.Stdin}} {
		for _, t := range text {
			if strings.IndexByte(t, 0) >= 0 {
				return errors.New("job has a NUL byte in a string")
			}
		}
	}
	return nil
}

// readBounded reads all of r, which must not be longer than limit.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = nonsense("more than %d bytes", limit)
	}
	return data, err
}

// readListings reads the listings of trees, in their order.
func readListings(r io.Reader, trees []Tree) ([]Listing, error) {
	body := &errReader{r: r}
	bounded := &io.LimitedReader{R: body}
	dec := json.NewDecoder(bounded)
	all := make([]Listing, len(trees))
	for i, t := range trees {
		// Paths in base64, and per file the rest of its line. Each listing has
		// its own bound, since the decoder would hold one endless line.
		files := int64(t.Max)
		bounded.N = min(maxListing, files*maxPath)/3*4 + files*256 + maxHeader
		var err error
		all[i], err = readListing(dec, t)
		switch {
		case err == nil:
		case body.err != nil:
			return nil, body.err
		case err == io.EOF && i > 0:
			// An agent from before there were several knows the first only.
			all[i].Err = errors.New("the agent lists one directory at a time")
		case err == io.EOF:
			return nil, nonsense("no listing")
		default:
			return nil, err
		}
	}
	return all, nil
}

// readListing reads the lines of one listing. It fails with io.EOF if there
// are none.
func readListing(dec *json.Decoder, t Tree) (Listing, error) {
	var l Listing
	for {
		var line listLine
		if err := dec.Decode(&line); err == io.EOF && len(l.Files) == 0 {
			return Listing{}, err
		} else if err != nil {
			return Listing{}, nonsense("%s", printable(err.Error()))
		}
		if end := line.End; end != nil {
			return l.close(end)
		}
		if line.File == nil || len(l.Files) == t.Max {
			return Listing{}, nonsense("listing of more than %d files", t.Max)
		}
		if err := line.File.check(); err != nil {
			return Listing{}, err
		}
		if t.Flat && bytes.IndexByte(line.File.Path, '/') >= 0 {
			return Listing{}, nonsense("listing of a sub-directory: %.100q", line.File.Path)
		}
		if n := len(l.Files); n > 0 && bytes.Compare(l.Files[n-1].Path, line.File.Path) >= 0 {
			return Listing{}, nonsense("listing out of order at %q", line.File.Path)
		}
		l.Files = append(l.Files, *line.File)
	}
}

// close returns the listing as its end completes it.
func (l Listing) close(end *listEnd) (Listing, error) {
	switch {
	case end.More < 0 || end.Skipped < 0:
		return Listing{}, nonsense("listing counts")
	case end.Refused != nil:
		return Listing{Err: end.Refused.err()}, nil
	}
	l.More, l.Skipped = end.More, end.Skipped
	return l, nil
}

// errReader remembers what its reader failed with.
type errReader struct {
	r   io.Reader
	err error
}

func (e *errReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != io.EOF {
		e.err = err
	}
	return n, err
}

// check reports what cannot be a file below a directory.
func (f *FileInfo) check() error {
	p := string(f.Path)
	local := p != "" && len(p) <= maxPath && strings.IndexByte(p, 0) < 0
	for e := range strings.SplitSeq(p, "/") {
		local = local && e != "" && e != "." && e != ".."
	}
	if !local {
		return nonsense("file name %.100q", p)
	}
	if f.Size < 0 || f.Mode > 0o777 {
		return nonsense("size %d or mode %o of %.100q", f.Size, f.Mode, p)
	}
	return nil
}

// check reports what cannot be the status of job id with that Keep.
func (s *JobStatus) check(id string, keep int) error {
	switch {
	case s.ID != id:
		return nonsense("status of another job")
	case s.State != JobRunning && s.State != JobWaiting && s.State != JobExited:
		return nonsense("job state %.100q", s.State)
	case s.ExitCode < 0 || s.ExitCode > 255 || s.Signal < 0 || s.Signal > 127 || s.Duration < 0:
		return nonsense("job exit code %d, signal %d, duration %d", s.ExitCode, s.Signal, s.Duration)
	}
	for _, st := range []*Stream{&s.Stdout, &s.Stderr} {
		kept := int64(len(st.Head) + len(st.Tail))
		if len(st.Head) > keep || len(st.Tail) > keep || st.Bytes < kept || st.LogBytes < 0 {
			return nonsense("stream of %d bytes with %d kept", st.Bytes, kept)
		}
		if st.Log != "" && (st.Log[0] != '/' || len(st.Log) > maxPath || strings.IndexByte(st.Log, 0) >= 0) {
			return nonsense("log path %.100q", st.Log)
		}
	}
	return nil
}

// check reports what cannot be the output after a cursor.
func (o *Output) check(since Cursor, most int) error {
	if o.State != JobRunning && o.State != JobWaiting && o.State != JobExited {
		return nonsense("job state %.100q", o.State)
	}
	for _, c := range []struct {
		Chunk
		since int64
	}{{o.Stdout, since.Stdout}, {o.Stderr, since.Stderr}} {
		if c.From < c.since && len(c.Data) > 0 || len(c.Data) > most || c.Bytes < c.Next() || c.From < 0 {
			return nonsense("output of %d bytes from %d in %d, after %d", len(c.Data), c.From, c.Bytes, c.since)
		}
	}
	return nil
}

// pictureType is the media type that data's signature says, "" if it is
// neither PNG nor JPEG.
func pictureType(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	}
	return ""
}
