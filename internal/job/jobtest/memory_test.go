package jobtest

import (
	"testing"

	"belljar/internal/job"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) job.Store { return &Memory{} })
}
