// Package image keeps the root filesystems that the native engine starts
// sandboxes from: it builds them from Containerfiles, pulls them from
// registries, loads them from archives, and lists and removes them.
//
// A Store has one owner at a time; its directory is for that owner alone
// (mode 0700), since root filesystems hold setuid files that the host's users
// must not reach.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Image is a root filesystem on disk with what was said of it.
type Image struct {
	// Digest identifies the image: "sha256:" and 64 hex digits.
	Digest string `json:"digest"`
	// Names are the names that point at it, in order.
	Names []string `json:"names"`
	// Bytes is the size of the root filesystem's regular files.
	Bytes   int64     `json:"bytes"`
	Created time.Time `json:"created"`
	// Source says in words where the image came from.
	Source string `json:"source"`
	Config Config `json:"config"`
	// Missing is what its Containerfile's optional steps left out, as the
	// image says.
	Missing []Missing `json:"missing,omitempty"`
	// Rootfs is the directory of the root filesystem, owned by root with the
	// ids as they are inside, never written to.
	Rootfs string `json:"-"`
}

// Config is the part of an image's configuration that Belljar uses.
type Config struct {
	Env     []string          `json:"env,omitempty"` // KEY=value
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"` // as in a Containerfile
	Labels  map[string]string `json:"labels,omitempty"`
}

// Errors that callers decide on.
var (
	ErrNotFound = errors.New("no such image")
	// ErrInUse is for removing an image that a sandbox stands on.
	ErrInUse = errors.New("image is in use")
)

// Step is a command to run while an image is built.
type Step struct {
	// Lower are the directories that make up the root filesystem, the
	// topmost first. They are not changed.
	Lower []string
	// Upper is an existing empty directory with the root directory's mode,
	// in the store. Afterwards it holds what the command changed as an
	// overlay's upper directory does, with ids as they are inside; the overlay
	// has redirect_dir and metacopy off.
	Upper string
	// Argv, Env (KEY=value), Dir and User are the process's.
	Argv []string
	Env  []string
	Dir  string
	User string
	// Output gets stdout and stderr together.
	Output io.Writer
}

// ExitError says that a step's command failed.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Runner runs build steps in sandboxes with the host's network. The native
// engine is one.
type Runner interface {
	// RunStep returns *ExitError if the command's exit code is not zero.
	RunStep(ctx context.Context, s Step) error
}

// Event is progress of a pull, load or build, for a person to see.
type Event struct {
	// Step of Steps is under way; both 0 where there are no steps.
	Step  int `json:"step,omitempty"`
	Steps int `json:"steps,omitempty"`
	// Text is one line that says what is being done, or a line of output of
	// the step if Output is set.
	Text   string `json:"text"`
	Output bool   `json:"output,omitempty"`
	// Done of Total bytes are through; Total is 0 where it is not known.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// Progress receives events, one at a time, and must not block for long.
type Progress func(Event)
