package job

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/sandbox"
)

// Output returns what a job has printed after a cursor, from the beginning if
// since is "". It waits up to w for something new if there is nothing and
// the job goes on.
func (d *Desk) Output(ctx context.Context, s access.Subject, id, since string, w time.Duration) (Output, error) {
	at, err := readCursor(since)
	if err != nil {
		return Output{}, err
	}
	j, r, err := d.find(ctx, s, id)
	if err != nil {
		return Output{}, err
	}
	out, err := d.read(ctx, j, r, at, max(1, min(d.o.MaxOutput, agent.MaxChunk)), w)
	if err != nil {
		return Output{}, err
	}
	return show(out, at), nil
}

// Read is Output with the bytes as they are, at most max of each stream, which
// is at most agent.MaxChunk.
func (d *Desk) Read(ctx context.Context, s access.Subject, id string, since agent.Cursor, max int, w time.Duration) (agent.Output, error) {
	j, r, err := d.find(ctx, s, id)
	if err != nil {
		return agent.Output{}, err
	}
	return d.read(ctx, j, r, since, max, w)
}

func (d *Desk) read(ctx context.Context, j *live, r Record, at agent.Cursor, most int, w time.Duration) (agent.Output, error) {
	if j == nil {
		return d.readEnded(ctx, r, at, most)
	}
	ctx, cancel := context.WithTimeout(ctx, w+peekTime)
	defer cancel()
	end := time.Now().Add(w)
	for {
		left := time.Until(end)
		asking, stop := context.WithTimeout(ctx, max(left, peekTime))
		out, err := j.work.output(asking, at, most, left > 0)
		stop()
		if err != nil || left <= 0 || out.State == agent.JobExited || len(out.Stdout.Data)+len(out.Stderr.Data) > 0 {
			return out, err
		}
	}
}

// readEnded reads the output of a job that is over: all that its agent has, as
// long as that remembers the job, and otherwise what its result has.
func (d *Desk) readEnded(ctx context.Context, r Record, at agent.Cursor, most int) (agent.Output, error) {
	if r.Kind == Command {
		ctx, cancel := context.WithTimeout(ctx, peekTime)
		defer cancel()
		if out, err := d.command(r).output(ctx, at, most, false); err == nil {
			return out, nil
		}
	}
	reply, err := ended(r)
	if err != nil {
		return agent.Output{}, err
	}
	var stdout, stderr string
	switch {
	case reply.Command != nil:
		stdout, stderr = reply.Command.Stdout, reply.Command.Stderr
	case reply.Script != nil:
		stdout, stderr = reply.Script.Stdout, reply.Script.Stderr
	}
	return agent.Output{State: agent.JobExited, Stdout: storedChunk(stdout, at.Stdout, most), Stderr: storedChunk(stderr, at.Stderr, most)}, nil
}

// storedChunk is a piece of a text that stands for a stream. Where the middle
// was cut, what a cursor of the stream itself points to is near, not exact.
func storedChunk(text string, at int64, most int) agent.Chunk {
	size := int64(len(text))
	c := agent.Chunk{From: min(max(at, 0), size), Bytes: size}
	c.Data = []byte(text[c.From:min(size, c.From+int64(most))])
	return c
}

// show makes text of a piece of output. A character that is not all there yet
// is left for the next piece.
func show(out agent.Output, at agent.Cursor) Output {
	o := Output{Status: Running}
	if out.State == agent.JobExited {
		o.Status = Exited
	}
	next := out.Next()
	for _, s := range []struct {
		chunk agent.Chunk
		since int64
		next  *int64
		to    *string
	}{{out.Stdout, at.Stdout, &next.Stdout, &o.Stdout}, {out.Stderr, at.Stderr, &next.Stderr, &o.Stderr}} {
		o.Missing += max(0, s.chunk.From-s.since)
		data := s.chunk.Data
		if o.Status == Running || *s.next < s.chunk.Bytes {
			whole := len(sandbox.TrimEnd(data))
			if whole == 0 {
				whole = len(data) // a character that is never finished holds up nothing
			}
			*s.next -= int64(len(data) - whole)
			data = data[:whole]
		}
		*s.to = strings.ToValidUTF8(string(data), "\uFFFD")
		o.More = o.More || *s.next < s.chunk.Bytes
	}
	o.Cursor = writeCursor(next)
	return o
}

// A cursor is opaque to callers, so that it can change.
func writeCursor(c agent.Cursor) string {
	data, _ := json.Marshal([]int64{c.Stdout, c.Stderr}) // of numbers
	return base64.RawURLEncoding.EncodeToString(data)
}

func readCursor(text string) (agent.Cursor, error) {
	if text == "" {
		return agent.Cursor{}, nil
	}
	var at []int64
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, &at) != nil || len(at) != 2 || at[0] < 0 || at[1] < 0 {
		return agent.Cursor{}, refuse("since %q is no cursor; give the cursor of an earlier answer, or nothing to read from the beginning", sandbox.Clip(text))
	}
	return agent.Cursor{Stdout: at[0], Stderr: at[1]}, nil
}

// Input writes text to a job's standard input, and closes it behind the text if
// it is the last. It returns how many bytes the job's pipe took.
func (d *Desk) Input(ctx context.Context, s access.Subject, id, text string, last bool) (int64, error) {
	j, r, err := d.find(ctx, s, id)
	switch {
	case err != nil:
		return 0, err
	case j == nil || j.over():
		return 0, refuse("the job is over")
	case r.Kind == Command && !r.Interactive:
		return 0, refuse("the command was begun without an open standard input; begin it with interactive: true")
	case len(text) > maxStdin:
		return 0, refuse("text has %d bytes: at most %d are taken at once", len(text), maxStdin)
	}
	return j.work.input(ctx, text, last)
}

// Resize gives a command's terminal another size. One that has none, or is over,
// is left alone.
func (d *Desk) Resize(ctx context.Context, s access.Subject, id string, size agent.Size) error {
	j, r, err := d.find(ctx, s, id)
	if err != nil || j == nil || r.Kind != Command {
		return err
	}
	lease, err := d.command(r).agent(ctx)
	if err != nil {
		return err
	}
	defer lease.Release()
	return refuseRemote(lease.Agent().ResizeJob(ctx, id, size))
}

// killWait is how long Kill waits for the end of what it ended.
const killWait = 10 * time.Second

// Kill sends a signal to a job, TERM or KILL or any other name; KILL, which ""
// is, ends all that the job has started, also what a command that is over has
// left behind. It returns how the job is afterwards: after a signal that is
// meant to end it, it waits a little.
func (d *Desk) Kill(ctx context.Context, s access.Subject, id, signal string) (Reply, error) {
	sig, err := signalNumber(signal)
	if err != nil {
		return Reply{}, err
	}
	j, r, err := d.find(ctx, s, id)
	if err != nil {
		return Reply{}, err
	}
	if j == nil {
		if r.Kind == Command && sig == syscall.SIGKILL {
			if err := d.command(r).signal(ctx, sig); err != nil {
				d.o.Log.Debug("what a job has left was not ended", "job", id, "err", err)
			}
		}
		return ended(r)
	}
	if err := j.work.signal(ctx, sig); err != nil && !d.endedMeanwhile(ctx, j, err) {
		return Reply{}, err
	}
	w := Wait{For: killWait}
	if !slices.Contains([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}, sig) {
		w.For = 0
	}
	return d.wait(ctx, j, w)
}

// endedMeanwhile is whether a job could not be signalled since it was just
// ending: the answer may have been lost with its sandbox.
func (d *Desk) endedMeanwhile(ctx context.Context, j *live, err error) bool {
	wait := killWait
	if refused := (*sandbox.RequestError)(nil); errors.As(err, &refused) {
		wait = 0 // it was answered, and goes on
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-j.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return j.over()
}

func signalNumber(name string) (syscall.Signal, error) {
	if name == "" {
		return syscall.SIGKILL, nil
	}
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, refuse("signal %q: want a name such as TERM, INT, KILL, STOP or USR1", sandbox.Clip(name))
}
