package artifact

import (
	"context"
	"errors"
	"io"
	"time"
)

// Workspaces are the sandboxes that links lead into.
type Workspaces interface {
	// Running reports whether Open has nothing to start.
	Running(id string) bool
	// Open returns a running workspace, to be closed, and starts it if it is
	// stopped. It fails with ErrNotFound if there is none.
	Open(ctx context.Context, id string) (Workspace, error)
}

// Workspace gives access to the files of one sandbox. What it yields is
// hostile, but no more than was announced comes out of Read.
type Workspace interface {
	// Stat fails with ErrNotFound if there is nothing at the path.
	Stat(ctx context.Context, path string) (LiveFile, error)
	// Read opens a regular file: length bytes from offset, or as many as there
	// are, or an error. It fails with ErrNotFound if there is none.
	Read(ctx context.Context, path string, offset, length int64) (io.ReadCloser, LiveFile, error)
	// Archive packs a directory, in the format "tar.gz" or "zip".
	Archive(ctx context.Context, path, format string) (io.ReadCloser, error)
	// Write replaces a file at once when all of r is there. It fails with
	// ErrRefused if the workspace does not take it.
	Write(ctx context.Context, path string, r io.Reader) error
	Close()
}

// LiveFile describes what is at a path of a workspace now.
type LiveFile struct {
	Dir     bool
	Regular bool
	Size    int64
	ModTime time.Time
	// Identity differs from that of another file which takes the name,
	// Version after each change.
	Identity, Version string
}

// ErrRefused is for a file that a workspace does not take.
var ErrRefused = errors.New("the sandbox does not take the file")
