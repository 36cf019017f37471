package agent

import (
	"errors"
	"os"
)

// A sole job has its sandbox to itself: whatever runs there and belongs to no
// other job belongs to it, so process 1 needs no supervisor to tell what does.
// Starting one would take a tenth of the time of a short script.

var errSole = errors.New("another job has the sandbox to itself")

// soleRuns is whether a sole job runs. The caller holds s.mu.
func (s *Server) soleRuns() bool {
	for j := range s.live {
		if j.supervisor == nil {
			return true
		}
	}
	return false
}

// runSole starts the command of a sole job, and returns what a supervisor would
// report of it.
func (s *Server) runSole(o order, files ...*os.File) <-chan report {
	reports := make(chan report, 2)
	command, failure := s.children.startCommand(o, files...)
	if failure != nil {
		reports <- report{Exit: failure}
		return reports
	}
	reports <- report{PID: command.pid}
	s.work.Go(func() {
		<-command.done
		reports <- report{Exit: ending(command.status)}
	})
	return reports
}
