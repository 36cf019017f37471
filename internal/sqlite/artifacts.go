package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"belljar/internal/artifact"
)

var _ artifact.Index = (*DB)(nil)

const artifactColumns = "token, file, path, bytes, sha256, mime, subject, run, created, expires"

// AddArtifact implements artifact.Index.
func (db *DB) AddArtifact(ctx context.Context, a artifact.Artifact) error {
	_, err := db.w.ExecContext(ctx,
		"INSERT INTO artifacts ("+artifactColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		a.Token, a.File, a.Path, a.Bytes, a.SHA256, a.MIME, a.Subject, a.Run,
		a.Created.UnixMilli(), a.Expires.UnixMilli())
	if err != nil {
		return fmt.Errorf("adding artifact: %w", err)
	}
	return nil
}

// Artifact implements artifact.Index.
func (db *DB) Artifact(ctx context.Context, token string) (artifact.Artifact, error) {
	a, err := scanArtifact(db.r.QueryRowContext(ctx,
		"SELECT "+artifactColumns+" FROM artifacts WHERE token = ?", token))
	if errors.Is(err, sql.ErrNoRows) {
		return artifact.Artifact{}, artifact.ErrNotFound
	}
	if err != nil {
		return artifact.Artifact{}, fmt.Errorf("reading artifact: %w", err)
	}
	return a, nil
}

// DeleteArtifact implements artifact.Index.
func (db *DB) DeleteArtifact(ctx context.Context, token string) error {
	if _, err := db.w.ExecContext(ctx, "DELETE FROM artifacts WHERE token = ?", token); err != nil {
		return fmt.Errorf("deleting artifact: %w", err)
	}
	return nil
}

// Artifacts implements artifact.Index.
func (db *DB) Artifacts(ctx context.Context) ([]artifact.Artifact, error) {
	rows, err := db.r.QueryContext(ctx,
		"SELECT "+artifactColumns+" FROM artifacts ORDER BY created, token")
	if err != nil {
		return nil, fmt.Errorf("listing artifacts: %w", err)
	}
	defer rows.Close()
	var all []artifact.Artifact
	for rows.Next() {
		a, err := scanArtifact(rows)
		if err != nil {
			return nil, fmt.Errorf("listing artifacts: %w", err)
		}
		all = append(all, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("listing artifacts: %w", err)
	}
	return all, nil
}

// ArtifactBytes implements artifact.Index.
func (db *DB) ArtifactBytes(ctx context.Context) (int64, error) {
	var sum int64
	err := db.r.QueryRowContext(ctx, "SELECT COALESCE(SUM(bytes), 0) FROM artifacts").Scan(&sum)
	if err != nil {
		return 0, fmt.Errorf("summing artifacts: %w", err)
	}
	return sum, nil
}

// scanArtifact reads artifactColumns from a row.
func scanArtifact(row interface{ Scan(...any) error }) (artifact.Artifact, error) {
	var a artifact.Artifact
	var created, expires int64
	err := row.Scan(&a.Token, &a.File, &a.Path, &a.Bytes, &a.SHA256, &a.MIME, &a.Subject, &a.Run, &created, &expires)
	a.Created, a.Expires = time.UnixMilli(created).UTC(), time.UnixMilli(expires).UTC()
	return a, err
}
