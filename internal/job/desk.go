package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"
)

// Options configure a Desk. Zero fields have the default given.
type Options struct {
	Runs       *sandbox.Manager   // required
	Workspaces *workspace.Manager // required
	Store      Store              // required

	MaxOutput      int           // bytes of text per stream in a reply; 64 KiB
	LogBytes       int64         // of each stream's log file of a command; 16 MiB
	DefaultTimeout time.Duration // of a command; 1 h
	MaxTimeout     time.Duration // 7 days
	// Keep is how long the outcome of a job is kept; 7 days.
	Keep time.Duration

	Log *slog.Logger     // discarded if nil
	Now func() time.Time // time.Now
}

func (o *Options) setDefaults() {
	o.MaxOutput = cmp.Or(o.MaxOutput, 64<<10)
	o.LogBytes = cmp.Or(o.LogBytes, 16<<20)
	o.DefaultTimeout = cmp.Or(o.DefaultTimeout, time.Hour)
	o.MaxTimeout = cmp.Or(o.MaxTimeout, 7*24*time.Hour)
	o.Keep = cmp.Or(o.Keep, 7*24*time.Hour)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// A Desk takes jobs and looks after them. Its methods are safe for concurrent
// use.
type Desk struct {
	o Options

	// base ends when the Desk is closed.
	base context.Context
	halt context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	live   map[string]*live

	// draining is closed when nobody is to wait for what goes on without them.
	draining chan struct{}
	drain    sync.Once
}

// live is a job that goes on.
type live struct {
	Record
	work   work             // set before it is live
	exited *agent.JobStatus // if it was over as soon as it was begun
	notes  []string         // for its result
	done   chan struct{}    // closed when end is set
	// denied is from where on the network's denials are the job's; nil if that
	// is not known. It is set before the job begins.
	denied *uint64

	end     outcome
	ended   time.Time
	failure error // in end's place: why the job was not carried out

	noted     bool // it is on record; guarded by the desk's mu
	cancelled bool // Cancel was called; guarded by the desk's mu
}

// over is whether the job has ended, a moment before it is live no more.
func (j *live) over() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// work is what a live job does in its sandbox.
type work interface {
	output(ctx context.Context, since agent.Cursor, max int, wait bool) (agent.Output, error)
	input(ctx context.Context, text string, last bool) (int64, error)
	signal(ctx context.Context, sig syscall.Signal) error
}

// ErrClosed is for calls after Close.
var ErrClosed = errors.New("the job desk is closed")

// Open takes up the jobs that an earlier process has left. It fails if the
// store cannot be read.
func Open(ctx context.Context, o Options) (*Desk, error) {
	o.setDefaults()
	if o.Runs == nil || o.Workspaces == nil || o.Store == nil {
		return nil, errors.New("opening the job desk: runs, workspaces and a store are needed")
	}
	d := &Desk{o: o, live: map[string]*live{}, draining: make(chan struct{})}
	d.base, d.halt = context.WithCancel(context.Background())
	left, err := o.Store.RunningJobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening the job desk: %w", err)
	}
	for _, r := range left {
		switch r.Kind {
		case Command:
			c := d.command(r)
			c.j.noted = true
			d.live[r.ID] = c.j
			d.follow(c, nil)
		default:
			j := d.newLive(r)
			j.noted = true
			d.finish(j, outcome{Refused: "the server was restarted while the script ran; run it again"}, nil)
		}
	}
	d.work.Go(d.forget)
	return d, nil
}

// Drain answers those who wait for a command that it goes on, also those yet
// to come: the server is about to end, and the command is not.
func (d *Desk) Drain() { d.drain.Do(func() { close(d.draining) }) }

// Close stops looking after jobs. Commands go on, and the next Desk finds them.
// The manager of runs must be closed before, and that of workspaces after it.
func (d *Desk) Close() {
	d.Drain()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.halt()
	d.work.Wait()
}

// forgetEvery is the time between two sweeps of old records.
const forgetEvery = time.Hour

func (d *Desk) forget() {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		if n, err := d.o.Store.ForgetJobs(d.base, d.o.Now().Add(-d.o.Keep)); d.base.Err() == nil && err != nil {
			d.o.Log.Warn("forgetting old jobs failed", "err", err)
		} else if n > 0 {
			d.o.Log.Info("forgot old jobs", "jobs", n)
		}
		select {
		case <-d.base.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *Desk) newLive(r Record) *live { return &live{Record: r, done: make(chan struct{})} }

// newID returns an identifier with 80 random bits: it is no secret, but nobody
// else's is met by chance.
func newID() string { return "job-" + strings.ToLower(rand.Text()[:16]) }

// begin makes a job known.
func (d *Desk) begin(j *live) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	d.live[j.ID] = j
	return nil
}

// finish notes how a job ended and lets those know who wait for it.
func (d *Desk) finish(j *live, end outcome, failure error) {
	d.mu.Lock()
	end.Cancelled = j.cancelled && end.killed()
	j.end, j.ended, j.failure = end, d.o.Now(), failure
	close(j.done)
	noted := j.noted
	d.mu.Unlock()
	if noted {
		d.note(j)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.live, j.ID)
}

// record writes a job down that may have ended already.
func (d *Desk) record(ctx context.Context, j *live) error {
	if err := d.o.Store.AddJob(ctx, j.Record); err != nil {
		return err
	}
	d.mu.Lock()
	j.noted = true
	over := j.over()
	d.mu.Unlock()
	if over {
		d.note(j)
	}
	return nil
}

// note writes down how a job ended.
func (d *Desk) note(j *live) {
	data, err := json.Marshal(j.end)
	if err == nil {
		err = d.o.Store.EndJob(context.Background(), j.ID, j.ended, data)
	}
	if err != nil {
		d.o.Log.Error("noting the end of a job failed", "job", j.ID, "err", err)
	}
}

// find returns a subject's job: as it lives, or else its record. Another's is
// answered as one that does not exist.
func (d *Desk) find(ctx context.Context, s access.Subject, id string) (*live, Record, error) {
	d.mu.Lock()
	j := d.live[id]
	d.mu.Unlock()
	if j != nil && j.Subject == s.ID {
		return j, j.Record, nil
	}
	r, err := d.o.Store.Job(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && r.Subject != s.ID {
		return nil, Record{}, refuse("there is no job %q (any more); job_list tells which there are", sandbox.Clip(id))
	}
	return nil, r, err
}

// listed bounds a list of jobs.
const listed = 50

// List describes a subject's jobs: those that run, and the latest that ended.
func (d *Desk) List(ctx context.Context, s access.Subject) ([]Job, error) {
	records, err := d.o.Store.Jobs(ctx, s.ID, listed)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	list := []Job{}
	for _, r := range records {
		known[r.ID] = true
		list = append(list, d.describe(r))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, j := range d.live {
		if j.Subject == s.ID && !known[id] {
			list = append(list, d.describe(j.Record))
		}
	}
	return list, nil
}

func (d *Desk) describe(r Record) Job {
	j := Job{ID: r.ID, Kind: r.Kind, Status: Running, Title: r.Title, Sandbox: r.Name, Begun: r.Begun}
	end := d.o.Now()
	if !r.Ended.IsZero() {
		j.Status, end = Exited, r.Ended
	}
	j.Seconds = end.Sub(r.Begun).Round(time.Millisecond).Seconds()
	return j
}

func refuse(format string, args ...any) error {
	return &sandbox.RequestError{Message: fmt.Sprintf(format, args...)}
}
