package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

func TestLinkStore(t *testing.T) {
	indextest.RunLinks(t, func(t *testing.T) artifact.LinkStore {
		return openTest(t, filepath.Join(t.TempDir(), "belljar.db"))
	})
}

// A used link is still used after a restart.
func TestEndedLinksStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "belljar.db")
	db := openTest(t, path)
	if err := db.EndLink(t.Context(), "a", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if ended, err := openTest(t, path).LinkEnded(t.Context(), "a"); err != nil || !ended {
		t.Errorf("after a restart the link is over: %v, %v", ended, err)
	}
}
