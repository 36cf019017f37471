package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	superviseComm = "belljar-job" // 15 bytes at most
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
	// Terminal says that the command's descriptors are a terminal, to be that
	// of its session.
	Terminal bool `json:"terminal,omitempty"`
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
// It may be started before there is a command, and waits for its order. That
// comes with the command's descriptors 0 to 2.
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
	os.WriteFile("/proc/self/comm", []byte(superviseComm), 0) // for who looks at ps
	victims, _ := openVictims()
	// A command, though it may be root, gets no hold of this process.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	files, err := receiveFiles(control)
	if err != nil {
		return 1
	}
	var o order
	if err := json.NewDecoder(control).Decode(&o); err != nil {
		return 1
	}
	pid, failure := startCommand(o, descriptors(files), victims)
	for _, f := range files {
		f.Close()
	}
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

// sendFiles gives a supervisor the descriptors of its command, receiveFiles
// takes them.
func sendFiles(control *os.File, files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	raw, err := control.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, sent)
}

func receiveFiles(control *os.File) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(3*4))
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(int(control.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil || n != 1 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF) // the agent has no use for this process
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "command")
	}
	return files, err
}

// startCommand starts the command in a session of its own, with files as its
// descriptors. It is a likelier victim than this process when memory runs out,
// if victims is that file.
func startCommand(o order, files []uintptr, victims *os.File) (int, *outcome) {
	if st, err := os.Stat(o.Dir); err != nil || !st.IsDir() {
		return 0, &outcome{Code: 126, Error: fmt.Sprintf("working directory %s does not exist", o.Dir)}
	}
	path, err := lookPath(o.Argv[0], o.Env)
	if err == nil {
		defer preferVictims(victims)()
		var pid int
		pid, err = syscall.ForkExec(path, o.Argv, &syscall.ProcAttr{
			Dir:   o.Dir,
			Env:   o.Env,
			Files: files,
			Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: o.Terminal},
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

// openVictims opens the file by which preferVictims works. A process that is
// not dumpable cannot.
func openVictims() (*os.File, error) { return os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0) }

// preferVictims makes processes forked until undo is called more likely to be
// killed when memory runs out than the agent and its supervisors.
func preferVictims(f *os.File) (undo func()) {
	own := make([]byte, 16)
	n, err := f.ReadAt(own, 0)
	if n == 0 && err != nil {
		return func() {} // a kindness to the agent, not a need of the job
	}
	score, _ := strconv.Atoi(strings.TrimSpace(string(own[:n])))
	f.WriteAt([]byte(strconv.Itoa(max(score, 500))), 0)
	return func() { f.WriteAt([]byte(strconv.Itoa(score)), 0) }
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
