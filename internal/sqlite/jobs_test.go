package sqlite

import (
	"path/filepath"
	"testing"

	"belljar/internal/job"
	"belljar/internal/job/jobtest"
)

func TestJobs(t *testing.T) {
	jobtest.Run(t, func(t *testing.T) job.Store {
		db, err := Open(t.Context(), filepath.Join(t.TempDir(), "db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	})
}
