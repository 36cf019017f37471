package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Errors that callers decide on; test with errors.Is.
var (
	// ErrNoJob says that the agent knows no job of that id.
	ErrNoJob = errors.New("no such job")
	// ErrNoInput says that a job does not read what is written to it: it has no
	// input, has closed it, or has ended.
	ErrNoInput = errors.New("the job takes no input")
	// ErrNoFile says that a file or directory does not exist.
	ErrNoFile = errors.New("no such file")
	// ErrIsDir says that a directory is where a file is wanted, ErrNotDir the
	// reverse.
	ErrIsDir  = errors.New("is a directory")
	ErrNotDir = errors.New("not a directory")
	// ErrChanged says that a file is not the version that was to be replaced.
	ErrChanged = errors.New("the file has changed")
	// ErrPattern says that a pattern is malformed.
	ErrPattern = errors.New("malformed pattern")
	// ErrNotPicture says that a file is in no known picture format, is
	// broken, or is too large to decode.
	ErrNotPicture = errors.New("not a picture that can be shown")
)

// RemoteError is the agent's refusal of a request, in its words. They come
// from the sandbox: one short line of printable text, but not to be believed.
type RemoteError struct{ Text string }

func (e *RemoteError) Error() string { return "agent: " + e.Text }

// ProtocolError says that the other end does not behave as an agent.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "agent answered nonsense: " + e.What }

func nonsense(format string, args ...any) error {
	return &ProtocolError{What: fmt.Sprintf(format, args...)}
}

// refusal is the body of every answer that is not a success.
type refusal struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// maxText bounds each text of the agent that may reach a person.
const maxText = 1024

// refusals are the errors that keep their identity over the wire.
var refusals = []struct {
	err    error
	code   string
	status int
}{
	{ErrNoJob, "no_job", 404},
	{ErrGate, "gate", 409},
	{ErrNoInput, "no_input", 409},
	{ErrNoFile, "no_file", 404},
	{ErrIsDir, "is_dir", 409},
	{ErrNotDir, "not_dir", 409},
	{ErrChanged, "changed", 409},
	{ErrNotPicture, "not_picture", 422},
}

// refuse describes err for the wire.
func refuse(err error) (status int, r refusal) {
	r.Text = printable(err.Error())
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			r.Code = known.code
			return known.status, r
		}
	}
	r.Code = "refused"
	return 400, r
}

// err is the client's view of a refusal.
func (r refusal) err() error {
	for _, known := range refusals {
		if r.Code == known.code {
			return known.err
		}
	}
	return &RemoteError{Text: printable(r.Text)}
}

// printable makes text fit for one line of a log: bounded, valid UTF-8, no
// control characters.
func printable(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// fileHeader carries the JSON of a FileInfo next to a file's bytes.
const fileHeader = "Belljar-File"

// fileLine is what a request to write several files says of each.
type fileLine struct {
	Path    string      `json:"path"`
	Mode    fs.FileMode `json:"mode"`
	Size    int64       `json:"size"`
	InPlace bool        `json:"in_place,omitempty"`
	ModTime time.Time   `json:"mod_time,omitzero"`
}

// listLine is one line of a listing: a file, or the end with the counts.
type listLine struct {
	File *FileInfo `json:"file,omitempty"`
	End  *listEnd  `json:"end,omitempty"`
}

type listEnd struct {
	More    int64 `json:"more"`
	Skipped int64 `json:"skipped"`
	// Refused says why a directory could not be listed that was asked for
	// with others. Of one alone, the answer's status says it.
	Refused *refusal `json:"refused,omitempty"`
}

// treeQuery is how a request names the directories to list: a path each, and
// as many of the other parameters. With one tree it is what agents have taken
// from the start.
func treeQuery(trees []Tree) url.Values {
	query := url.Values{}
	for _, t := range trees {
		query.Add("path", t.Dir)
		query.Add("max", strconv.Itoa(t.Max))
		query.Add("flat", strconv.FormatBool(t.Flat))
	}
	return query
}

// treesOf reads a treeQuery.
func treesOf(query url.Values) ([]Tree, error) {
	paths, limits, flats := query["path"], query["max"], query["flat"]
	if len(paths) == 0 || len(limits) != len(paths) || len(flats) != len(paths) && len(flats) > 0 {
		return nil, fmt.Errorf("%d of path, %d of max, %d of flat", len(paths), len(limits), len(flats))
	}
	trees := make([]Tree, len(paths))
	for i := range trees {
		limit, err := strconv.Atoi(limits[i])
		if err != nil || limit < 0 {
			return nil, fmt.Errorf("max %q", limits[i])
		}
		trees[i] = Tree{Dir: paths[i], Max: limit, Flat: len(flats) > 0 && flats[i] == "true"}
	}
	return trees, nil
}

// What a request for a job's status may wait for.
const (
	waitExit = "exit"
	waitGate = "gate" // or the exit
	waitNews = "news" // of a job's output: more of it, or the exit
)

// longPoll is how long the agent holds a request that waits for a job.
const longPoll = 20 * time.Second

// Bounds on names and trees.
const (
	maxPath = 4096 // as the kernel's PATH_MAX
	// maxListing bounds the bytes of all paths of a listing together.
	maxListing = 8 << 20
)
