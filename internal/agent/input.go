package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// input is a job's standard input as a pipe, or as a terminal.
type input struct {
	turn     sync.Mutex // one writer at a time, so that texts do not mix
	pipe     *os.File
	terminal bool // it is the keyboard of one
}

// newInput returns an input and the end to give to the command.
func newInput() (*input, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	// The command expects a pipe that blocks.
	if err := unix.SetNonblock(int(r.Fd()), false); err != nil {
		r.Close()
		w.Close()
		return nil, nil, err
	}
	return &input{pipe: w}, r, nil
}

func (in *input) close() { in.pipe.Close() }

// write writes what r holds, for as long as the command takes it and until
// deadline. It returns how much went.
func (in *input) write(r io.Reader, deadline time.Time) (int64, error) {
	in.turn.Lock()
	defer in.turn.Unlock()
	in.pipe.SetWriteDeadline(deadline)
	n, err := io.Copy(struct{ io.Writer }{in.pipe}, r)
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed), in.terminal && errors.Is(err, unix.EIO):
		return n, ErrNoInput
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, nil
	}
	return n, err
}

// inputTime bounds how long a request waits for a command to read.
const inputTime = 10 * time.Second

// maxInput bounds the bytes of one request.
const maxInput = 4 << 20

// inputTaken is the answer to a request that writes to a job.
type inputTaken struct {
	Bytes int64 `json:"bytes"`
}

func (s *Server) serveInput(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	j := s.jobs[r.PathValue("id")]
	s.mu.Unlock()
	switch {
	case j == nil:
		return ErrNoJob
	case j.input == nil:
		return ErrNoInput
	}
	n, err := j.input.write(http.MaxBytesReader(w, r.Body, maxInput), time.Now().Add(inputTime))
	if err != nil {
		return err
	}
	if r.URL.Query().Get("close") == "true" && !j.input.terminal { // whose end is a character, and whose hanging up is SIGHUP
		j.input.close()
	}
	return json.NewEncoder(w).Encode(inputTaken{n})
}

// serveOutput answers with what came after a cursor. Asked to, it waits until
// there is something, or the job has exited.
func (s *Server) serveOutput(w http.ResponseWriter, r *http.Request) error {
	j, err := s.job(r)
	if err != nil {
		return err
	}
	var at [2]int64
	for i, name := range []string{"stdout", "stderr"} {
		if at[i], err = strconv.ParseInt(r.FormValue(name), 10, 64); err != nil {
			return fmt.Errorf("%s %q", name, r.FormValue(name))
		}
	}
	most, err := strconv.Atoi(r.FormValue("max"))
	if err != nil || most < 1 || most > MaxChunk {
		return fmt.Errorf("max %q", r.FormValue("max"))
	}
	timer := time.NewTimer(longPoll)
	defer timer.Stop()
	for {
		// The state first: what an exited job has printed is all there.
		out := Output{State: j.state()}
		var news [2]<-chan struct{}
		out.Stdout, news[0] = j.stdout.since(at[0], most)
		out.Stderr, news[1] = j.stderr.since(at[1], most)
		if r.FormValue("wait") != waitNews || out.State == JobExited || len(out.Stdout.Data)+len(out.Stderr.Data) > 0 {
			return json.NewEncoder(w).Encode(out)
		}
		select {
		case <-news[0]:
		case <-news[1]:
		case <-j.exited:
		case <-timer.C:
			return json.NewEncoder(w).Encode(out)
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}
