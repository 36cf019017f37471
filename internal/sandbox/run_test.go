package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"belljar/internal/engine"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	b := newBench(t)
	r := bash("cat; cat input/a/b.txt; pwd | tail -c 9; echo problem >&2; ls; echo hi >output/hi.txt; exit 3")
	r.Stdin = "from stdin\n"
	r.Inputs = []Input{{Name: "a//b.txt", Data: []byte("from input\n")}}
	res := b.must(t, r)
	if res.Success || res.ReturnCode != 3 || res.TimedOut || res.Error != "" {
		t.Errorf("result: %+v", res)
	}
	want := "from stdin\nfrom input\n/sandbox\ninput\nmain.sh\noutput\n"
	if diff := cmp.Diff(want, res.Stdout); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	if res.Stderr != "problem\n" {
		t.Errorf("stderr: %q", res.Stderr)
	}
	f, data := b.file(t, res, "hi.txt")
	if string(data) != "hi\n" || f.Bytes != 3 || f.Text == nil || f.URL != "" || f.MIME != "text/plain" ||
		f.SHA256 != "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4" {
		t.Errorf("hi.txt: %+v", f)
	}
	if res.Limits.Memory.Value != 2<<30 || res.Limits.TimeoutSeconds != 60 || res.Limits.Files != 500 {
		t.Errorf("limits: %+v", res.Limits)
	}
	if res.DurationMS <= 0 {
		t.Errorf("duration: %d ms", res.DurationMS)
	}
}

func TestPython(t *testing.T) {
	b := newBench(t)
	res := b.must(t, Request{Runtime: "python", Script: "import os\nprint(os.environ['MPLBACKEND'])\n1/0\n"})
	if res.Stdout != "Agg\n" || res.ReturnCode != 1 || !strings.Contains(res.Stderr, `main.py", line 3`) {
		t.Errorf("result: %+v", res)
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxInputBytes, o.MaxInputs = 1000, 2 })
	long := bash("x")
	long.Timeout = time.Hour
	negative := bash("x")
	negative.Timeout = -time.Second
	input := func(in ...Input) Request {
		r := bash("x")
		r.Inputs = in
		return r
	}
	for _, tc := range []struct {
		name string
		r    Request
		want string
	}{
		{"runtime", Request{Runtime: "cobol", Script: "x"}, `unknown runtime "cobol"; known are bash, gmt`},
		{"no runtime", Request{Script: "x"}, "known are bash"},
		{"empty script", bash(" \n"), "the script is empty"},
		{"long timeout", long, "timeout 3600 s: the maximum is 300 s"},
		{"negative timeout", negative, "timeout -1 s: must be positive"},
		{"escape", input(Input{Name: "../../etc/cron.d/x"}), `input file "../../etc/cron.d/x": the name leads out`},
		{"twice", input(Input{Name: "a/b"}, Input{Name: "a/./b"}), `"a/b" is given twice`},
		{"file and directory", input(Input{Name: "a"}, Input{Name: "a/b"}), `"a" is also the directory of "a/b"`},
		{"too many", input(Input{Name: "a"}, Input{Name: "b"}, Input{Name: "c"}), "3 input files: at most 2"},
		{"too large", input(Input{Name: "a", Data: make([]byte, 1000)}), "hold 1001 bytes: at most 1000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, err := b.Run(t.Context(), tc.r)
			var refused *RequestError
			if !errors.As(err, &refused) || !strings.Contains(refused.Message, tc.want) {
				t.Errorf("got %+v, %v; want %q", res, err, tc.want)
			}
		})
	}
}

func TestHostRefusals(t *testing.T) {
	b := newBench(t)
	b.mem.SetImages("other")
	_, err := b.Run(t.Context(), bash("x"))
	var refused *RequestError
	if !errors.As(err, &refused) || !strings.Contains(refused.Message, "belljar image build -f images/Containerfile.mini mini") {
		t.Errorf("no image: %v", err)
	}
	b.mem.SetImages("mini")
	b.mem.SetHostFull(&engine.HostFullError{What: "disk space on /var/lib/secret", Free: 100 << 20, Need: 1 << 30})
	_, err = b.Run(t.Context(), bash("x"))
	if !errors.As(err, &refused) || !strings.Contains(refused.Message, "100 MiB free, 1024 MiB must stay free") || strings.Contains(err.Error(), "secret") {
		t.Errorf("host full: %v", err)
	}
	b.mem.SetHostFull(nil)
	if res := b.must(t, bash("true")); !res.Success {
		t.Errorf("after all that: %+v", res)
	}
}

// Faults 1 and 3: every job has an end, which leaves nothing running and
// loses nothing that was there before it.
func TestTimeout(t *testing.T) {
	b := newBench(t, func(o *Options) { o.DefaultTimeout = 500 * time.Millisecond })
	mark := filepath.Join(t.TempDir(), "alive")
	res := b.must(t, bash(fmt.Sprintf("echo early; echo kept >output/kept.txt; setsid bash -c 'while :; do date +%%N >%s; sleep 0.02; done' & sleep 1000; echo late", mark)))
	if !res.TimedOut || res.Success || res.ReturnCode != 124 || !strings.HasPrefix(res.Error, "timed out after 0.5 s") {
		t.Errorf("result: %+v", res)
	}
	if res.Stdout != "early\n" {
		t.Errorf("stdout: %q", res.Stdout)
	}
	if _, data := b.file(t, res, "kept.txt"); string(data) != "kept\n" {
		t.Errorf("kept.txt: %q", data)
	}
	if res.Limits.TimeoutSeconds != 0.5 {
		t.Errorf("limits: %+v", res.Limits)
	}
	before, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // ten rounds of the loop
	if after, _ := os.ReadFile(mark); !bytes.Equal(before, after) {
		t.Error("what the script started is still running")
	}
}

// Fault 2: the end of the script counts, not the end of its output.
func TestBackgroundChild(t *testing.T) {
	b := newBench(t)
	begun := time.Now()
	res := b.must(t, bash("sleep 1000 & echo started"))
	if !res.Success || res.Stdout != "started\n" || time.Since(begun) > 20*time.Second {
		t.Errorf("after %v: %+v", time.Since(begun), res)
	}
}

// Fault 9: nothing of a run is there for the next.
func TestFresh(t *testing.T) {
	b := newBench(t)
	b.must(t, bash("touch residue output/residue input/residue"))
	res := b.must(t, bash("find . -name 'residue*'"))
	if res.Stdout != "" || len(res.OutputFiles) != 0 {
		t.Errorf("found %q, %q", res.Stdout, names(res))
	}
}

// A caller that goes away ends its run; the sandbox goes too.
func TestCancel(t *testing.T) {
	b := newBench(t)
	mark := filepath.Join(t.TempDir(), "running")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Run(ctx, bash("touch "+mark+"; sleep 1000"))
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the sandbox is gone", func() bool { return len(sandboxes(t, b.mem)) == 0 })
}

// A sandbox that breaks down under the script is a result, not an error.
func TestLostSandbox(t *testing.T) {
	b := newBench(t)
	mark := filepath.Join(t.TempDir(), "running")
	type answer struct {
		res *Result
		err error
	}
	done := make(chan answer)
	go func() {
		res, err := b.Run(t.Context(), bash("touch "+mark+"; sleep 1000"))
		done <- answer{res, err}
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	for _, id := range sandboxes(t, b.mem) {
		if err := b.mem.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	a := <-done
	if a.err != nil || a.res.Success || a.res.ReturnCode != 137 || !strings.Contains(a.res.Error, "broke down") {
		t.Errorf("got %+v, %v", a.res, a.err)
	}
}

func TestOutOfMemory(t *testing.T) {
	b := newBench(t, func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, inspect: func(ctx context.Context, id string) (engine.Receipt, error) {
			r, err := real.Inspect(ctx, id)
			r.OOMKills = 1
			r.Memory.Note = "swap and /tmp count"
			return r, err
		}}
	})
	res := b.must(t, bash("kill -9 $$"))
	if res.Success || res.ReturnCode != 137 || res.Error != "killed for want of memory: the limit is 2048 MiB (swap and /tmp count)" {
		t.Errorf("result: %+v", res)
	}
	if res := b.must(t, bash("true")); !res.Success || res.Error != "" {
		t.Errorf("a script that got over it: %+v", res)
	}
}

func TestMissingInterpreter(t *testing.T) {
	b := newBench(t, withTable(t, moreRuntimes))
	res := b.must(t, Request{Runtime: "absent", Script: "x"})
	if res.Success || res.ReturnCode != 127 || !strings.Contains(res.Error, `no-such-program could not be started in the image "mini"`) {
		t.Errorf("result: %+v", res)
	}
}

func TestBusy(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Concurrency, o.QueueTime = 1, 100*time.Millisecond })
	dir := t.TempDir()
	mark, end := filepath.Join(dir, "running"), filepath.Join(dir, "end")
	done := make(chan error)
	go func() {
		_, err := b.Run(t.Context(), bash(fmt.Sprintf("touch %s; until [ -e %s ]; do sleep 0.01; done", mark, end)))
		done <- err
	}()
	eventually(t, "the script runs", func() bool { _, err := os.Stat(mark); return err == nil })
	_, err := b.Run(t.Context(), bash("true"))
	var refused *RequestError
	if !errors.As(err, &refused) || !strings.HasPrefix(refused.Message, "busy: all 1 places for runs are taken; try again in ") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The place of a finished run is free for one that waits.
func TestQueue(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Concurrency = 2 })
	done := make(chan error)
	const runs = 8
	for range runs {
		go func() {
			res, err := b.Run(t.Context(), bash("echo ok"))
			if err == nil && res.Stdout != "ok\n" {
				err = fmt.Errorf("result %+v", res)
			}
			done <- err
		}()
	}
	for range runs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// An image whose sandboxes cannot live is the operator's to mend, and the
// caller hears of it in words.
func TestSandboxEndsAtOnce(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.Engine = &faultyEngine{Engine: o.Engine, connect: func(context.Context, string) (net.Conn, error) {
			return nil, engine.ErrNotRunning
		}}
	})
	_, err := b.Run(t.Context(), bash("true"))
	var refused *RequestError
	if !errors.As(err, &refused) || !strings.Contains(refused.Message, `image "mini" ends as soon as it begins`) {
		t.Errorf("got %v", err)
	}
}

// Fault 22: where the operator asked for strictness, nothing runs without its
// limits.
func TestStrict(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Strict = true })
	_, err := b.Run(t.Context(), bash("true"))
	var refused *RequestError
	if !errors.As(err, &refused) || !strings.Contains(refused.Message, "does not provide memory (not enforced: this engine is for tests), cpus") {
		t.Errorf("got %v", err)
	}
}

// A script that kills what watches over it is told what came of it.
func TestKilledSupervisor(t *testing.T) {
	res := newBench(t).must(t, bash("kill -9 $PPID; sleep 2"))
	if res.Success || !strings.HasPrefix(res.Error, "the sandbox says: ") {
		t.Errorf("got %+v", res)
	}
}
