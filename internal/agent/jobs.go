package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// job is a command under a supervisor.
type job struct {
	id             string
	timeout        time.Duration // until the gate opens, if there is one
	gate           *gate         // nil if there is none
	input          *input        // nil if it has none
	stdout, stderr *output
	supervisor     *child        // its end means that nothing of the job is left; nil for a sole one
	control        *os.File      // to the supervisor
	reports        <-chan report // of how the command does; closed without its end if that is lost
	running        chan struct{} // closed when pid is known
	exited         chan struct{}

	mu       sync.Mutex
	started  time.Time
	pid      int  // the command's, 0 until it runs
	killed   bool // by SIGKILL from here
	duration time.Duration
	outcome  *outcome
}

// Bounds on what the agent remembers, for it must stay small next to a
// script that uses all of a sandbox's memory.
const (
	maxLive   = 128      // supervisors at a time
	maxExited = 4096     // exited jobs; the oldest are forgotten
	maxKept   = 64 << 20 // bytes of exited jobs' output; the oldest lose theirs
)

// startJob starts a job unless there is one of that id.
func (s *Server) startJob(spec JobSpec) error {
	if err := spec.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.jobs[spec.ID] != nil:
		return nil
	case len(s.live) >= maxLive:
		return fmt.Errorf("%d jobs have processes running; end some first", maxLive)
	case spec.Sole && s.soleRuns():
		return errSole
	}
	j, err := s.launch(spec)
	if err != nil {
		return err
	}
	s.jobs[spec.ID] = j
	s.live[j] = true
	s.work.Go(j.stdout.read)
	s.work.Go(j.stderr.read)
	if j.gate != nil {
		s.work.Go(j.gate.await)
	}
	s.work.Go(func() { s.follow(j) })
	if j.supervisor != nil && s.opts.Spare {
		s.work.Go(func() { s.keepSpareAfter(j) })
	}
	return nil
}

// launch starts a job's command, by a supervisor unless it is a sole one.
func (s *Server) launch(spec JobSpec) (_ *job, err error) {
	var theirs, ours []io.Closer
	defer func() {
		for _, c := range theirs {
			c.Close()
		}
		if err != nil {
			for _, c := range ours {
				c.Close()
			}
		}
	}()
	j := &job{id: spec.ID, timeout: spec.Timeout, started: time.Now(), running: make(chan struct{}), exited: make(chan struct{})}
	files, err := s.openStreams(spec, j)
	for _, f := range files {
		theirs = append(theirs, f)
	}
	ours = append(ours, j.ends()...)
	if err != nil {
		return nil, err
	}
	for i, o := range []*output{j.stdout, j.stderr} {
		name := filepath.Join(s.opts.LogDir, spec.ID, []string{"stdout", "stderr"}[i])
		o.logName, o.logPath, o.logMax = name, s.path(name), spec.LogBytes
	}
	o := s.order(spec)
	if spec.Gate {
		if j.gate, err = newGate(s.path(filepath.Join(s.opts.LogDir, spec.ID, "gate"))); err != nil {
			return nil, err
		}
		ours = append(ours, j.gate.node)
		o.Env = append(o.Env, GateVariable+"="+j.gate.path)
	}
	if spec.Sole && s.children.init {
		j.reports = s.runSole(o, files...)
		return j, nil
	}
	sup, err := s.supervisor(files...)
	if err != nil {
		return nil, err
	}
	j.supervisor, j.control = sup.child, sup.control
	j.reports = j.converse(o)
	return j, nil
}

// order translates a spec for the supervisor.
func (s *Server) order(spec JobSpec) order {
	o := order{Argv: slices.Clone(spec.Argv), Dir: s.path(Workdir), Env: s.env(spec.Env), Terminal: spec.Terminal != nil}
	if spec.Dir != "" {
		o.Dir = s.path(spec.Dir)
	}
	if s.opts.Root != "" {
		for i, arg := range o.Argv {
			if !filepath.IsAbs(arg) {
				continue
			}
			if _, err := os.Lstat(s.path(arg)); err == nil {
				o.Argv[i] = s.path(arg)
			}
		}
	}
	return o
}

// env is what a job's environment is: what every program may expect, the
// agent's own, which is the image's, and what was asked for.
func (s *Server) env(extra []string) []string {
	values := map[string]string{}
	for _, list := range [][]string{{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + s.path("/root"), "USER=root", "LOGNAME=root", "SHELL=/bin/sh",
		"LANG=C.UTF-8", "TERM=dumb",
	}, s.opts.Env, extra} {
		for _, e := range list {
			if k, v, ok := strings.Cut(e, "="); ok && k != "" {
				values[k] = v
			}
		}
	}
	env := make([]string, 0, len(values))
	for _, k := range slices.Sorted(maps.Keys(values)) {
		env = append(env, k+"="+values[k])
	}
	return env
}

// follow sees a job to its end.
func (s *Server) follow(j *job) {
	timeout := time.NewTimer(j.timeout)
	defer timeout.Stop()
	var passed <-chan time.Duration
	if j.gate != nil {
		passed = j.gate.passed
	}
	var end *outcome
	for end == nil {
		select {
		case r, ok := <-j.reports:
			switch {
			case !ok:
				end = s.lost(j)
			case r.Exit != nil:
				end = r.Exit
			case r.PID > 1 && j.pid == 0: // written by this goroutine only
				j.mu.Lock()
				j.pid = r.PID
				j.mu.Unlock()
				close(j.running)
			}
		case limit := <-passed:
			timeout.Reset(limit)
		case <-timeout.C:
			end = &outcome{Code: 124, timedOut: true}
			if err := s.end(j); err != nil {
				end.Error = err.Error()
			}
		}
	}
	ended := time.Now()
	j.stdout.settle()
	j.stderr.settle()
	j.mu.Lock()
	j.duration, j.outcome = ended.Sub(j.started), end
	j.mu.Unlock()
	close(j.exited)
	if j.gate != nil {
		j.gate.close()
	}
	if j.input != nil {
		j.input.close()
	}
	s.retain(j)

	if j.supervisor != nil {
		<-j.supervisor.done
		j.control.Close()
	}
	s.mu.Lock()
	delete(s.live, j)
	s.mu.Unlock()
}

// converse gives the supervisor its order and returns what it reports. The
// channel closes when the supervisor has no more to say.
func (j *job) converse(o order) <-chan report {
	reports := make(chan report, 2)
	go func() {
		defer close(reports)
		if json.NewEncoder(j.control).Encode(o) != nil {
			return
		}
		dec := json.NewDecoder(io.LimitReader(j.control, 64<<10))
		for range cap(reports) {
			var r report
			if dec.Decode(&r) != nil {
				return
			}
			reports <- r
		}
	}()
	return reports
}

// lost is for a supervisor that ended without saying how its command did. The
// command cannot be watched any more, so it ends as well. As process 1 the
// agent finds all that it started; elsewhere, what the command's session tells
// if the supervisor lived long enough to name it.
func (s *Server) lost(j *job) *outcome {
	s.children.kill(j.supervisor)
	<-j.supervisor.done
	j.mu.Lock()
	pid, killed := j.pid, j.killed
	j.mu.Unlock()
	end := &outcome{Code: 137, Signal: int(syscall.SIGKILL)}
	if killed {
		return end
	}
	end.Error = "the process that watched over the job ended: " + describe(j.supervisor.status)
	var err error
	if s.children.init {
		err = s.endStrays()
	} else if pid != 0 {
		err = endAll(0, func() (bool, error) { return endRound(session(pid)) })
	}
	if err != nil {
		end.Error += "; " + err.Error()
	}
	return end
}

// endStrays kills, as process 1, what belongs to no supervisor: all of a sole
// job, and what has come here from supervisors that are no more.
func (s *Server) endStrays() error {
	strays := func(all []proc) []proc { return below(1, s.children.helpers())(all) }
	return endAll(1, func() (bool, error) { return endRound(strays) })
}

// end kills everything that a job started and returns when it is gone.
func (s *Server) end(j *job) error {
	s.mu.Lock()
	alone := s.children.init && (len(s.live) == 1 && s.live[j] || len(s.live) == 0 && j.supervisor == nil)
	if alone {
		// Nobody else is here, and nothing outruns this one.
		syscall.Kill(-1, syscall.SIGKILL)
	}
	s.mu.Unlock()
	if j.supervisor == nil {
		return s.endStrays()
	}
	if alone {
		<-j.supervisor.done
		return s.endStrays()
	}
	every := 0
	if s.children.init {
		every = chaseRounds
	}
	return endAll(every, func() (gone bool, err error) {
		// The supervisor ends with the last of its descendants.
		gone = !s.children.hold(j.supervisor, func() { _, err = endRound(below(j.supervisor.pid, nil)) })
		return gone, err
	})
}

// signal sends a signal to a job's process group, or ends all of it.
func (s *Server) signal(j *job, sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		j.mu.Lock()
		j.killed = true
		j.mu.Unlock()
		if err := s.end(j); err != nil {
			return err
		}
		<-j.exited
		return nil
	}
	if sig <= 0 || sig > 64 {
		return fmt.Errorf("signal %d does not exist", sig)
	}
	select {
	case <-j.running: // the command may have made itself known before
	case <-j.exited:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.outcome != nil {
		return errors.New("the job does not run")
	}
	return syscall.Kill(-j.pid, sig)
}

// state is where the job is now.
func (j *job) state() JobState {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.outcome != nil:
		return JobExited
	case j.gate.waiting():
		return JobWaiting
	}
	return JobRunning
}

// status describes the job as it is now.
func (j *job) status() JobStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	st := JobStatus{ID: j.id, State: JobRunning, Duration: time.Since(j.started)}
	if j.gate.waiting() {
		st.State = JobWaiting
	}
	if j.outcome != nil {
		st.State, st.Duration = JobExited, j.duration
		st.ExitCode, st.Signal = j.outcome.Code, j.outcome.Signal
		st.Error, st.TimedOut = j.outcome.Error, j.outcome.timedOut
	}
	st.Stdout, st.Stderr = j.stdout.stream(), j.stderr.stream()
	return st
}

// retain keeps an exited job's status within the bounds for all of them.
func (s *Server) retain(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exited = append(s.exited, j)
	kept := 0
	for i := len(s.exited) - 1; i >= 0; i-- {
		old := s.exited[i]
		for _, o := range []*output{old.stdout, old.stderr} {
			kept += o.size()
			if kept > maxKept && old != j {
				o.forget()
			}
		}
	}
	if len(s.exited) > maxExited {
		delete(s.jobs, s.exited[0].id)
		s.exited = s.exited[1:]
	}
}
