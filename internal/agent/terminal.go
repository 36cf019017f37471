package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Size is that of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// openTerminal makes a terminal and returns the agent's end of it and the
// command's.
func openTerminal(dev string, size Size) (ours, theirs *os.File, err error) {
	fd, err := unix.Open(dev+"/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), resize(ours, size))
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("%s/pts/%d", dev, n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	return ours, theirs, nil
}

func resize(terminal *os.File, size Size) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	return errors.Join(err, set)
}

// duplicate returns another descriptor of a file, which is awaited without a
// thread as well.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copied int
	var dup error
	err = raw.Control(func(fd uintptr) { copied, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, dup); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), f.Name()), nil
}

func (s *Server) serveResize(w http.ResponseWriter, r *http.Request) error {
	j, err := s.job(r)
	if err != nil {
		return err
	}
	if j.input == nil || !j.input.terminal {
		return errors.New("the job has no terminal")
	}
	rows, rowsErr := strconv.ParseUint(r.FormValue("rows"), 10, 16)
	cols, colsErr := strconv.ParseUint(r.FormValue("cols"), 10, 16)
	if err := errors.Join(rowsErr, colsErr); err != nil {
		return err
	}
	err = resize(j.input.pipe, Size{uint16(rows), uint16(cols)})
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EIO) {
		return nil // the job has just ended
	}
	return err
}

// ResizeJob gives a job's terminal another size.
func (c *Client) ResizeJob(ctx context.Context, id string, size Size) error {
	if err := checkJobID(id); err != nil {
		return err
	}
	query := url.Values{"rows": {strconv.Itoa(int(size.Rows))}, "cols": {strconv.Itoa(int(size.Cols))}}
	if err := c.call(ctx, "POST", "jobs/"+id+"/resize", query, nil, maxHeader, nil); err != nil {
		return fmt.Errorf("resizing the terminal of job %s: %w", id, err)
	}
	return nil
}
