// Package indextest is the contract of artifact.Index in executable form, and
// an index in memory that fulfils it.
package indextest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/artifact"
)

// Run tests an index. Each call of open must return an empty one.
func Run(t *testing.T, open func(t *testing.T) artifact.Index) {
	tests := map[string]func(*testing.T, artifact.Index){
		"empty":             testEmpty,
		"what goes in":      testRoundTrip,
		"order and sum":     testOrder,
		"same token twice":  testDuplicate,
		"delete":            testDelete,
		"concurrent use":    testConcurrent,
		"cancelled context": testCancelled,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// row returns an artifact whose token is made of n.
func row(n int) artifact.Artifact {
	created := time.Date(2026, 3, 1, 12, 0, 0, 123e6, time.UTC).Add(time.Duration(n) * time.Second)
	return artifact.Artifact{
		Token:   fmt.Sprintf("%043d", n),
		File:    "figure.png",
		Path:    "plots/figure.png",
		Bytes:   int64(n),
		SHA256:  fmt.Sprintf("%064x", n),
		MIME:    "image/png",
		Subject: "owner",
		Run:     "run-1",
		Created: created,
		Expires: created.Add(time.Hour),
	}
}

func add(t *testing.T, ix artifact.Index, rows ...artifact.Artifact) {
	t.Helper()
	for _, a := range rows {
		if err := ix.AddArtifact(t.Context(), a); err != nil {
			t.Fatalf("AddArtifact: %v", err)
		}
	}
}

// want checks all three ways to read against the rows, given oldest first.
func want(t *testing.T, ix artifact.Index, rows ...artifact.Artifact) {
	t.Helper()
	got, err := ix.Artifacts(t.Context())
	if err != nil {
		t.Fatalf("Artifacts: %v", err)
	}
	if diff := cmp.Diff(rows, got); len(rows)+len(got) > 0 && diff != "" {
		t.Errorf("Artifacts (-want +got):\n%s", diff)
	}
	var sum int64
	for _, a := range rows {
		sum += a.Bytes
		one, err := ix.Artifact(t.Context(), a.Token)
		if err != nil {
			t.Errorf("Artifact: %v", err)
		}
		if diff := cmp.Diff(a, one); diff != "" {
			t.Errorf("Artifact (-want +got):\n%s", diff)
		}
	}
	bytes, err := ix.ArtifactBytes(t.Context())
	if err != nil || bytes != sum {
		t.Errorf("ArtifactBytes = %d, %v; want %d", bytes, err, sum)
	}
}

func wantNotFound(t *testing.T, ix artifact.Index, token string) {
	t.Helper()
	if a, err := ix.Artifact(t.Context(), token); !errors.Is(err, artifact.ErrNotFound) {
		t.Errorf("Artifact = %v, %v; want ErrNotFound", a, err)
	}
}

func testEmpty(t *testing.T, ix artifact.Index) {
	want(t, ix)
	wantNotFound(t, ix, row(1).Token)
	wantNotFound(t, ix, "")
}

func testRoundTrip(t *testing.T, ix artifact.Index) {
	odd := row(1)
	odd.Path = "a'b\"c;--\n\t%_/Ωμέγα \u202e.png"
	odd.File = "Ωμέγα _.png"
	odd.Bytes = 1 << 42
	zero := row(2)
	zero.Bytes, zero.Subject, zero.Run = 0, "", ""
	old := row(3)
	old.Created = time.Date(1969, 12, 31, 23, 59, 59, 999e6, time.UTC)
	old.Expires = old.Created.Add(time.Millisecond) // expired ones are returned too
	add(t, ix, odd, zero, old)
	want(t, ix, old, odd, zero)
	wantNotFound(t, ix, "%")
	wantNotFound(t, ix, odd.Token+" ")
}

func testOrder(t *testing.T, ix artifact.Index) {
	add(t, ix, row(3), row(1), row(2))
	want(t, ix, row(1), row(2), row(3))
}

func testDuplicate(t *testing.T, ix artifact.Index) {
	add(t, ix, row(1))
	second := row(1)
	second.Path, second.Bytes = "other", 99
	if err := ix.AddArtifact(t.Context(), second); err == nil {
		t.Error("AddArtifact took a token twice")
	}
	want(t, ix, row(1))
}

func testDelete(t *testing.T, ix artifact.Index) {
	add(t, ix, row(1), row(2))
	for range 2 {
		if err := ix.DeleteArtifact(t.Context(), row(1).Token); err != nil {
			t.Fatalf("DeleteArtifact: %v", err)
		}
		wantNotFound(t, ix, row(1).Token)
		want(t, ix, row(2))
	}
	add(t, ix, row(1)) // a token that is gone may come again
	want(t, ix, row(1), row(2))
}

func testConcurrent(t *testing.T, ix artifact.Index) {
	const workers, each = 8, 10
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				kept, gone := row(1+w*each+i), row(1000+w*each+i)
				for _, err := range []error{
					ix.AddArtifact(t.Context(), kept),
					ix.AddArtifact(t.Context(), gone),
					ix.DeleteArtifact(t.Context(), gone.Token),
				} {
					if err != nil {
						t.Error(err)
					}
				}
				if _, err := ix.Artifacts(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var rows []artifact.Artifact
	for n := range workers * each {
		rows = append(rows, row(n+1))
	}
	want(t, ix, rows...)
}

func testCancelled(t *testing.T, ix artifact.Index) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ix.AddArtifact(ctx, row(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("AddArtifact = %v, want context.Canceled", err)
	}
	if _, err := ix.Artifact(ctx, row(1).Token); !errors.Is(err, context.Canceled) {
		t.Errorf("Artifact = %v, want context.Canceled", err)
	}
	want(t, ix)
}
