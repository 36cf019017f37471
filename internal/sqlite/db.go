// Package sqlite keeps the server's state in one SQLite database, and
// implements the stores that other packages declare: a file per store.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// maxReaders bounds the connections that read at the same time.
const maxReaders = 4

//go:embed migrations/*.sql
var migrations embed.FS

// DB is an open database. It is safe for concurrent use.
type DB struct {
	// w is the one connection that writes. SQLite has one writer at a time;
	// waiting for a turn here is fair and bounded by the caller's context,
	// where waiting for the lock of the file is neither.
	w *sql.DB
	// r reads, beside the writer, thanks to the write-ahead log.
	r *sql.DB
}

// ErrNewer is for a database that a later version of the program has written.
var ErrNewer = errors.New("the database is newer than this program")

// Open opens the database at path, makes it if missing, and brings its schema
// up to date. It fails with ErrNewer, and changes nothing, if the schema is of
// a later version. The file is readable by its owner alone.
func Open(ctx context.Context, path string) (*DB, error) {
	db, err := open(ctx, path)
	if err != nil {
		if code := new(sqlite.Error); errors.As(err, &code) && (code.Code() == sqlite3.SQLITE_NOTADB || code.Code() == sqlite3.SQLITE_CORRUPT) {
			err = fmt.Errorf("%w (move it away to start with an empty one: links given so far are then no longer served)", err)
		}
		return nil, fmt.Errorf("opening database %s: %w", path, err)
	}
	return db, nil
}

func open(ctx context.Context, path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// SQLite gives its log and shared memory the mode of this file.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = errors.Join(file.Chmod(0o600), file.Close())
	if err != nil {
		return nil, err
	}
	db := &DB{}
	if db.w, err = sql.Open("sqlite", dsn(path, "_txlock=immediate")); err != nil {
		return nil, err
	}
	db.w.SetMaxOpenConns(1)
	if db.r, err = sql.Open("sqlite", dsn(path, "_query_only=1")); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.r.SetMaxOpenConns(maxReaders)
	if err := migrate(ctx, db.w, migrations); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// dsn names the database for the driver. synchronous=NORMAL never corrupts a
// database with a write-ahead log; a power cut may undo the last commits, which
// every store must bear anyway.
func dsn(path, extra string) string {
	// The file is there, so mode=rw: one that vanishes is an error, not a new
	// and empty database.
	u := url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw" +
		"&_busy_timeout=5000&_foreign_keys=1&_journal_mode=WAL&_synchronous=NORMAL&" + extra}
	return u.String()
}

// Close closes the database.
func (db *DB) Close() error {
	var err error
	if db.r != nil {
		err = db.r.Close()
	}
	return errors.Join(err, db.w.Close())
}

// migrate runs the migrations that the database has not seen, each in a
// transaction of its own. The number of the last one is its user_version.
func migrate(ctx context.Context, w *sql.DB, files fs.FS) error {
	names, err := fs.Glob(files, "migrations/*.sql") // in order
	if err != nil {
		return err
	}
	var version int
	if err := w.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > len(names) {
		return fmt.Errorf("%w: its schema has version %d, and this program knows %d: run the newer program, or restore a backup from before the upgrade",
			ErrNewer, version, len(names))
	}
	for i, name := range names {
		number, err := strconv.Atoi(strings.SplitN(filepath.Base(name), "_", 2)[0])
		if err != nil || number != i+1 {
			return fmt.Errorf("migration %s should have the number %d", name, i+1)
		}
		if number <= version {
			continue
		}
		if err := apply(ctx, w, files, name, number); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
	}
	return nil
}

func apply(ctx context.Context, w *sql.DB, files fs.FS, name string, version int) error {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	tx, err := w.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, string(text)); err != nil {
		return err
	}
	// A PRAGMA takes no parameters.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
		return err
	}
	return tx.Commit()
}
