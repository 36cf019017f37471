package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"

	"belljar/internal/agent"
)

// Copied describes a file that was copied, in or out.
type Copied struct {
	Path  string      `json:"path"`
	Bytes int64       `json:"bytes"`
	Mode  fs.FileMode `json:"mode"`
}

// CopyOut opens a file of a workspace for reading. The workspace is lent until
// the reader is closed.
func (f *Files) CopyOut(ctx context.Context, ref FileRef) (io.ReadCloser, Copied, error) {
	fail := func(p string, err error) (io.ReadCloser, Copied, error) { return nil, Copied{}, explain(p, err) }
	p, err := absolute(ref.Path)
	if err != nil {
		return fail(p, err)
	}
	lent, err := f.lender.Lend(ctx, ref.Subject, ref.Sandbox)
	if err != nil {
		return fail(p, err)
	}
	r, st, err := lent.Agent().ReadRange(ctx, p, 0, -1)
	if err != nil {
		lent.Release()
		return fail(p, err)
	}
	return &lentReader{r, lent}, Copied{Path: p, Bytes: st.Size, Mode: fs.FileMode(st.Mode).Perm()}, nil
}

// lentReader gives the workspace back when it is closed.
type lentReader struct {
	io.ReadCloser
	lent Lent
}

func (r *lentReader) Close() error {
	defer r.lent.Release()
	return r.ReadCloser.Close()
}

// CopyIn writes what r holds to a file of a workspace, whole or not at all. A
// path that is a directory's gets the file under its name. Mode is for a new
// file; one that is there keeps its own.
func (f *Files) CopyIn(ctx context.Context, ref FileRef, name string, mode fs.FileMode, r io.Reader) (Copied, error) {
	p, err := absolute(ref.Path)
	if err != nil {
		return Copied{}, err
	}
	lent, err := f.lender.Lend(ctx, ref.Subject, ref.Sandbox)
	if err != nil {
		return Copied{}, err
	}
	defer lent.Release()
	put := agent.Put{Path: p}
	st, err := lent.Agent().Stat(ctx, p)
	if err == nil && st.Kind == agent.KindDir {
		put.Path = path.Join(p, path.Base("/"+name))
		_, err = lent.Agent().Stat(ctx, put.Path)
	}
	switch {
	case errors.Is(err, agent.ErrNoFile):
		put.Mode = &mode
	case err != nil:
		return Copied{}, explain(p, err)
	}
	st, err = lent.Agent().PutFile(ctx, put, r)
	if err != nil {
		return Copied{}, explain(put.Path, err)
	}
	return Copied{Path: put.Path, Bytes: st.Size, Mode: fs.FileMode(st.Mode).Perm()}, nil
}
