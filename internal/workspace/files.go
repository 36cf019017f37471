package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/sandbox"
)

// Lender lends running workspaces to Files: it starts them when they are
// stopped.
type Lender interface {
	// Lend lends a subject's workspace by its name, the default one if that is
	// "". The error is a *sandbox.RequestError if there is no such workspace.
	Lend(ctx context.Context, s access.Subject, name string) (Lent, error)
	// LendID lends a workspace by its identifier, whosever it is. It fails with
	// engine.ErrNotFound if there is none.
	LendID(ctx context.Context, id string) (Lent, error)
	// Running reports whether LendID has nothing to start.
	Running(id string) bool
}

// Lent is a running workspace that is in use until it is released.
type Lent interface {
	// ID is the workspace's identifier, which no other ever has.
	ID() string
	Agent() *agent.Client
	Release()
}

// Lending is a Manager as a Lender.
type Lending struct{ *Manager }

// Lend is Manager.Lease.
func (l Lending) Lend(ctx context.Context, s access.Subject, name string) (Lent, error) {
	return lent(l.Lease(ctx, s, name))
}

// LendID is Manager.LeaseID.
func (l Lending) LendID(ctx context.Context, id string) (Lent, error) {
	return lent(l.LeaseID(ctx, id))
}

// lent keeps a nil *Lease from looking like something lent.
func lent(l *Lease, err error) (Lent, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

// FilesOptions configure Files.
type FilesOptions struct {
	Lender Lender          // required
	Links  *artifact.Links // required by Share and UploadURL
	// MaxText bounds the text of a file in an answer, in bytes; 64 KiB if
	// zero.
	MaxText int
	// MaxEntries bounds the entries of a listing; 500 if zero.
	MaxEntries int
	// MaxUpload bounds a file that comes by a link, in bytes; 4 GiB if zero.
	MaxUpload int64
	Log       *slog.Logger // discarded if nil
}

// Files reads, writes, lists and shares the files of workspaces. All of it is
// done inside the sandbox, as its user, and what the sandbox answers is
// hostile. Relative paths are below /sandbox. An error of type
// *sandbox.RequestError says what would be right; any other is for a log.
// Methods are safe for concurrent use.
type Files struct {
	lender     Lender
	links      *artifact.Links
	maxText    int
	maxEntries int
	maxUpload  int64
	log        *slog.Logger
}

// NewFiles returns Files.
func NewFiles(o FilesOptions) *Files {
	f := &Files{lender: o.Lender, links: o.Links, maxText: o.MaxText, maxEntries: o.MaxEntries, maxUpload: o.MaxUpload, log: o.Log}
	if f.maxText == 0 {
		f.maxText = 64 << 10
	}
	if f.maxEntries == 0 {
		f.maxEntries = 500
	}
	if f.maxUpload == 0 {
		f.maxUpload = 4 << 30
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	return f
}

// FileRef names a file of a subject's workspace.
type FileRef struct {
	Subject access.Subject
	// Sandbox is the workspace's name, "" for the default one.
	Sandbox string
	// Path is absolute, below /sandbox, or below the home of root after "~/".
	Path string
}

// fileTime bounds one operation on a file, the start of the workspace not
// included.
const fileTime = 2 * time.Minute

// opened is a workspace lent for one operation on one path.
type opened struct {
	Lent
	c    *agent.Client
	path string // absolute and clean
}

// with runs f on a running workspace, and explains its errors.
func (f *Files) with(ctx context.Context, ref FileRef, do func(context.Context, opened) error) error {
	p, err := absolute(ref.Path)
	if err != nil {
		return err
	}
	lent, err := f.lender.Lend(ctx, ref.Subject, ref.Sandbox)
	if err != nil {
		return err
	}
	defer lent.Release()
	bounded, cancel := context.WithTimeout(ctx, fileTime)
	defer cancel()
	err = explain(p, do(bounded, opened{lent, lent.Agent(), p}))
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return refuse("%s: the sandbox did not answer within %v; it may be busy", show(p), fileTime)
	}
	return err
}

// absolute returns the path that a caller means.
func absolute(p string) (string, error) {
	switch {
	case p == "":
		return "", refuse("path: want the path of a file, such as report.csv or /etc/hosts")
	case len(p) > 4096 || strings.IndexByte(p, 0) >= 0:
		return "", refuse("path: want at most 4096 bytes, none of them NUL")
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join("/root", p[1:]), nil
	case !path.IsAbs(p):
		return path.Join(agent.Workdir, p), nil
	}
	return path.Clean(p), nil
}

// explain makes an error of the agent one for the caller's eyes, where the
// caller can do something about it.
func explain(p string, err error) error {
	var refused *agent.RemoteError
	var known *sandbox.RequestError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, agent.ErrNoFile):
		return refuse("%s does not exist; list_files shows what does", show(p))
	case errors.Is(err, agent.ErrIsDir):
		return refuse("%s is a directory, and a file is wanted; list_files shows what is in it", show(p))
	case errors.Is(err, agent.ErrNotDir):
		return refuse("%s: this, or a parent of it, is a file and not a directory", show(p))
	case errors.As(err, &refused):
		return refuse("%s: the sandbox says: %s", show(p), clipText(refused.Text, 300))
	}
	return fmt.Errorf("file of a workspace: %w", err)
}

// show is a path for a line of text.
func show(p string) string {
	return sandbox.Printable(clipText(strings.ToValidUTF8(p, "\uFFFD"), 300))
}

// clipText cuts text to at most n bytes, on a character boundary.
func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
