// Package jobtest is the contract of job.Store in executable form, and a store
// in memory that fulfils it.
package jobtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/job"
)

// Run tests a store. Each call of open must return an empty one.
func Run(t *testing.T, open func(t *testing.T) job.Store) {
	for name, test := range map[string]func(*testing.T, job.Store){
		"a life": testLife, "order": testOrder, "forgetting": testForget,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123e6, time.UTC)

func record(n int) job.Record {
	return job.Record{
		ID: fmt.Sprintf("job-%03d", n), Subject: "owner", Kind: job.Command, Sandbox: "ws-1", Name: "default",
		Title: "sleep 7200", Interactive: n%2 == 1, Begun: noon.Add(time.Duration(n) * time.Second), Timeout: 2 * time.Hour,
	}
}

func add(t *testing.T, s job.Store, records ...job.Record) {
	t.Helper()
	for _, r := range records {
		if err := s.AddJob(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func want(t *testing.T, what string, got []job.Record, err error, want ...job.Record) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func testLife(t *testing.T, s job.Store) {
	ctx, r := t.Context(), record(1)
	if _, err := s.Job(ctx, r.ID); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("before it began: %v, want ErrNotFound", err)
	}
	add(t, s, r)
	if err := s.AddJob(ctx, r); err == nil {
		t.Error("the same identifier was taken twice")
	}
	got, err := s.Job(ctx, r.ID)
	want(t, "while it runs", []job.Record{got}, err, r)
	running, err := s.RunningJobs(ctx)
	want(t, "running", running, err, r)

	r.Ended, r.Outcome = noon.Add(time.Hour), json.RawMessage(`{"command":{"exit_code":3}}`)
	for _, outcome := range []json.RawMessage{r.Outcome, json.RawMessage(`{}`)} {
		if err := s.EndJob(ctx, r.ID, r.Ended, outcome); err != nil {
			t.Fatal(err)
		}
	}
	got, err = s.Job(ctx, r.ID)
	want(t, "at its end", []job.Record{got}, err, r)
	running, err = s.RunningJobs(ctx)
	want(t, "running at its end", running, err)
	if err := s.EndJob(ctx, "nobody", noon, nil); err != nil {
		t.Errorf("ending none: %v", err)
	}
}

func testOrder(t *testing.T, s job.Store) {
	other := record(9)
	other.Subject = "other"
	add(t, s, record(2), record(1), record(3), other)
	got, err := s.Jobs(t.Context(), "owner", 2)
	want(t, "the newest", got, err, record(3), record(2))
	got, err = s.RunningJobs(t.Context())
	want(t, "all that run", got, err, record(1), record(2), record(3), other)
	got, err = s.Jobs(t.Context(), "nobody", 2)
	want(t, "of nobody", got, err)
}

func testForget(t *testing.T, s job.Store) {
	ctx := t.Context()
	add(t, s, record(1), record(2), record(3))
	for n, ended := range map[string]time.Time{"job-001": noon.Add(time.Minute), "job-002": noon.Add(time.Hour)} {
		if err := s.EndJob(ctx, n, ended, json.RawMessage(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.ForgetJobs(ctx, noon.Add(time.Hour)); err != nil || n != 1 {
		t.Errorf("forgot %d, %v, want 1", n, err)
	}
	if _, err := s.Job(ctx, "job-001"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the forgotten one: %v, want ErrNotFound", err)
	}
	got, err := s.RunningJobs(ctx)
	want(t, "running", got, err, record(3))
}
