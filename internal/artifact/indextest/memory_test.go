package indextest_test

import (
	"testing"

	"belljar/internal/artifact"
	"belljar/internal/artifact/indextest"
)

func TestMemory(t *testing.T) {
	indextest.Run(t, func(*testing.T) artifact.Index { return indextest.NewMemory() })
}

func TestMemoryLinks(t *testing.T) {
	indextest.RunLinks(t, func(*testing.T) artifact.LinkStore { return indextest.NewMemoryLinks() })
}
