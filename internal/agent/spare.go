package agent

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// supervisor is a helper process that runs a job's command, or waits for one.
type supervisor struct {
	child   *child
	control *os.File
}

// startSupervisor starts one that waits for its order.
func (s *Server) startSupervisor() (*supervisor, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(fds[0], true) // to be awaited without a thread
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer null.Close()
	child, err := s.children.start([]string{superviseName}, null, null, null, theirs)
	if err != nil {
		ours.Close()
		return nil, err
	}
	return &supervisor{child, ours}, nil
}

// supervisor returns one that has the command's files, and only waits for the
// order: the spare one, if there is one and it lives.
func (s *Server) supervisor(files ...*os.File) (*supervisor, error) {
	if sup := s.spare; sup != nil {
		s.spare = nil
		if sendFiles(sup.control, files) == nil {
			return sup, nil
		}
		sup.control.Close() // somebody has killed it
	}
	sup, err := s.startSupervisor()
	if err != nil {
		return nil, err
	}
	if err := sendFiles(sup.control, files); err != nil {
		sup.control.Close() // which ends it
		return nil, err
	}
	return sup, nil
}

// spareDelay is how long the next supervisor waits for a short command to end
// before it takes processor time beside it.
const spareDelay = 50 * time.Millisecond

func (s *Server) keepSpareAfter(j *job) {
	timer := time.NewTimer(spareDelay)
	defer timer.Stop()
	select {
	case <-j.exited:
	case <-timer.C:
	}
	s.keepSpare()
}

// keepSpare sees to it that the next job finds its supervisor started: that
// takes longer than many commands do.
func (s *Server) keepSpare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opts.Spare || s.closed || s.spare != nil {
		return
	}
	// Without one, the next job starts its own, and says why it cannot.
	s.spare, _ = s.startSupervisor()
}

// dropSpare ends the spare supervisor. The caller holds s.mu.
func (s *Server) dropSpare() {
	if s.spare != nil {
		s.spare.control.Close()
		s.spare = nil
	}
}
