package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"belljar/internal/agent"
	"belljar/internal/artifact"
)

// inlineFiles bounds the text of small files in a result, in files of the
// largest size that is given as text. What is above it gets a link.
const inlineFiles = 16

// collector fetches what a run wrote.
type collector struct {
	m   *Manager
	c   *agent.Client
	b   *box
	p   plan
	res *Result

	left    int64 // bytes until MaxRunBytes
	inline  int   // bytes of text until no more is given as text
	entries int   // bytes of list entries until no more is given as text
	names   map[string]bool
	paths   map[string]string   // where output files are in the sandbox, by name
	first   map[string]bool     // names to be listed before others
	strays  []string            // those beside the output directory, for a note
	omitted map[string][]string // names by the reason they are left out
	reasons []string            // keys of omitted, in the order they came up

	jobs   int             // converters started
	absent map[string]bool // converters that the image has not
}

// collect fills in the streams and files of a run. What cannot be had is
// named in the result's notes; only the end of ctx stops it early.
func (m *Manager) collect(ctx context.Context, c *agent.Client, b *box, p plan, s agent.JobStatus, res *Result) {
	k := &collector{
		m: m, c: c, b: b, p: p, res: res,
		left:    m.o.MaxRunBytes,
		inline:  inlineFiles * m.o.InlineBytes,
		entries: listBytes / 2,
		names:   map[string]bool{},
		paths:   map[string]string{},
		first:   map[string]bool{},
		omitted: map[string][]string{},
		absent:  map[string]bool{},
	}
	k.fetch(ctx, s)
	if !p.AllFiles {
		// With time of its own: links that nobody is told are files lost.
		k.shorten(ctx)
	}
}

// fetch gets from the sandbox what a result needs of it, as far as time allows.
func (k *collector) fetch(ctx context.Context, s agent.JobStatus) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	list := k.list(ctx)
	for _, f := range list.files {
		k.names[f.name] = true
	}
	// The logs come first: the limit on a run's bytes must not cost the full
	// output of a script that writes too many files as well.
	k.res.Stdout = k.stream(ctx, "stdout", s.Stdout)
	k.res.Stderr = k.stream(ctx, "stderr", s.Stderr)
	k.explainFailure(s)
	clear(k.names)
	for _, f := range k.res.OutputFiles {
		k.names[f.Name] = true
	}
	for _, f := range list.files {
		k.file(ctx, f)
	}
	k.note(list)
	sortFiles(k.res.OutputFiles)
	if !k.p.AllFiles {
		k.previews(ctx)
	}
}

// stream returns the text of an output stream, and stages the full log if the
// text is not all of it, byte for byte.
func (k *collector) stream(ctx context.Context, name string, s agent.Stream) string {
	t := show(s, k.m.o.MaxOutput)
	if t.Exact {
		return t.String
	}
	what := fmt.Sprintf("%s holds %d bytes, %d were dropped from the middle", name, s.Bytes, t.Dropped)
	if t.Dropped == 0 {
		what = name + " is not all UTF-8; what is not was replaced"
	}
	log := k.unique(name + ".log")
	k.first[log] = true
	switch {
	case s.Log == "" || s.LogBytes <= 0 || !k.stage(ctx, log, s.Log, min(s.LogBytes, k.m.o.LogBytes)):
		what += "; there is no log of it"
	case s.LogBytes < s.Bytes:
		what += fmt.Sprintf("; its first %d bytes are in %s", s.LogBytes, log)
	default:
		what += "; all of it is in " + log
	}
	k.res.Notes = append(k.res.Notes, what)
	return t.String
}

// file gives back one output file.
func (k *collector) file(ctx context.Context, f output) {
	if f.stray && k.isCopy(ctx, f) {
		return
	}
	name := k.unique(f.name)
	k.names[name] = true
	if !k.stage(ctx, name, f.path, k.m.o.MaxFileBytes) {
		return
	}
	k.paths[name] = f.path
	if f.stray {
		k.strayed(f.name, name)
	}
}

// stage reads a file from the sandbox, up to max bytes, and adds it to the
// result: as text if it is small text, as a link otherwise. If it cannot, it
// notes why and returns false.
func (k *collector) stage(ctx context.Context, name, from string, max int64) bool {
	body, info, err := k.c.ReadFile(ctx, from)
	if err != nil {
		k.unread(ctx, name, err)
		return false
	}
	defer body.Close()
	// The size is the sandbox's word, and good enough for a refusal: a sparse
	// file costs a script nothing, and reading it up to the limit would take
	// the time that the other files need.
	if info.Size > min(max, k.left) {
		k.tooLarge(name, max)
		return false
	}
	src := &source{r: body}
	head, err := io.ReadAll(io.LimitReader(src, int64(k.m.o.InlineBytes)+1))
	if err != nil {
		k.unread(ctx, name, err)
		return false
	}
	if isText(head) && int64(len(head)) <= min(max, k.left) && k.asText(name, head) {
		k.left -= int64(len(head))
		return true
	}
	f, err := k.store(ctx, name, min(max, k.left), io.MultiReader(bytes.NewReader(head), src))
	switch {
	case err == nil:
		k.left -= f.Bytes
		k.res.OutputFiles = append(k.res.OutputFiles, f)
		return true
	case src.err != nil:
		k.unread(ctx, name, src.err)
	case errors.Is(err, artifact.ErrTooLarge):
		k.tooLarge(name, max)
	case errors.Is(err, artifact.ErrFull):
		k.omit("the server's store of output files is full; room is made as links expire", name)
	case ctx.Err() != nil:
		k.unread(ctx, name, err)
	default:
		k.m.o.Log.Error("storing an output file failed", "sandbox", k.b.id, "err", err)
		k.omit("the server failed to store them", name)
	}
	return false
}

// asText adds a file to the result as text, if it is small and there is room
// for more of that: such a file has no link, so its entry has to stay in the
// list, however many there are.
func (k *collector) asText(name string, data []byte) bool {
	if len(data) > min(k.m.o.InlineBytes, k.inline) {
		return false
	}
	f := textFile(name, data)
	if entryBytes(f) > k.entries {
		return false
	}
	k.inline -= len(data)
	k.entries -= entryBytes(f)
	k.res.OutputFiles = append(k.res.OutputFiles, f)
	return true
}

// store keeps a file of at most max bytes for download.
func (k *collector) store(ctx context.Context, name string, max int64, r io.Reader) (File, error) {
	a, err := k.m.o.Store.Stage(ctx, artifact.File{
		Path:     name,
		Subject:  k.p.Subject.ID,
		Run:      k.b.id,
		MaxBytes: max,
	}, r)
	if err != nil {
		return File{}, err
	}
	return File{
		Name:      name,
		Bytes:     a.Bytes,
		SHA256:    a.SHA256,
		MIME:      a.MIME,
		URL:       k.m.o.Store.URL(a),
		ExpiresIn: int64(a.Expires.Sub(a.Created).Seconds()),
	}, nil
}

// tooLarge notes that a file is above its own limit, or above what is left of
// the run's.
func (k *collector) tooLarge(name string, max int64) {
	if max <= k.left {
		k.omit(fmt.Sprintf("a file may hold %d bytes at most", max), name)
	} else {
		k.omit(fmt.Sprintf("the files of a run may hold %d bytes together at most", k.m.o.MaxRunBytes), name)
	}
}

// unread notes that a file could not be read from the sandbox.
func (k *collector) unread(ctx context.Context, name string, err error) {
	switch {
	case ctx.Err() != nil:
		k.omit(fmt.Sprintf("fetching the output took longer than %s s", seconds(collectTime)), name)
	case errors.Is(err, agent.ErrNoFile):
		k.omit("they were removed while they were fetched", name)
	default:
		k.m.o.Log.Info("reading an output file failed", "sandbox", k.b.id, "err", err)
		k.omit("they could not be read", name)
	}
}

func (k *collector) omit(reason, name string) {
	if k.omitted[reason] == nil {
		k.reasons = append(k.reasons, reason)
	}
	k.omitted[reason] = append(k.omitted[reason], shown(name))
}

// note says in words what was left out, and what was found in another place.
func (k *collector) note(list outputs) {
	for _, reason := range k.reasons {
		k.res.Notes = append(k.res.Notes, fmt.Sprintf("left out, since %s: %s", reason, few(k.omitted[reason])))
	}
	if list.more > 0 {
		k.res.Notes = append(k.res.Notes, fmt.Sprintf("left out: %d more files, since a run may give back %d at most; pack them into an archive", list.more, k.m.o.MaxFiles))
	}
	if list.skipped > 0 {
		k.res.Notes = append(k.res.Notes, fmt.Sprintf("left out: %d entries that are neither files nor directories, such as symbolic links", list.skipped))
	}
	k.noteStrays()
}

// few lists the first of some names, and says how many more there are.
func few(names []string) string {
	const named = 5
	what := strings.Join(names[:min(named, len(names))], ", ")
	if more := len(names) - named; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	return what
}

// shown is a file's name as it stands in a note.
func shown(name string) string { return Clip(Printable(name)) }

// unique returns name, or a variant of it that is not taken.
func (k *collector) unique(name string) string {
	ext := path.Ext(name)
	for try, i := name, 2; ; i++ {
		if !k.names[try] {
			return try
		}
		try = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(name, ext), i, ext)
	}
}

// validName makes text of a path, which need not be UTF-8 on disk.
func validName(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// Printable returns a file's name for a line of text: quoted if it holds line
// breaks or marks that would mislead the reader.
func Printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// isText reports whether b can be shown as it is.
func isText(b []byte) bool { return utf8.Valid(b) && !bytes.Contains(b, []byte{0}) }

func textFile(name string, data []byte) File {
	sum := sha256.Sum256(data)
	text := string(data)
	return File{
		Name: name, Bytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:]),
		MIME: artifact.MediaType(data, name), Text: &text,
	}
}

// source remembers the error of reading from a sandbox, which is the
// sandbox's and not the store's.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
