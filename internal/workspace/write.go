package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"belljar/internal/agent"
)

// WriteRequest asks for a file to be written.
type WriteRequest struct {
	FileRef
	Data []byte
	// Mode is the permission bits; nil keeps those of the file that is
	// there, and is 0644 for a new one.
	Mode *fs.FileMode
}

// Written says what was written.
type Written struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Mode  string `json:"mode" jsonschema:"permissions, in octal"`
	// Created is whether there was no such file before.
	Created bool `json:"created" jsonschema:"whether the file is new"`
}

// Write writes a file whole, in the place of what was there, or not at all.
// Directories that are missing are made.
func (f *Files) Write(ctx context.Context, r WriteRequest) (*Written, error) {
	if strings.HasSuffix(r.Path, "/") {
		return nil, refuse("path: %s names a directory; want the path of a file", show(r.Path))
	}
	var w *Written
	err := f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) error {
		_, err := ws.c.Stat(ctx, ws.path)
		if err != nil && !errors.Is(err, agent.ErrNoFile) {
			return err
		}
		created := err != nil
		st, err := ws.c.PutFile(ctx, agent.Put{Path: ws.path, Mode: r.Mode}, bytes.NewReader(r.Data))
		if err != nil {
			return err
		}
		w = &Written{Path: ws.path, Bytes: int64(len(r.Data)), Mode: octal(st.Mode), Created: created}
		return nil
	})
	return w, err
}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode) }
