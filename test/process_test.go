package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stragglers are processes that try to outlive whoever started them. Their
// argument is easy to find on the host.
const stragglers = `
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "987654"])
subprocess.Popen(["bash", "-c", "trap '' TERM INT HUP; while :; do sleep 987654; done"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        os.execvp("sleep", ["sleep", "987654"])
    os._exit(0)
for i in range(20): # and some that nobody waits for
    if os.fork() == 0: os._exit(0)
`

// sleepers returns the stragglers that are alive on the host.
func sleepers(state string) []process {
	return slices.DeleteFunc(inside(state), func(p process) bool { return !strings.Contains(p.command, "987654") })
}

// TestFault01TimeoutLeavesNothing: a timeout ends everything that was
// started, however it hides, and keeps what there is of output and files.
func TestFault01TimeoutLeavesNothing(t *testing.T) {
	s := sharedServer(t)
	done := make(chan *result)
	go func() {
		defer close(done)
		r, err := s.tryRun(t.Context(), "python", stragglers+`
print("before the end", flush=True)
open("output/partial.txt", "w").write("so far")
while True: time.sleep(1)`, args{"timeout": 4})
		if err != nil {
			t.Error(err)
			return
		}
		done <- r
	}()
	if !eventually(func() bool { return len(sleepers(s.state)) >= 4 }) {
		t.Errorf("the stragglers did not start: %v", sleepers(s.state))
	}
	r := <-done
	if r == nil {
		t.FailNow()
	}
	// At this moment, and not only once the sandbox is gone.
	if left := sleepers(s.state); len(left) > 0 {
		t.Errorf("alive after the result: %v", left)
	}
	if !r.TimedOut || r.Success || r.ReturnCode != 124 || !strings.Contains(r.Error, "timed out after 4 s") {
		t.Errorf("%s", r)
	}
	if r.Stdout != "before the end\n" {
		t.Errorf("the output until then is lost: %s", r)
	}
	if f := r.file(t, "partial.txt"); f.Text == nil || *f.Text != "so far" {
		t.Errorf("the file written until then: %+v", f)
	}
	s.settled(t)
}

// TestFault02BackgroundChildHoldsThePipe: the end of the script ends the
// call, whoever still holds its output open.
func TestFault02BackgroundChildHoldsThePipe(t *testing.T) {
	s := sharedServer(t)
	for _, script := range []string{
		"echo done; sleep 987654 &",
		"echo done; setsid sleep 987654 & disown",
		"echo done; (while :; do echo noise >&2; sleep 0.01; done) &",
	} {
		r := s.run(t, "bash", script, args{"timeout": 100})
		if !r.Success || r.Stdout != "done\n" || r.DurationMS > 90_000 {
			t.Errorf("%q: %s", script, r)
		}
	}
	s.settled(t)
}

// TestFault03EveryRunHasATimeLimit: without one asked for there is the
// default, and above the maximum there is none.
func TestFault03EveryRunHasATimeLimit(t *testing.T) {
	s := startServer(t, "DEFAULT_TIMEOUT=2", "MAX_TIMEOUT=5")
	r := s.run(t, "bash", "echo begun; sleep 1000")
	if !r.TimedOut || r.ReturnCode != 124 || r.Stdout != "begun\n" || r.Limits["timeout_seconds"] != 2.0 {
		t.Errorf("%s", r)
	}
	if text := s.refused(t, "bash", "true", args{"timeout": 6}); !strings.Contains(text, "5") {
		t.Errorf("refused with %q", text)
	}
}

// TestDisconnectEndsTheRun: when a client of the modern era hangs up, its
// run ends and its sandbox goes.
func TestDisconnectEndsTheRun(t *testing.T) {
	s := sharedServer(t)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	ended := make(chan error, 1)
	go func() {
		_, err := s.tryRun(ctx, "bash", "sleep 987654", args{"timeout": 300})
		ended <- err
	}()
	if !eventually(func() bool { return len(sleepers(s.state)) > 0 }) {
		t.Fatal("the script did not start")
	}
	hangUp()
	if err := <-ended; err == nil {
		t.Error("the call ended well")
	}
	s.settled(t)
}

// TestSIGTERMDuringARun: the server ends in bounded time, whatever runs, and
// leaves nothing; startServer checks that.
func TestSIGTERMDuringARun(t *testing.T) {
	s := startServer(t)
	ended := make(chan error, 1)
	go func() {
		r, err := s.tryRun(t.Context(), "python", stragglers+"time.sleep(300)", args{"timeout": 300})
		if err == nil {
			err = fmt.Errorf("a result: %s", r)
		}
		ended <- err
	}()
	if !eventually(func() bool { return len(sleepers(s.state)) >= 4 }) {
		t.Fatal("the script did not start")
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	<-ended // with whatever; but the client must not hang
}

// TestProgress: a client that asks for it hears of a run every few seconds.
func TestProgress(t *testing.T) {
	s := sharedServer(t)
	heard := make(chan *mcp.ProgressNotificationParams, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "belljar-test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			heard <- req.Params
		},
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	params := &mcp.CallToolParams{Name: "run_script", Arguments: args{
		// The script goes on until it was heard of.
		"runtime": "bash", "script": "sleep 300", "timeout": 300,
	}}
	params.SetProgressToken("p")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go session.CallTool(ctx, params)
	select {
	case p := <-heard:
		if p.ProgressToken != "p" || p.Progress <= 0 || !strings.Contains(p.Message, "of 300 s at most") {
			t.Errorf("%+v", p)
		}
	case <-time.After(patience):
		t.Error("nothing was heard")
	}
	cancel()
	s.settled(t)
}

// TestFault07CrashLeavesNothing: after kill -9 in the middle of runs, the
// next start clears away all of it.
func TestFault07CrashLeavesNothing(t *testing.T) {
	s := startServer(t)
	for range 4 {
		go s.tryRun(t.Context(), "python", stragglers+"time.sleep(300)", args{"timeout": 300})
	}
	if !eventually(func() bool { return len(sleepers(s.state)) >= 4 }) {
		t.Fatal("no script started")
	}
	s.kill(t)
	if len(leftovers(s.state, 0)) == 0 {
		t.Error("the crash left nothing, so this test shows nothing")
	}
	s.restart(t)
	s.settled(t)
	if r := s.succeed(t, "bash", "echo again"); r.Stdout != "again\n" {
		t.Errorf("%s", r)
	}
}

// TestFault06ExpirySurvivesARestart: what has expired is gone, also if the
// server was not there when its time came.
func TestFault06ExpirySurvivesARestart(t *testing.T) {
	s := startServer(t, "OUTPUT_TTL=3")
	file := s.succeed(t, "bash", "head -c 10000 /dev/zero > output/zeros").file(t, "zeros")
	if file.ExpiresIn > 3 || file.ExpiresIn < 1 {
		t.Errorf("it expires in %d s", file.ExpiresIn)
	}
	dir := filepath.Join(s.state, "output", file.token())
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	s.kill(t)
	time.Sleep(3 * time.Second) // what is awaited is the clock
	s.restart(t)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the expired file is on disk after the start: %v", err)
	}
	gone, _ := get(t, s.base()+file.path(t))
	if gone.StatusCode != 404 {
		t.Errorf("the expired link: %s", gone.Status)
	}

	// And while the server runs, from the moment on.
	file = s.succeed(t, "bash", "head -c 10000 /dev/zero > output/zeros").file(t, "zeros")
	if !eventually(func() bool { res, _ := get(t, file.URL); return res.StatusCode == 404 }) {
		t.Error("the link outlives its time")
	}
	s.settled(t)
}
