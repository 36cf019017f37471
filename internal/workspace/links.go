package workspace

import (
	"context"
	"errors"
	"io"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/engine"
)

// Bounds on an agent that stands still.
const (
	statTime  = 30 * time.Second
	stallTime = time.Minute // without a byte while one is waited for
)

// Linked returns the workspaces of a lender as links lead into them.
func Linked(l Lender) artifact.Workspaces { return linked{l} }

type linked struct{ lender Lender }

// Running implements artifact.Workspaces.
func (l linked) Running(id string) bool { return l.lender.Running(id) }

// Open implements artifact.Workspaces.
func (l linked) Open(ctx context.Context, id string) (artifact.Workspace, error) {
	lent, err := l.lender.LendID(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, artifact.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return linkedOne{lent}, nil
}

type linkedOne struct{ Lent }

// Close implements artifact.Workspace.
func (w linkedOne) Close() { w.Release() }

// Stat implements artifact.Workspace.
func (w linkedOne) Stat(ctx context.Context, path string) (artifact.LiveFile, error) {
	ctx, cancel := context.WithTimeout(ctx, statTime)
	defer cancel()
	st, err := w.Agent().Stat(ctx, path)
	return live(st), missing(err)
}

// Read implements artifact.Workspace.
func (w linkedOne) Read(ctx context.Context, path string, offset, length int64) (io.ReadCloser, artifact.LiveFile, error) {
	ctx, watch := newWatch(ctx)
	body, st, err := w.Agent().ReadRange(ctx, path, offset, length)
	if err != nil {
		watch.end()
		return nil, artifact.LiveFile{}, missing(err)
	}
	watch.pause()
	return &watchedBody{body, watch}, live(st), nil
}

// Archive implements artifact.Workspace.
func (w linkedOne) Archive(ctx context.Context, path, format string) (io.ReadCloser, error) {
	ctx, watch := newWatch(ctx)
	body, err := w.Agent().Archive(ctx, path, agent.Format(format))
	if err != nil {
		watch.end()
		return nil, missing(err)
	}
	watch.pause()
	return &watchedBody{body, watch}, nil
}

// Write implements artifact.Workspace.
func (w linkedOne) Write(ctx context.Context, path string, r io.Reader) error {
	ctx, watch := newWatch(ctx)
	defer watch.end()
	_, err := w.Agent().PutFile(ctx, agent.Put{Path: path}, &watchedSource{r, watch})
	var refused *agent.RemoteError
	if errors.As(err, &refused) || errors.Is(err, agent.ErrIsDir) || errors.Is(err, agent.ErrNotDir) {
		return errors.Join(artifact.ErrRefused, err)
	}
	return err
}

func live(st agent.FileStat) artifact.LiveFile {
	return artifact.LiveFile{
		Dir: st.Kind == agent.KindDir, Regular: st.Kind == agent.KindFile, Size: st.Size, ModTime: st.ModTime,
		Identity: st.Identity, Version: st.Version,
	}
}

// missing makes the agent's errors those of artifact.Workspace.
func missing(err error) error {
	if errors.Is(err, agent.ErrNoFile) || errors.Is(err, agent.ErrIsDir) || errors.Is(err, agent.ErrNotDir) {
		return errors.Join(artifact.ErrNotFound, err)
	}
	return err
}

// watch ends a context when an agent is waited for too long. Time in which the
// other side, a slow client, is waited for does not count.
type watch struct {
	timer  *time.Timer
	cancel context.CancelFunc
}

func newWatch(ctx context.Context) (context.Context, *watch) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &watch{time.AfterFunc(stallTime, cancel), cancel}
}

func (w *watch) pause()  { w.timer.Stop() }
func (w *watch) resume() { w.timer.Reset(stallTime) }
func (w *watch) end()    { w.timer.Stop(); w.cancel() }

// watchedBody is read from an agent.
type watchedBody struct {
	io.ReadCloser
	watch *watch
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.resume()
	defer b.watch.pause()
	return b.ReadCloser.Read(p)
}

func (b *watchedBody) Close() error {
	b.watch.end()
	return b.ReadCloser.Close()
}

// watchedSource is sent to an agent, which is waited for between its reads.
type watchedSource struct {
	io.Reader
	watch *watch
}

func (s *watchedSource) Read(p []byte) (int, error) {
	s.watch.pause()
	defer s.watch.resume()
	return s.Reader.Read(p)
}
