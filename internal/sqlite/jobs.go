package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"belljar/internal/job"
)

var _ job.Store = (*DB)(nil)

const jobColumns = "id, subject, kind, sandbox, name, title, interactive, begun, timeout, ended"

// AddJob implements job.Store.
func (db *DB) AddJob(ctx context.Context, r job.Record) error {
	_, err := db.w.ExecContext(ctx, "INSERT INTO jobs ("+jobColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
		r.ID, r.Subject, r.Kind, r.Sandbox, r.Name, r.Title, r.Interactive, r.Begun.UnixMilli(), r.Timeout.Milliseconds())
	if err != nil {
		return fmt.Errorf("adding job: %w", err)
	}
	return nil
}

// EndJob implements job.Store.
func (db *DB) EndJob(ctx context.Context, id string, ended time.Time, outcome json.RawMessage) error {
	_, err := db.w.ExecContext(ctx, "UPDATE jobs SET ended = ?, outcome = ? WHERE id = ? AND ended IS NULL",
		ended.UnixMilli(), []byte(outcome), id)
	if err != nil {
		return fmt.Errorf("ending job: %w", err)
	}
	return nil
}

// Job implements job.Store.
func (db *DB) Job(ctx context.Context, id string) (job.Record, error) {
	var outcome []byte
	r, err := scanJob(db.r.QueryRowContext(ctx, "SELECT "+jobColumns+", outcome FROM jobs WHERE id = ?", id), &outcome)
	if errors.Is(err, sql.ErrNoRows) {
		return job.Record{}, job.ErrNotFound
	}
	if err != nil {
		return job.Record{}, fmt.Errorf("reading job: %w", err)
	}
	r.Outcome = outcome
	return r, nil
}

// Jobs implements job.Store.
func (db *DB) Jobs(ctx context.Context, subject string, max int) ([]job.Record, error) {
	return db.jobs(ctx, "WHERE subject = ? ORDER BY begun DESC, id DESC LIMIT ?", subject, max)
}

// RunningJobs implements job.Store.
func (db *DB) RunningJobs(ctx context.Context) ([]job.Record, error) {
	return db.jobs(ctx, "WHERE ended IS NULL ORDER BY begun, id")
}

func (db *DB) jobs(ctx context.Context, where string, args ...any) ([]job.Record, error) {
	rows, err := db.r.QueryContext(ctx, "SELECT "+jobColumns+" FROM jobs "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("listing jobs: %w", err)
	}
	defer rows.Close()
	var all []job.Record
	for rows.Next() {
		r, err := scanJob(rows)
		if err != nil {
			return nil, fmt.Errorf("listing jobs: %w", err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("listing jobs: %w", err)
	}
	return all, nil
}

// ForgetJobs implements job.Store.
func (db *DB) ForgetJobs(ctx context.Context, before time.Time) (int, error) {
	res, err := db.w.ExecContext(ctx, "DELETE FROM jobs WHERE ended < ?", before.UnixMilli())
	if err != nil {
		return 0, fmt.Errorf("forgetting jobs: %w", err)
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// scanJob reads jobColumns, and what follows them, from a row.
func scanJob(row interface{ Scan(...any) error }, more ...any) (job.Record, error) {
	var r job.Record
	var begun, timeout int64
	var ended sql.NullInt64
	err := row.Scan(append([]any{&r.ID, &r.Subject, &r.Kind, &r.Sandbox, &r.Name, &r.Title, &r.Interactive, &begun, &timeout, &ended}, more...)...)
	r.Begun, r.Timeout = time.UnixMilli(begun).UTC(), time.Duration(timeout)*time.Millisecond
	if ended.Valid {
		r.Ended = time.UnixMilli(ended.Int64).UTC()
	}
	return r, err
}
