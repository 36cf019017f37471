package sqlite

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

func openTest(t *testing.T, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestArtifactIndex(t *testing.T) {
	indextest.Run(t, func(t *testing.T) artifact.Index {
		return openTest(t, filepath.Join(t.TempDir(), "belljar.db"))
	})
}

// TestPragmas reads the settings back from both kinds of connection.
func TestPragmas(t *testing.T) {
	db := openTest(t, filepath.Join(t.TempDir(), "belljar.db"))
	for name, conn := range map[string]*sql.DB{"writer": db.w, "reader": db.r} {
		for pragma, want := range map[string]string{
			"journal_mode": "wal", "busy_timeout": "5000", "foreign_keys": "1", "synchronous": "1",
			"query_only": map[string]string{"writer": "0", "reader": "1"}[name],
		} {
			var got string
			if err := conn.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s = %q, %v; want %q", name, pragma, got, err, want)
			}
		}
	}
}

// TestReopen finds rows again, in a path that must be escaped for the driver.
func TestReopen(t *testing.T) {
	t.Chdir(t.TempDir())
	path := "state?mode=memory&x=1#y %41.db"
	a := artifact.Artifact{Token: "t", File: "f", Bytes: 7, Created: time.UnixMilli(1).UTC(), Expires: time.UnixMilli(2).UTC()}
	db := openTest(t, path)
	if err := db.AddArtifact(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := openTest(t, path).Artifact(t.Context(), "t"); err != nil || got != a {
		t.Errorf("after opening again: %v, %v", got, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestFileMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "belljar.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil { // made too open by somebody
		t.Fatal(err)
	}
	db := openTest(t, path)
	if err := db.AddArtifact(t.Context(), artifact.Artifact{Token: "t"}); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %o", filepath.Base(path+suffix), got)
		}
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "belljar.db")
	db := openTest(t, path)
	if _, err := db.w.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path)
	if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), path) {
		t.Errorf("Open = %v", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the refused database has changed, %v", err)
	}
}

func TestNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thesis.tex")
	text := []byte(strings.Repeat("not a database\n", 100))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("Open = %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
		t.Errorf("the file has changed, %v", err)
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "missing", "belljar.db")); err == nil {
		t.Error("Open made a directory")
	}
}

// TestMigrate upgrades step by step, and a step that fails leaves the version
// before it.
func TestMigrate(t *testing.T) {
	db := openTest(t, filepath.Join(t.TempDir(), "belljar.db"))
	files := fstest.MapFS{}
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := migrations.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	state := func() (version, tables int) {
		row := db.r.QueryRow("SELECT (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema WHERE type = 'table')")
		if err := row.Scan(&version, &tables); err != nil {
			t.Fatal(err)
		}
		return version, tables
	}
	first, tables := state()
	step := func(number int, text string) error {
		files[fmt.Sprintf("migrations/%04d_more.sql", first+number)] = &fstest.MapFile{Data: []byte(text)}
		return migrate(t.Context(), db.w, files)
	}
	want := func(after string, version, more int) {
		t.Helper()
		if v, n := state(); v != first+version || n != tables+more {
			t.Errorf("after %s: version %d and %d tables, want %d and %d", after, v, n, first+version, tables+more)
		}
	}
	if err := step(1, "CREATE TABLE b (x) STRICT; oops"); err == nil {
		t.Error("a broken migration passed")
	}
	want("a broken migration", 0, 0)
	if err := step(1, "CREATE TABLE b (x TEXT) STRICT; CREATE TABLE c (x TEXT) STRICT;"); err != nil {
		t.Error(err)
	}
	if err := step(2, "INSERT INTO b VALUES ('1'); DROP TABLE c;"); err != nil {
		t.Error(err)
	}
	want("two migrations", 2, 1)
	if err := step(4, "SELECT 1"); err == nil {
		t.Error("a gap in the numbers passed")
	}
}
