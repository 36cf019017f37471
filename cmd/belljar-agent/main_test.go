package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar/internal/agent"
)

// TestMain lets the test binary stand in for the agent's: it is started again
// as process 1 of a sandbox, and by that for its helpers.
func TestMain(m *testing.M) {
	agent.RunHelper()
	switch os.Args[0] {
	case "belljar-agent":
		main()
		return
	case "fork-chain":
		forkChain()
	}
	os.Exit(m.Run())
}

// The agent runs beside hostile scripts and is started for every one of them:
// it links no more than it needs.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 3 {
		t.Fatalf("go list says %q", out)
	}
	for _, dep := range deps {
		switch {
		case dep == "belljar/cmd/belljar-agent", dep == "belljar/internal/agent":
		case strings.HasPrefix(dep, "golang.org/x/sys/"), strings.HasPrefix(dep, "golang.org/x/image/"):
		default:
			t.Errorf("links %s", dep)
		}
	}
}

// setUp makes an overlay of the host's root with a /proc of its own and starts
// the agent in it. Its arguments: an empty directory, the directory of the
// socket, the socket, the program.
const setUp = `set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" none "$1/root"
mount -t proc none "$1/root/proc"
mount --rbind /dev "$1/root/dev"
# The overlay shows none of what is mounted on the host, such as a /tmp.
mkdir -p "$1/root$2" "$1/root${4%/*}"
mount --bind "$2" "$1/root$2"
mount --bind "${4%/*}" "$1/root${4%/*}"
exec chroot "$1/root" bash -c 'exec -a belljar-agent "$0" "$1"' "$4" "$3"`

// sandbox is an agent as process 1 of a pid namespace.
type sandbox struct {
	*agent.Client
	listener net.Listener
	cmd      *exec.Cmd
	ended    chan error
}

const patience = 30 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newSandbox starts an agent. If pids is not 0, a cgroup holds the sandbox to
// that many processes and threads.
func newSandbox(t *testing.T, pids int) *sandbox {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making namespaces needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	script := setUp
	if pids != 0 {
		script = "echo 0 > " + pidsCgroup(t, pids) + "/cgroup.procs\n" + script
	}
	cmd := exec.Command("bash", "-c", script, "setup", t.TempDir(), filepath.Dir(socket), socket, self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Skip("no namespaces can be made here: ", err)
	}
	sb := &sandbox{listener: l, cmd: cmd, ended: make(chan error, 1)}
	go func() { sb.ended <- cmd.Wait(); l.Close() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-sb.ended
	})
	sb.accept(t)
	return sb
}

// pidsCgroup makes a cgroup with a limit on processes.
func pidsCgroup(t *testing.T, limit int) string {
	t.Helper()
	for _, parent := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir := filepath.Join(parent, fmt.Sprintf("belljar-agent-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { await(t, "the cgroup to be empty", func() bool { return os.Remove(dir) == nil }) })
		if os.WriteFile(filepath.Join(dir, "pids.max"), fmt.Append(nil, limit), 0o644) == nil {
			return dir
		}
	}
	t.Skip("no pids cgroup can be made here")
	return ""
}

// accept waits for the agent to dial.
func (sb *sandbox) accept(t *testing.T) {
	t.Helper()
	sb.listener.(*net.UnixListener).SetDeadline(time.Now().Add(patience))
	conn, err := sb.listener.Accept()
	if err != nil {
		t.Fatal("the agent does not dial: ", err)
	}
	sb.Client = agent.NewClient(conn)
	t.Cleanup(func() { sb.Client.Close() })
}

func bash(id, script string) agent.JobSpec {
	return agent.JobSpec{ID: id, Argv: []string{"bash", "-c", script}, Timeout: patience, Keep: 4 << 10}
}

func (sb *sandbox) run(t *testing.T, spec agent.JobSpec) agent.JobStatus {
	t.Helper()
	sb.start(t, spec)
	st, err := sb.WaitJob(testContext(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (sb *sandbox) start(t *testing.T, spec agent.JobSpec) {
	t.Helper()
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
}

// processes are the command lines of all processes but the job's own, from
// inside, with their states.
func (sb *sandbox) processes(t *testing.T, id string) string {
	t.Helper()
	st := sb.run(t, bash(id, `for p in /proc/[0-9]*; do
	pid=${p#/proc/}; [ $pid = $$ ] || [ $pid = $PPID ] && continue
	read -r comm < $p/comm || continue; while read -r k v _; do [ "$k" = State: ] && echo "$pid $comm $v"; done < $p/status
done; true`))
	if st.ExitCode != 0 {
		t.Fatalf("listing processes: %+v", st)
	}
	return string(st.Stdout.Head)
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// alone checks that the agent is all that is left. A supervisor ends a moment
// after its job.
func (sb *sandbox) alone(t *testing.T, id string) {
	t.Helper()
	sb.awaitProcesses(t, id, func(list string) bool {
		return strings.Count(list, "\n") == 1 && strings.HasPrefix(list, "1 ")
	})
}

func (sb *sandbox) awaitProcesses(t *testing.T, id string, right func(list string) bool) {
	t.Helper()
	var list string
	for i := range 100 {
		if list = sb.processes(t, fmt.Sprint(id, "-", i)); right(list) {
			return
		}
	}
	t.Errorf("processes left:\n%s", list)
}

func TestProcessOne(t *testing.T) {
	sb := newSandbox(t, 0)
	h, err := sb.Health(testContext(t))
	if err != nil || h.Version != agent.Version || h.Jobs != 0 {
		t.Fatalf("got %+v, %v", h, err)
	}
	st := sb.run(t, bash("dirs", "pwd; ls; umask; ls /proc/self/fd | wc -l"))
	if got, want := string(st.Stdout.Head), "/sandbox\ninput\noutput\n0022\n4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	sb.alone(t, "look")
}

func TestJobsOutliveTheConnection(t *testing.T) {
	sb := newSandbox(t, 0)
	sb.start(t, bash("j", "while [ ! -e go ]; do sleep 0.01; done; echo fine"))
	sb.Close()
	sb.accept(t)
	if st, err := sb.Job(testContext(t), "j"); err != nil || st.State != agent.JobRunning {
		t.Fatalf("got %+v, %v", st, err)
	}
	if err := sb.WriteFile(testContext(t), "/sandbox/go", 0o644, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.WaitJob(testContext(t), "j"); err != nil || string(st.Stdout.Head) != "fine\n" {
		t.Errorf("got %+v, %v", st, err)
	}
}

// kill -9 -1 reaches everything in the namespace but process 1.
func TestScriptThatKillsEverything(t *testing.T) {
	sb := newSandbox(t, 0)
	st := sb.run(t, bash("j", "for i in $(seq 50); do (setsid sleep 1000 &); done; trap '' TERM; kill -9 -1; sleep 1000"))
	if st.State != agent.JobExited || st.ExitCode == 0 || st.Error == "" {
		t.Errorf("got %+v", st)
	}
	sb.alone(t, "look")
}

// Orphans of a supervisor that was killed come to process 1, which reaps and
// ends them.
func TestOrphansAreReapedAndEnded(t *testing.T) {
	sb := newSandbox(t, 0)
	sb.start(t, bash("other", "sleep 1000"))
	st := sb.run(t, bash("j", "for i in $(seq 50); do (setsid sleep 1000 &); (sleep 0.1 &); done; kill -9 $PPID; sleep 1000"))
	if st.State != agent.JobExited || st.Error == "" {
		t.Errorf("got %+v", st)
	}
	await(t, "the orphans to be reaped", func() bool {
		h, err := sb.Health(testContext(t))
		return err == nil && h.Zombies >= 50
	})
	if st, err := sb.Job(testContext(t), "other"); err != nil || st.State != agent.JobRunning {
		t.Errorf("the other job: %+v, %v", st, err)
	}
	if err := sb.SignalJob(testContext(t), "other", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	sb.alone(t, "look")
}

// sole is a job that has the sandbox to itself.
func sole(id, script string) agent.JobSpec {
	spec := bash(id, script)
	spec.Sole = true
	return spec
}

func TestSoleJob(t *testing.T) {
	sb := newSandbox(t, 0)
	for _, c := range []struct {
		script, stdout string
		code           int
	}{
		{"echo $PPID; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; exit 3", "1\n4\n500\n", 3},
		{"kill -KILL $$", "", 137},
		{"kill -9 -1; echo here", "here\n", 0},
	} {
		spec := sole(fmt.Sprintf("code-%d", c.code), c.script)
		if st := sb.run(t, spec); st.ExitCode != c.code || string(st.Stdout.Head) != c.stdout || st.Error != "" {
			t.Errorf("%s: got %+v", c.script, st)
		}
	}
	missing := sole("missing", "")
	missing.Argv = []string{"no-such-command"}
	if st := sb.run(t, missing); st.ExitCode != 127 || !strings.Contains(st.Error, "no-such-command") {
		t.Errorf("a missing command: %+v", st)
	}
	sb.start(t, sole("one", "sleep 1000"))
	if err := sb.StartJob(testContext(t), sole("two", "true")); err == nil || !strings.Contains(err.Error(), "to itself") {
		t.Errorf("a second sole job: %v", err)
	}
	if err := sb.SignalJob(testContext(t), "one", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.WaitJob(testContext(t), "one"); err != nil || st.ExitCode != 143 || st.Signal != int(syscall.SIGTERM) {
		t.Errorf("after SIGTERM: %+v, %v", st, err)
	}
	sb.alone(t, "look")
}

// What a sole job leaves running goes with it, whatever became of its session
// and its parents; what other jobs run stays.
func TestSoleJobEndsWithAllThatItStarted(t *testing.T) {
	sb := newSandbox(t, 256)
	const leave = "for i in $(seq 20); do (setsid sleep 1000 &); done; "
	st := sb.run(t, sole("left", leave+"exit 0"))
	if st.State != agent.JobExited || st.ExitCode != 0 {
		t.Fatalf("got %+v", st)
	}
	if err := sb.SignalJob(testContext(t), "left", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	sb.alone(t, "look")

	sb.start(t, bash("other", "sleep 1000"))
	for i, script := range []string{leave + "sleep 1000", forkBomb, forkChains(t)} {
		spec := sole(fmt.Sprint("sole", i), script)
		spec.Timeout = time.Second
		if st := sb.run(t, spec); !st.TimedOut || st.ExitCode != 124 || st.Error != "" || st.Duration > 10*time.Second {
			t.Errorf("%s: %+v", script, st)
		}
		sb.awaitProcesses(t, fmt.Sprint("look", i), func(list string) bool { // the agent, a supervisor, its job
			return strings.Count(list, " sleep S") == 1 && strings.Count(list, "\n") == 3
		})
	}
	if st, err := sb.Job(testContext(t), "other"); err != nil || st.State != agent.JobRunning {
		t.Errorf("the other job: %+v, %v", st, err)
	}
}

const forkBomb = "b() { b | b & }; while :; do b; done 2>/dev/null"

// forkChains runs some chains next to a process that is deaf to SIGTERM.
func forkChains(t *testing.T) string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return "for i in {1..20}; do (exec -a fork-chain " + self + ") & done; trap '' TERM; while :; do sleep 1000; done"
}

func TestForkBombEndsWithItsTimeout(t *testing.T) {
	sb := newSandbox(t, 256)
	for i, script := range []string{forkBomb, forkChains(t), "kill -9 $PPID; " + forkBomb, forkBomb} {
		spec := bash(fmt.Sprint("bomb", i), script)
		spec.Timeout = time.Second
		spec.Sole = i == 3
		st := sb.run(t, spec)
		if st.State != agent.JobExited || st.Duration > 10*time.Second {
			t.Errorf("%s: %+v", script, st)
		}
		if i != 2 && (!st.TimedOut || st.ExitCode != 124 || st.Error != "") {
			t.Errorf("%s: %+v", script, st)
		}
		if _, err := sb.Health(testContext(t)); err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		sb.alone(t, fmt.Sprint("look", i))
	}
}

// With other jobs around, a timeout must find what belongs to its own.
func TestForkBombSparesOtherJobs(t *testing.T) {
	sb := newSandbox(t, 256)
	if st := sb.run(t, bash("daemon", "setsid sleep 1000 >/dev/null 2>&1 &")); st.ExitCode != 0 {
		t.Fatalf("got %+v", st)
	}
	sb.start(t, bash("other", "touch runs; sleep 1000"))
	await(t, "the other job to run", func() bool {
		r, _, err := sb.ReadFile(testContext(t), "/sandbox/runs")
		if err == nil {
			r.Close()
		}
		return err == nil
	})
	for i, script := range []string{forkBomb, forkChains(t)} {
		spec := bash(fmt.Sprint("bomb", i), script)
		spec.Timeout = time.Second
		sb.start(t, spec)
		// At the limit, the agent answers, if only that it cannot.
		if err := sb.StartJob(testContext(t), bash(fmt.Sprint("more", i), "true")); err == nil {
			if _, err := sb.WaitJob(testContext(t), fmt.Sprint("more", i)); err != nil {
				t.Error(err)
			}
		}
		st, err := sb.WaitJob(testContext(t), spec.ID)
		if err != nil || !st.TimedOut || st.Error != "" || st.Duration > 10*time.Second {
			t.Errorf("%s: %+v, %v", script, st, err)
		}
	}
	if st, err := sb.Job(testContext(t), "other"); err != nil || st.State != agent.JobRunning {
		t.Errorf("the other job: %+v, %v", st, err)
	}
	sb.awaitProcesses(t, "look", func(list string) bool { // with the agent and two supervisors
		return strings.Count(list, " sleep S") == 2 && strings.Count(list, "\n") == 5
	})
}

func TestTerminate(t *testing.T) {
	sb := newSandbox(t, 0)
	sb.start(t, bash("j", "trap '' TERM; kill -TERM 1; while :; do sleep 1000; done"))
	select {
	case err := <-sb.ended:
		sb.ended <- err
		if err != nil {
			t.Errorf("the agent ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the agent does not end on SIGTERM")
	}
}

// forkChain is a program in which each process lives for as long as it takes
// to start the next.
func forkChain() {
	runtime.LockOSThread()
	for {
		pid, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
		if errno == 0 && pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}
