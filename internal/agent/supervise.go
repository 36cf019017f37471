package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names under which the agent's binary runs as one of its helpers.
const (
	superviseName = "belljar-supervise"
	previewName   = "belljar-preview"
)

// RunHelper must come first in main, and in TestMain of tests that run a
// Server in their own process: a Server starts the program it is part of
// again for its helper processes. In a helper, RunHelper does the work and
// exits; otherwise it returns at once.
func RunHelper() {
	// syscall.Exit, since a helper has nothing to tell to those who hook into
	// os.Exit, some of which take their time.
	switch os.Args[0] {
	case superviseName:
		syscall.Exit(supervise(os.NewFile(3, "control")))
	case previewName:
		syscall.Exit(previewHelper(os.Args[1:], os.Stdin, os.Stdout))
	}
}

// order is what the agent tells a supervisor to run.
type order struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
}

// report is what a supervisor tells the agent: that the command runs, then
// how it ended.
type report struct {
	PID  int      `json:"pid,omitempty"`
	Exit *outcome `json:"exit,omitempty"`
}

// outcome is how a command ended.
type outcome struct {
	Code     int    `json:"code"`
	Signal   int    `json:"signal,omitempty"`
	Error    string `json:"error,omitempty"`
	timedOut bool
}

// supervise runs one job's command and stays until nothing it started is
// left. As the subreaper of all of it, it is the ancestor by which the agent
// finds processes that left their session or lost their parent.
//
// Its descriptors 0 to 2 are meant for the command.
func supervise(control *os.File) int {
	// The command gets three descriptors, whatever the agent was started with.
	unix.CloseOnExec(3)
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	// Signals for everybody ("kill -1") are not for this process. They are
	// caught, not ignored, since a command would inherit being ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE)
	reserveThreads(3)
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err != nil {
		return 1
	}
	var o order
	if err := json.NewDecoder(control).Decode(&o); err != nil {
		return 1
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 1
	}
	pid, failure := startCommand(o, []uintptr{0, 1, 2})
	for fd := range 3 {
		unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
	}
	// The command, though it may be root, gets no hold of this process.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	reports := json.NewEncoder(control)
	if failure != nil {
		reports.Encode(report{Exit: failure})
		return 0
	}
	reports.Encode(report{PID: pid})
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child left
			return 0
		case ended == pid:
			reports.Encode(report{Exit: ending(status)})
			control.Close()
			pid = -1
		}
	}
}

// startCommand starts the command in a session of its own, with files as its
// descriptors.
func startCommand(o order, files []uintptr) (int, *outcome) {
	if st, err := os.Stat(o.Dir); err != nil || !st.IsDir() {
		return 0, &outcome{Code: 126, Error: fmt.Sprintf("working directory %s does not exist", o.Dir)}
	}
	path, err := lookPath(o.Argv[0], o.Env)
	if err == nil {
		defer preferVictims()()
		var pid int
		pid, err = syscall.ForkExec(path, o.Argv, &syscall.ProcAttr{
			Dir:   o.Dir,
			Env:   o.Env,
			Files: files,
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
		if err == nil {
			return pid, nil
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return 0, &outcome{Code: 127, Error: o.Argv[0] + ": command not found"}
	}
	return 0, &outcome{Code: 126, Error: fmt.Sprintf("%s: %v", o.Argv[0], err)}
}

// preferVictims makes processes forked until undo is called more likely to be
// killed when memory runs out than the agent and its supervisors.
func preferVictims() (undo func()) {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return func() {} // a kindness to the agent, not a need of the job
	}
	own := make([]byte, 16)
	n, _ := f.Read(own)
	score, _ := strconv.Atoi(strings.TrimSpace(string(own[:n])))
	f.WriteString(strconv.Itoa(max(score, 500)))
	return func() {
		f.WriteString(strconv.Itoa(score))
		f.Close()
	}
}

// lookPath finds a command as a shell does, in the PATH that it will have.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var dirs string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			dirs = v
		}
	}
	found := syscall.ENOENT
	for _, dir := range filepath.SplitList(dirs) {
		path := filepath.Join(dir, name)
		st, err := os.Stat(path)
		switch {
		case err != nil || st.IsDir():
		case st.Mode()&0o111 == 0:
			found = syscall.EACCES
		default:
			return path, nil
		}
	}
	return "", found
}

// describe says in words how a process ended.
func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// ending translates a wait status as a shell does.
func ending(status syscall.WaitStatus) *outcome {
	if status.Signaled() {
		n := int(status.Signal())
		return &outcome{Code: 128 + n, Signal: n}
	}
	return &outcome{Code: status.ExitStatus()}
}
