package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOutcomes(t *testing.T) {
	sb := newSandbox(t)
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "noshebang": 0o755} {
		if err := sb.WriteFile(testContext(t), "/sandbox/"+name, mode, strings.NewReader("\x01\x02")); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		argv         []string
		dir          string
		code, signal int
		err          string
	}{
		{argv: []string{"true"}},
		{argv: []string{"sh", "-c", "exit 3"}, code: 3},
		{argv: []string{"sh", "-c", "kill -TERM $$"}, code: 143, signal: 15},
		{argv: []string{"no-such-command"}, code: 127, err: "no-such-command: command not found"},
		{argv: []string{"/no/such/command"}, code: 127, err: "command not found"},
		{argv: []string{"/sandbox/plain"}, code: 126, err: "permission denied"},
		{argv: []string{"/sandbox/noshebang"}, code: 126, err: "exec format error"},
		{argv: []string{"true"}, dir: "/nowhere", code: 126, err: "does not exist"},
	} {
		spec := JobSpec{ID: fmt.Sprint("job", i), Argv: c.argv, Dir: c.dir, Timeout: patience}
		st := sb.run(t, spec)
		if st.State != JobExited || st.ExitCode != c.code || st.Signal != c.signal || st.TimedOut ||
			!strings.Contains(st.Error, c.err) || (st.Error == "") != (c.err == "") {
			t.Errorf("%v: got %+v, want code %d, signal %d, error %q", c.argv, st, c.code, c.signal, c.err)
		}
	}
}

func TestCommandGetsWhatWasAskedFor(t *testing.T) {
	sb := newSandbox(t)
	if err := sb.WriteFile(testContext(t), "/sandbox/in/put", 0o600, strings.NewReader("the input")); err != nil {
		t.Fatal(err)
	}
	spec := bash("j", `cat; echo; pwd; echo "$A $LANG"; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0; echo oops >&2`)
	spec.Env, spec.Stdin, spec.Dir = []string{"A=b=c"}, "/sandbox/in/put", "/sandbox/in"
	st := sb.run(t, spec)
	// Descriptors: the three, and the directory that ls reads.
	want := "the input\n" + sb.file("in") + "\nb=c C.UTF-8\n4\n" + sb.file("in/put") + "\n"
	if got := string(st.Stdout.Head); got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got := string(st.Stderr.Head); got != "oops\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestStartIsIdempotent(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("once", "echo x >> ran")
	for range 3 {
		sb.run(t, spec)
	}
	if data, err := os.ReadFile(sb.file("ran")); err != nil || string(data) != "x\n" {
		t.Errorf("the script left %q, %v; want one line", data, err)
	}
}

func TestRefusedSpecs(t *testing.T) {
	sb := newSandbox(t)
	for _, change := range []func(*JobSpec){
		func(s *JobSpec) { s.ID = "../x" },
		func(s *JobSpec) { s.ID = "" },
		func(s *JobSpec) { s.Argv = nil },
		func(s *JobSpec) { s.Timeout = 0 },
		func(s *JobSpec) { s.Keep = MaxKeep + 1 },
		func(s *JobSpec) { s.Argv = []string{"a\x00b"} },
		func(s *JobSpec) { s.Stdin = "/nowhere" },
	} {
		spec := bash("bad", "true")
		change(&spec)
		if err := sb.StartJob(testContext(t), spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
		if err := sb.server.startJob(spec); err == nil {
			t.Errorf("the server accepted %+v", spec)
		}
	}
	if _, err := sb.Job(testContext(t), "bad"); !errors.Is(err, ErrNoJob) {
		t.Errorf("got %v, want ErrNoJob", err)
	}
}

// stubborn starts processes that try to stay: in sessions of their own, with
// no parent left, deaf to signals. Each writes its pid to the file pids.
const stubborn = `
stay() { trap '' TERM HUP INT; echo $BASHPID >> pids; while :; do sleep 1000; done; }
stay &
(setsid bash -c 'trap "" TERM HUP; echo $$ >> pids; sleep 1000 & wait; sleep 1000' &)
(setsid bash -c '(setsid sh -c "echo \$\$ >> pids; sleep 1000" &)' &)
nohup sh -c 'echo $$ >> pids; exec sleep 1000' >/dev/null 2>&1 &
`

func TestTimeoutEndsEverything(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("j", "echo partial; "+stubborn+"stay")
	spec.Timeout = 700 * time.Millisecond
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	pids := sb.pids(t, "pids", 5)
	st, err := sb.WaitJob(testContext(t), "j")
	if err != nil {
		t.Fatal(err)
	}
	if st.ExitCode != 124 || !st.TimedOut || string(st.Stdout.Head) != "partial\n" || st.Error != "" {
		t.Errorf("got %+v", st)
	}
	if st.Duration < spec.Timeout || st.Duration > spec.Timeout+5*time.Second {
		t.Errorf("took %v", st.Duration)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d outlived the timeout", pid)
		}
	}
}

func TestTimeoutOutrunsForkingChain(t *testing.T) {
	sb := newSandbox(t)
	// Each process lives for no longer than it takes to start the next.
	spec := bash("j", "f() { f & }; f; sleep 1000")
	spec.Timeout = 300 * time.Millisecond
	st := sb.run(t, spec)
	if !st.TimedOut || st.Error != "" {
		t.Errorf("got %+v", st)
	}
	await(t, "the supervisor's end", func() bool {
		sb.server.mu.Lock()
		defer sb.server.mu.Unlock()
		return len(sb.server.live) == 0
	})
}

func TestBackgroundChildOutlivesJob(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("j", `
(echo $BASHPID > pids; while [ ! -e stop ]; do echo later; sleep 0.01; done; echo done > survived) &
echo now`)
	spec.LogBytes = 1 << 20
	st := sb.run(t, spec)
	if st.ExitCode != 0 || st.Duration > 5*time.Second || !strings.Contains(string(st.Stdout.Head), "now\n") {
		t.Fatalf("got %+v", st)
	}
	pid := sb.pids(t, "pids", 1)[0]
	await(t, "the log to go on", func() bool {
		now, err := sb.Job(testContext(t), "j")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(now.Stdout.Head, st.Stdout.Head) {
			t.Fatalf("the output kept changed after the end: %q", now.Stdout.Head)
		}
		return now.Stdout.LogBytes > st.Stdout.Bytes+60
	})
	if err := os.WriteFile(sb.file("stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	await(t, "the child to end by itself", func() bool { return !alive(pid) })
	if _, err := os.Stat(sb.file("survived")); err != nil {
		t.Error("the background child died of a signal")
	}
}

func TestKillAlsoEndsWhatOutlivedTheCommand(t *testing.T) {
	sb := newSandbox(t)
	if st := sb.run(t, bash("j", stubborn+"sleep 0.2")); st.ExitCode != 0 {
		t.Fatalf("got %+v", st)
	}
	pids := sb.pids(t, "pids", 4)
	for range 2 { // the second has nothing to do
		if err := sb.SignalJob(testContext(t), "j", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d outlived SIGKILL", pid)
		}
	}
}

func TestSignals(t *testing.T) {
	sb := newSandbox(t)
	start := func(id string) {
		if err := sb.StartJob(testContext(t), bash(id, "trap 'exit 7' TERM; echo $$ > "+id+"; while :; do sleep 0.01; done")); err != nil {
			t.Fatal(err)
		}
		sb.pids(t, id, 1)
	}
	start("term")
	if err := sb.SignalJob(testContext(t), "term", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.WaitJob(testContext(t), "term"); err != nil || st.ExitCode != 7 {
		t.Errorf("after SIGTERM: %+v, %v", st, err)
	}
	start("kill")
	if err := sb.SignalJob(testContext(t), "kill", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.Job(testContext(t), "kill"); err != nil || st.State != JobExited || st.ExitCode != 137 || st.Signal != 9 || st.Error != "" {
		t.Errorf("after SIGKILL: %+v, %v", st, err)
	}
	if err := sb.SignalJob(testContext(t), "none", syscall.SIGKILL); !errors.Is(err, ErrNoJob) {
		t.Errorf("got %v, want ErrNoJob", err)
	}
	var refused *RemoteError
	if err := sb.SignalJob(testContext(t), "term", syscall.SIGTERM); !errors.As(err, &refused) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestKilledSupervisorEndsJob(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	script := "setsid sleep 1000 & echo $! >> pids; echo $$ >> pids; while [ ! -e go ]; do sleep 0.01; done; kill -9 $PPID; sleep 1000"
	if err := sb.StartJob(ctx, bash("j", script)); err != nil {
		t.Fatal(err)
	}
	// Outside of process 1, the agent must know the command to end it. A
	// signal can be sent from then on.
	if err := sb.SignalJob(ctx, "j", syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(ctx, "/sandbox/go", 0o644, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	st, err := sb.WaitJob(ctx, "j")
	if err != nil {
		t.Fatal(err)
	}
	if st.Error == "" || st.ExitCode == 0 || st.Duration > 5*time.Second {
		t.Errorf("got %+v", st)
	}
	for _, pid := range sb.pids(t, "pids", 2) {
		await(t, "the job's processes to go", func() bool { return !alive(pid) })
	}
}

func TestSupervisorIgnoresOtherSignals(t *testing.T) {
	sb := newSandbox(t)
	st := sb.run(t, bash("j", "for s in TERM INT HUP QUIT USR1; do kill -$s $PPID; done; sleep 0.1; trap; exit 5"))
	if st.ExitCode != 5 || st.Error != "" {
		t.Errorf("got %+v", st)
	}
	// An ignored signal would show here, and could not be trapped by a script.
	if st.Stdout.Bytes != 0 {
		t.Errorf("the command inherited signal settings: %q", st.Stdout.Head)
	}
}

func TestConnectionLossLosesNoJob(t *testing.T) {
	sb := newSandbox(t)
	if err := sb.StartJob(testContext(t), bash("j", "while [ ! -e go ]; do sleep 0.01; done; echo fine")); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func(c *Client) {
		_, err := c.WaitJob(context.Background(), "j")
		failed <- err
	}(sb.Client)
	sb.Client.Close()
	if err := <-failed; err == nil {
		t.Error("the wait went on without a connection")
	}
	sb.connect(t)
	if st, err := sb.Job(testContext(t), "j"); err != nil || st.State != JobRunning {
		t.Fatalf("got %+v, %v", st, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := sb.WaitJob(ctx, "j"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if err := os.WriteFile(sb.file("go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.WaitJob(testContext(t), "j"); err != nil || string(st.Stdout.Head) != "fine\n" {
		t.Errorf("got %+v, %v", st, err)
	}
}

// memoryPeak resets the process's peak of resident memory, runs f, and
// returns by how many bytes the peak exceeded the start.
func memoryPeak(t *testing.T, f func()) int64 {
	t.Helper()
	read := func(field string) (kib int64) {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), field+":")
		fmt.Sscan(rest, &kib)
		return kib << 10
	}
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Skip("the peak of memory cannot be measured: ", err)
	}
	start := read("VmRSS")
	f()
	return read("VmHWM") - start
}

func TestFloodInConstantMemory(t *testing.T) {
	sb := newSandbox(t)
	for id, c := range map[string]struct {
		script string
		size   int64
		unit   string
	}{
		"lines":   {"yes 0123456", 2 << 30, "0123456\n"},
		"oneline": {"tr '\\0' x </dev/zero", 1 << 30, "xxxxxxxx"},
	} {
		if raceDetector {
			c.size >>= 4
		}
		spec := bash(id, fmt.Sprintf("exec 2>&1; %s | head -c %d", c.script, c.size))
		spec.Keep, spec.LogBytes = 64<<10, 1<<20
		var st JobStatus
		if grew := memoryPeak(t, func() { st = sb.run(t, spec) }); grew > 16<<20 {
			t.Errorf("%s: memory grew by %d MiB", id, grew>>20)
		}
		t.Logf("%s: %d MiB in %v", id, c.size>>20, st.Duration)
		end := []byte(strings.Repeat(c.unit, spec.Keep/len(c.unit)))
		if st.Stdout.Bytes != c.size || !bytes.Equal(st.Stdout.Head, end) || !bytes.Equal(st.Stdout.Tail, end) {
			t.Errorf("%s: %d bytes, head %d, tail %d", id, st.Stdout.Bytes, len(st.Stdout.Head), len(st.Stdout.Tail))
		}
		if info, err := os.Stat(filepath.Join(sb.root, st.Stdout.Log)); err != nil || info.Size() != 1<<20 || st.Stdout.LogBytes != 1<<20 {
			t.Errorf("%s: log %v, %v", id, info, err)
		}
	}
}

func TestOutputIsByteExact(t *testing.T) {
	sb := newSandbox(t)
	want := make([]byte, 200_000)
	src := rand.NewChaCha8([32]byte{1})
	src.Read(want)
	if err := os.WriteFile(sb.file("data"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	spec := bash("j", "cat data; cat data >&2")
	spec.Keep, spec.LogBytes = 110_000, 1<<20
	st := sb.run(t, spec)
	for _, s := range []Stream{st.Stdout, st.Stderr} {
		if got := append(s.Head, s.Tail...); !bytes.Equal(got, want) {
			t.Errorf("kept %d other bytes", len(got))
		}
		if log, err := os.ReadFile(filepath.Join(sb.root, s.Log)); err != nil || !bytes.Equal(log, want) {
			t.Errorf("log of %d other bytes, %v", len(log), err)
		}
	}
}

func TestFullDiskEndsLogOnly(t *testing.T) {
	sb := newSandbox(t)
	dir := filepath.Join(sb.root, LogDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("no file system can be mounted here: ", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	spec := bash("j", "head -c 1000000 /dev/zero; exit 4")
	spec.LogBytes = 1 << 30
	st := sb.run(t, spec)
	if st.ExitCode != 4 || st.Stdout.Bytes != 1_000_000 {
		t.Errorf("got %+v", st)
	}
	if n := st.Stdout.LogBytes; n == 0 || n > 64<<10 {
		t.Errorf("log of %d bytes on a disk of 64 KiB", n)
	}
}

func TestLogNeverFollowsWhatIsThere(t *testing.T) {
	sb := newSandbox(t)
	dir := filepath.Join(sb.root, LogDir, "j")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sb.file("target"), filepath.Join(dir, "stdout")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "stderr"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := bash("j", "echo out; echo err >&2")
	spec.LogBytes = 100
	st := sb.run(t, spec)
	if string(st.Stdout.Head) != "out\n" || string(st.Stderr.Head) != "err\n" || st.Stdout.Log != "" || st.Stderr.Log != "" {
		t.Errorf("got %+v", st)
	}
	if _, err := os.Lstat(sb.file("target")); err == nil {
		t.Error("the log was written through a symbolic link")
	}
}

func TestRingKeepsTheLastBytes(t *testing.T) {
	for size := range 9 {
		var all []byte
		r := ring{size: size}
		for i := range 200 {
			p := bytes.Repeat([]byte{byte(i)}, rand.IntN(2*size+2))
			all = append(all, p...)
			r.write(p)
			if want := all[max(0, len(all)-size):]; !bytes.Equal(r.bytes(), want) {
				t.Fatalf("size %d: %v, want %v", size, r.bytes(), want)
			}
		}
	}
}

func TestHealth(t *testing.T) {
	sb := newSandbox(t)
	if err := sb.StartJob(testContext(t), bash("j", "sleep 1000")); err != nil {
		t.Fatal(err)
	}
	h, err := sb.Health(testContext(t))
	if err != nil || h.Version != Version || h.Jobs != 1 {
		t.Errorf("got %+v, %v", h, err)
	}
}

func BenchmarkJob(b *testing.B) {
	sb := newSandbox(b)
	for i := range b.N {
		spec := JobSpec{ID: fmt.Sprint("j", i), Argv: []string{"true"}, Timeout: patience, Keep: 64 << 10}
		if err := sb.StartJob(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		if _, err := sb.WaitJob(b.Context(), spec.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// A short job is over with the answer to its start; a long one goes on.
func TestRunJob(t *testing.T) {
	sb := newSandbox(t)
	st, err := sb.RunJob(testContext(t), bash("short", "echo hi; exit 3"), patience)
	if err != nil || st.State != JobExited || st.ExitCode != 3 || string(st.Stdout.Head) != "hi\n" {
		t.Errorf("a short one: %+v, %v", st, err)
	}
	st, err = sb.RunJob(testContext(t), bash("long", "sleep 1000"), time.Millisecond)
	if err != nil || st.State != JobRunning {
		t.Errorf("a long one: %+v, %v", st, err)
	}
}
