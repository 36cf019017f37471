package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"belljar/internal/access"
	"belljar/internal/control"
	"belljar/internal/workspace"
)

type cpCmd struct {
	From string `arg:"" help:"File to copy: FILE, or SANDBOX:PATH; :PATH is the default sandbox's."`
	To   string `arg:"" help:"Where to: FILE or a directory, or SANDBOX:PATH."`
}

// Run copies a file into a workspace or out of one.
func (c *cpCmd) Run(s *session) error {
	from, inside := sandboxPath(c.From)
	to, into := sandboxPath(c.To)
	if inside == into {
		return errors.New("one of the two must be in a sandbox, such as :data.csv or thesis:/sandbox/data.csv, and the other on this machine (directories: tar c DIR | belljar exec tar x)")
	}
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		if into {
			return c.in(s, client, to)
		}
		return c.out(s, client, from)
	})
}

// sandboxPath reads SANDBOX:PATH. A path of this machine with a colon in it has
// a slash before.
func sandboxPath(arg string) (workspace.FileRef, bool) {
	name, path, found := strings.Cut(arg, ":")
	if !found || strings.Contains(name, "/") {
		return workspace.FileRef{}, false
	}
	return workspace.FileRef{Subject: access.Owner, Sandbox: name, Path: path}, true
}

func (c *cpCmd) in(s *session, client *control.Client, to workspace.FileRef) error {
	f, err := os.Open(c.From)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("%s is a directory: tar c %[1]s | belljar exec tar x", c.From)
	}
	if to.Path == "" {
		to.Path = "/sandbox"
	}
	_, err = client.Files().CopyIn(s.ctx, to, filepath.Base(c.From), st.Mode().Perm(), f)
	return err
}

func (c *cpCmd) out(s *session, client *control.Client, from workspace.FileRef) error {
	r, copied, err := client.Files().CopyOut(s.ctx, from)
	if err != nil {
		return err
	}
	defer r.Close()
	to := c.To
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, path.Base(copied.Path))
	}
	root, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer root.Close()
	// Beside it first, so that a copy that fails leaves what was there.
	part := filepath.Base(to) + ".part"
	out, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, copied.Mode&0o777)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, r)
	if err == nil && n != copied.Bytes {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = errors.Join(giveToCaller(root, part), root.Rename(part, filepath.Base(to)))
	}
	if err != nil {
		root.Remove(part)
	}
	return err
}
