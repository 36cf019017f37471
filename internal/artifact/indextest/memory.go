package indextest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"belljar/internal/artifact"
)

// Memory is an artifact.Index that forgets everything with its process.
type Memory struct {
	mu   sync.Mutex
	rows map[string]artifact.Artifact
}

// NewMemory returns an empty index.
func NewMemory() *Memory {
	return &Memory{rows: map[string]artifact.Artifact{}}
}

// AddArtifact adds a row.
func (m *Memory) AddArtifact(ctx context.Context, a artifact.Artifact) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.rows[a.Token]; ok {
		return errors.New("adding artifact: there is one with its token")
	}
	m.rows[a.Token] = a
	return nil
}

// Artifact returns the row of a token.
func (m *Memory) Artifact(ctx context.Context, token string) (artifact.Artifact, error) {
	if err := ctx.Err(); err != nil {
		return artifact.Artifact{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.rows[token]
	if !ok {
		return artifact.Artifact{}, artifact.ErrNotFound
	}
	return a, nil
}

// DeleteArtifact deletes the row of a token.
func (m *Memory) DeleteArtifact(ctx context.Context, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rows, token)
	return nil
}

// Artifacts returns all rows, oldest first.
func (m *Memory) Artifacts(ctx context.Context) ([]artifact.Artifact, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.rows), func(a, b artifact.Artifact) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Token, b.Token))
	}), nil
}

// ArtifactBytes returns the sum of all sizes.
func (m *Memory) ArtifactBytes(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum int64
	for _, a := range m.rows {
		sum += a.Bytes
	}
	return sum, nil
}
