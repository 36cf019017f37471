package jobtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"belljar/internal/job"
)

// Memory is a store that ends with its process. Its zero value is empty.
type Memory struct {
	mu   sync.Mutex
	jobs []job.Record // the oldest first
}

var _ job.Store = (*Memory)(nil)

// AddJob implements job.Store.
func (m *Memory) AddJob(_ context.Context, r job.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.find(r.ID) != nil {
		return fmt.Errorf("job %s exists", r.ID)
	}
	m.jobs = append(m.jobs, r)
	slices.SortStableFunc(m.jobs, func(a, b job.Record) int { return a.Begun.Compare(b.Begun) })
	return nil
}

func (m *Memory) find(id string) *job.Record {
	for i := range m.jobs {
		if m.jobs[i].ID == id {
			return &m.jobs[i]
		}
	}
	return nil
}

// EndJob implements job.Store.
func (m *Memory) EndJob(_ context.Context, id string, ended time.Time, outcome json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.find(id); r != nil && r.Ended.IsZero() {
		r.Ended, r.Outcome = ended, outcome
	}
	return nil
}

// Job implements job.Store.
func (m *Memory) Job(_ context.Context, id string) (job.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.find(id); r != nil {
		return *r, nil
	}
	return job.Record{}, job.ErrNotFound
}

// Jobs implements job.Store.
func (m *Memory) Jobs(_ context.Context, subject string, max int) ([]job.Record, error) {
	return m.filter(func(r job.Record) bool { return r.Subject == subject }, true, max), nil
}

// RunningJobs implements job.Store.
func (m *Memory) RunningJobs(context.Context) ([]job.Record, error) {
	return m.filter(func(r job.Record) bool { return r.Ended.IsZero() }, false, len(m.jobs)), nil
}

func (m *Memory) filter(keep func(job.Record) bool, newest bool, max int) []job.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []job.Record
	for _, r := range m.jobs {
		if keep(r) {
			r.Outcome = nil
			all = append(all, r)
		}
	}
	if newest {
		slices.Reverse(all)
	}
	return all[:min(len(all), max)]
}

// ForgetJobs implements job.Store.
func (m *Memory) ForgetJobs(_ context.Context, before time.Time) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.jobs)
	m.jobs = slices.DeleteFunc(m.jobs, func(r job.Record) bool { return !r.Ended.IsZero() && r.Ended.Before(before) })
	return n - len(m.jobs), nil
}
