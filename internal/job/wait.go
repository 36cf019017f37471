package job

import (
	"context"
	"fmt"
	"strings"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/sandbox"
)

// Wait says how long a call waits for a job, and what it is told meanwhile.
type Wait struct {
	// For is the longest wait; 0 does not wait.
	For time.Duration
	// Every is the time between two notices, which Tell gets; none if Tell is
	// nil.
	Every time.Duration
	Tell  func(Progress)
}

// Progress is told to who waits for a job.
type Progress struct {
	Elapsed time.Duration
	Limit   time.Duration // the job's timeout; 0 if it is not known here
	Line    string        // the last line of its output, "" if there is none
}

// peekTime bounds a look at the output of a job that goes on.
const peekTime = 5 * time.Second

// wait waits for a job. It is no error if the job goes on.
func (d *Desk) wait(ctx context.Context, j *live, w Wait) (Reply, error) {
	timer := time.NewTimer(w.For)
	defer timer.Stop()
	var draining <-chan struct{} = d.draining
	if j.Kind == Script {
		draining = nil // it does not go on without this process
	}
	var tick <-chan time.Time
	if w.Tell != nil && w.Every > 0 {
		ticker := time.NewTicker(w.Every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-j.done:
			return j.reply()
		case <-ctx.Done():
			return Reply{}, fmt.Errorf("waiting for a job: %w", context.Cause(ctx))
		case <-timer.C:
			return d.goesOn(ctx, j), nil
		case <-draining:
			return d.goesOn(ctx, j), nil
		case <-tick:
			w.Tell(d.progress(ctx, j))
		}
	}
}

// reply is that of a job that is over.
func (j *live) reply() (Reply, error) {
	if j.failure != nil {
		return Reply{}, j.failure
	}
	return j.end.reply(j.Record)
}

func (o outcome) reply(r Record) (Reply, error) {
	if o.Refused != "" {
		return Reply{}, refuse("%s", o.Refused)
	}
	return Reply{ID: r.ID, Kind: r.Kind, Status: Exited, Command: o.Command, Script: o.Script}, nil
}

// goesOn is the reply of a job that is not over, with what it has printed.
func (d *Desk) goesOn(ctx context.Context, j *live) Reply {
	r := Reply{ID: j.ID, Kind: j.Kind, Status: Running, Elapsed: d.o.Now().Sub(j.Begun), Interactive: j.Interactive}
	head, tail := d.peek(ctx, j)
	r.Stdout, _ = sandbox.Show(stream(head.Stdout, tail.Stdout), d.o.MaxOutput)
	r.Stderr, _ = sandbox.Show(stream(head.Stderr, tail.Stderr), d.o.MaxOutput)
	return r
}

// peek returns the beginning and the end of what a job has printed. What
// cannot be had is left out: the job is not ended by that.
func (d *Desk) peek(ctx context.Context, j *live) (head, tail agent.Output) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peekTime)
	defer cancel()
	half := max(1, min(d.o.MaxOutput/2, agent.MaxChunk))
	var err error
	if head, err = j.work.output(ctx, agent.Cursor{}, half, false); err == nil {
		at := agent.Cursor{
			Stdout: max(head.Stdout.Next(), head.Stdout.Bytes-int64(half)),
			Stderr: max(head.Stderr.Next(), head.Stderr.Bytes-int64(half)),
		}
		if at != head.Next() || head.Stdout.Next() < head.Stdout.Bytes || head.Stderr.Next() < head.Stderr.Bytes {
			tail, err = j.work.output(ctx, at, half, false)
		}
	}
	if err != nil {
		d.o.Log.Debug("a job's output could not be had", "job", j.ID, "err", err)
	}
	return head, tail
}

// stream puts a stream together from its two ends.
func stream(head, tail agent.Chunk) agent.Stream {
	s := agent.Stream{Head: head.Data, Tail: tail.Data, Bytes: max(head.Bytes, tail.Bytes)}
	if kept := int64(len(s.Head) + len(s.Tail)); len(s.Tail) == 0 || tail.From == head.Next() {
		// Nothing lies between; what came after the look is not part of it.
		s.Bytes = kept
	}
	return s
}

// lastBytes is how much of a job's output is looked at for its last line, and
// lineBytes how much of that line is told.
const (
	lastBytes = 1 << 10
	lineBytes = 200
)

func (d *Desk) progress(ctx context.Context, j *live) Progress {
	p := Progress{Elapsed: d.o.Now().Sub(j.Begun), Limit: j.Timeout}
	ctx, cancel := context.WithTimeout(ctx, peekTime)
	defer cancel()
	// How long the streams are, then their ends.
	now, err := j.work.output(ctx, agent.Cursor{}, 1, false)
	if err != nil {
		return p
	}
	end, err := j.work.output(ctx, agent.Cursor{
		Stdout: max(0, now.Stdout.Bytes-lastBytes), Stderr: max(0, now.Stderr.Bytes-lastBytes),
	}, 2*lastBytes, false)
	if err != nil {
		return p
	}
	if p.Line = lastLine(end.Stdout.Data); p.Line == "" {
		p.Line = lastLine(end.Stderr.Data)
	}
	return p
}

// lastLine is the last line with something in it. A line that a program
// writes over, as progress bars do, counts as several.
func lastLine(data []byte) string {
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); line != "" {
			if len(line) > lineBytes {
				line = strings.ToValidUTF8(line[:lineBytes], "") + "…"
			}
			return strings.Map(func(r rune) rune {
				if r < ' ' || r == 0x7f {
					return ' '
				}
				return r
			}, line)
		}
	}
	return ""
}

// Await waits for a job that was begun before.
func (d *Desk) Await(ctx context.Context, s access.Subject, id string, w Wait) (Reply, error) {
	j, r, err := d.find(ctx, s, id)
	switch {
	case err != nil:
		return Reply{}, err
	case j != nil:
		return d.wait(ctx, j, w)
	}
	return ended(r)
}

// ended is the reply of a job that is known by its record alone.
func ended(r Record) (Reply, error) {
	end, err := r.outcome()
	if err != nil {
		return Reply{}, err
	}
	return end.reply(r)
}
