package agent

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openStreams returns the command's descriptors 0 to 2, and gives the job the
// other ends. Also when it fails, what it returns is open, and so is what the
// job has.
func (s *Server) openStreams(spec JobSpec, j *job) (files []*os.File, err error) {
	if spec.Terminal != nil {
		return s.openTerminalStreams(spec, j)
	}
	stdin, err := s.openStdin(spec, j)
	if err != nil {
		return nil, err
	}
	files = append(files, stdin)
	for _, o := range []**output{&j.stdout, &j.stderr} {
		var end *os.File
		if *o, end, err = newOutput(spec.Keep); err != nil {
			return files, err
		}
		files = append(files, end)
	}
	return files, nil
}

// openTerminalStreams makes the terminal of a job. What it prints is stdout;
// stderr is empty from the start.
func (s *Server) openTerminalStreams(spec JobSpec, j *job) (files []*os.File, err error) {
	ours, theirs, err := openTerminal(s.opts.Dev, *spec.Terminal)
	if err != nil {
		return nil, err
	}
	files = []*os.File{theirs, theirs, theirs}
	j.stdout = outputOf(ours, spec.Keep)
	var end *os.File
	if j.stderr, end, err = newOutput(spec.Keep); err != nil {
		return files, err
	}
	end.Close()
	keyboard, err := duplicate(ours)
	if err != nil {
		return files, err
	}
	j.input = &input{pipe: keyboard, terminal: true}
	return files, nil
}

// ends are what openStreams has given the job.
func (j *job) ends() []io.Closer {
	var all []io.Closer
	for _, o := range []*output{j.stdout, j.stderr} {
		if o != nil {
			all = append(all, o.pipe)
		}
	}
	if j.input != nil {
		all = append(all, j.input.pipe)
	}
	return all
}

// openStdin returns what the command reads from; of a pipe, the job has the
// other end.
func (s *Server) openStdin(spec JobSpec, j *job) (f *os.File, err error) {
	switch {
	case spec.Input:
		j.input, f, err = newInput()
		return f, err
	case spec.Stdin == "":
		return os.Open(os.DevNull)
	}
	f, _, err = s.openRegular(spec.Stdin)
	if err == nil {
		err = unix.SetNonblock(int(f.Fd()), false)
	}
	return f, err
}
