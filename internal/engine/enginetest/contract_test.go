package enginetest

import (
	"testing"

	"belljar/internal/engine"
)

func TestMemoryContract(t *testing.T) {
	Run(t, func(t *testing.T) *Subject {
		m := NewMemory(t)
		m.SetImages("here")
		s := &Subject{Engine: m, Image: "here", Absent: "absent"}
		s.Reopen = func() engine.Engine {
			s.Engine.Close()
			m = m.Reopen()
			return m
		}
		return s
	})
}
