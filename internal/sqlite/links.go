package sqlite

import (
	"context"
	"fmt"
	"time"

	"belljar/internal/artifact"
)

var _ artifact.LinkStore = (*DB)(nil)

// EndLink implements artifact.LinkStore.
func (db *DB) EndLink(ctx context.Context, id string, expires time.Time) error {
	res, err := db.w.ExecContext(ctx,
		"INSERT INTO ended_links (id, expires) VALUES (?, ?) ON CONFLICT DO NOTHING", id, expires.UnixMilli())
	if err != nil {
		return fmt.Errorf("ending a link: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fmt.Errorf("ending a link: %w", err)
	} else if n == 0 {
		return artifact.ErrLinkEnded
	}
	return nil
}

// LinkEnded implements artifact.LinkStore.
func (db *DB) LinkEnded(ctx context.Context, id string) (bool, error) {
	var ended bool
	err := db.r.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM ended_links WHERE id = ?)", id).Scan(&ended)
	if err != nil {
		return false, fmt.Errorf("looking up a link: %w", err)
	}
	return ended, nil
}

// ReopenLink implements artifact.LinkStore.
func (db *DB) ReopenLink(ctx context.Context, id string) error {
	if _, err := db.w.ExecContext(ctx, "DELETE FROM ended_links WHERE id = ?", id); err != nil {
		return fmt.Errorf("reopening a link: %w", err)
	}
	return nil
}

// ForgetLinks implements artifact.LinkStore.
func (db *DB) ForgetLinks(ctx context.Context, now time.Time) (int, error) {
	res, err := db.w.ExecContext(ctx, "DELETE FROM ended_links WHERE expires < ?", now.UnixMilli())
	if err != nil {
		return 0, fmt.Errorf("forgetting links: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("forgetting links: %w", err)
	}
	return int(n), nil
}
