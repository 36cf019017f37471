package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"belljar/internal/access"
	"belljar/internal/engine"
	"belljar/internal/lang"
)

// Request asks for a run of a script.
type Request struct {
	Subject access.Subject `json:"subject"`
	// Runtime is a name of the table of runtimes.
	Runtime string `json:"runtime"`
	Script  string `json:"script"`
	// Inputs stand below /sandbox/input, by their names.
	Inputs []Input `json:"inputs,omitempty"`
	Stdin  string  `json:"stdin,omitempty"`
	// Timeout is the script's, in nanoseconds in JSON; 0 is the default.
	Timeout time.Duration `json:"timeout,omitempty"`
	// AllFiles is for a program that fetches the files and does not look at
	// them: the result lists each, and has no previews. Otherwise a long list
	// is kept as a file.
	AllFiles bool `json:"all_files,omitempty"`
}

// Input is a file for the script to read.
type Input struct {
	// Name is relative, with slashes, and may have directories.
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// RequestError says why a request was not carried out. Its message is for the
// caller: it holds nothing internal and says what would be right.
type RequestError struct {
	Message string `json:"message"`
}

func (e *RequestError) Error() string { return e.Message }

func refuse(format string, args ...any) error {
	return &RequestError{Message: fmt.Sprintf(format, args...)}
}

// plan is a checked Request.
type plan struct {
	Request
	runtime lang.Runtime
	image   string
	timeout time.Duration
	placed  time.Time // when the run got its place
	preload bool      // the script is one for which libraries are loaded
	run     *Run      // what its callers have of it
}

func (m *Manager) plan(r Request) (plan, error) {
	p := plan{Request: r, timeout: r.Timeout}
	runtime, ok := m.o.Table.Get(r.Runtime)
	if !ok {
		return p, refuse("unknown runtime %q; known are %s", Clip(r.Runtime), strings.Join(m.o.Table.Names(), ", "))
	}
	p.runtime, p.image = runtime, m.image(runtime)
	if strings.TrimSpace(r.Script) == "" {
		return p, refuse("the script is empty")
	}
	switch {
	case r.Timeout < 0:
		return p, refuse("timeout %s s: must be positive; the maximum is %s s", seconds(r.Timeout), seconds(m.o.MaxTimeout))
	case r.Timeout > m.o.MaxTimeout:
		return p, refuse("timeout %s s: the maximum is %s s", seconds(r.Timeout), seconds(m.o.MaxTimeout))
	case r.Timeout == 0:
		p.timeout = m.o.DefaultTimeout
	}
	p.preload = runtime.Preloads(r.Script)
	var err error
	p.Inputs, err = m.checkInputs(r)
	return p, err
}

func (m *Manager) image(r lang.Runtime) string {
	if r.Image != "" {
		return r.Image
	}
	return m.o.Image
}

// checkInputs returns the inputs with clean names.
func (m *Manager) checkInputs(r Request) ([]Input, error) {
	if len(r.Inputs) > m.o.MaxInputs {
		return nil, refuse("%d input files: at most %d are taken; pack them into an archive", len(r.Inputs), m.o.MaxInputs)
	}
	total := int64(len(r.Script)) + int64(len(r.Stdin))
	inputs := slices.Clone(r.Inputs)
	taken := map[string]bool{}
	for i, in := range inputs {
		name, err := cleanName(in.Name)
		if err != nil {
			return nil, err
		}
		if taken[name] {
			return nil, refuse("input file %q is given twice", name)
		}
		taken[name] = true
		inputs[i].Name = name
		total += int64(len(in.Data))
	}
	for name := range taken {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if taken[dir] {
				return nil, refuse("input file %q is also the directory of %q", dir, name)
			}
		}
	}
	if total > m.o.MaxInputBytes {
		return nil, refuse("script, stdin and input files hold %d bytes: at most %d are taken", total, m.o.MaxInputBytes)
	}
	return inputs, nil
}

const (
	maxNameBytes    = 1024 // of an input's whole name
	maxElementBytes = 255  // of a part between slashes, as file systems have it
)

// cleanName checks an input's name. The file is written inside the sandbox,
// where nothing could escape anyway; a name that tries to is a mistake the
// caller should hear of.
func cleanName(name string) (string, error) {
	bad := func(why string) (string, error) {
		return "", refuse("input file %q: %s; want a relative name such as data.csv or tables/data.csv", Clip(name), why)
	}
	clean := path.Clean(name)
	switch {
	case name == "":
		return bad("the name is empty")
	case len(name) > maxNameBytes:
		return bad(fmt.Sprintf("the name is longer than %d bytes", maxNameBytes))
	case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
		return bad("the name holds control characters")
	case path.IsAbs(name):
		return bad("the name is absolute")
	case strings.HasSuffix(name, "/"), clean == ".":
		return bad("the name is a directory's")
	case !fs.ValidPath(clean):
		return bad("the name leads out of the input directory")
	}
	for element := range strings.SplitSeq(clean, "/") {
		if len(element) > maxElementBytes {
			return bad(fmt.Sprintf("a part of the name is longer than %d bytes", maxElementBytes))
		}
	}
	return clean, nil
}

// Explain turns an engine's error into one for the caller where the caller,
// or the operator they can talk to, can do something about it.
func Explain(log *slog.Logger, err error, image string) error {
	var full *engine.HostFullError
	switch {
	case errors.As(err, &full):
		log.Warn("the host is too full for another sandbox", "err", err)
		if full.Need == 0 {
			return refuse("the server has as many sandboxes as it can have, so nothing was run; try again later")
		}
		return refuse("the server is short of room (%d MiB free, %d MiB must stay free), so nothing was run; try again later, or ask its operator to make room", full.Free>>20, full.Need>>20)
	case errors.Is(err, engine.ErrNotRunning):
		log.Warn("a sandbox ended as soon as it began", "image", image, "err", err)
		return refuse("nothing was run: a sandbox of the image %q ends as soon as it begins; the image may have a link or a file where /sandbox or /belljar should be a directory", image)
	case errors.Is(err, engine.ErrNoImage):
		return refuse("the image %q is not there yet; get it on the server: %s", image, HowToGet(image))
	}
	return err
}

// ownImages are those whose Containerfiles come with Belljar.
var ownImages = []string{"science", "workbench", "mini", "julia-bullseye"}

// HowToGet is what the server's operator types to get an image.
func HowToGet(image string) string {
	if slices.Contains(ownImages, image) {
		return "belljar image build -f images/Containerfile." + image + " " + image
	}
	return fmt.Sprintf("belljar image pull %s, or belljar image build -f Containerfile %[1]s", image)
}

// Clip shortens what is quoted back, or kept as a title, to 100 bytes and an
// ellipsis.
func Clip(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// seconds prints a duration as a number of seconds, without needless digits.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(math.Round(d.Seconds()*1000)/1000, 'f', -1, 64)
}
