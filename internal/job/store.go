package job

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Store keeps records of jobs. Times are kept to the millisecond. Its methods
// are safe for concurrent use. Package jobtest has its contract in executable
// form.
type Store interface {
	// AddJob adds a record. It fails if there is one of that identifier.
	AddJob(ctx context.Context, r Record) error
	// EndJob notes how a job ended, once: a later call changes nothing. It is
	// no error if there is no such job.
	EndJob(ctx context.Context, id string, ended time.Time, outcome json.RawMessage) error
	// Job returns a record, or ErrNotFound.
	Job(ctx context.Context, id string) (Record, error)
	// Jobs returns the newest records of a subject, at most max, the newest
	// first, without their outcomes.
	Jobs(ctx context.Context, subject string, max int) ([]Record, error)
	// RunningJobs returns every record without an end, the oldest first.
	RunningJobs(ctx context.Context) ([]Record, error)
	// ForgetJobs deletes the records of jobs that ended before a time, and
	// returns how many those were.
	ForgetJobs(ctx context.Context, before time.Time) (int, error)
}

// ErrNotFound says that there is no such job.
var ErrNotFound = errors.New("no such job")
