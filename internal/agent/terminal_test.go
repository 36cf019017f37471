package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// reader collects a job's output.
type reader struct {
	t  *testing.T
	sb *sandbox
	id string
	at Cursor
	to strings.Builder
}

// until reads until the output has some words.
func (r *reader) until(words string) {
	r.t.Helper()
	ctx := testContext(r.t)
	for !strings.Contains(r.to.String(), words) {
		out, err := r.sb.Output(ctx, r.id, r.at, 4096, true)
		if err != nil {
			r.t.Fatalf("%v; so far: %q", err, r.to.String())
		}
		r.to.Write(out.Stdout.Data)
		r.at = out.Next()
		if out.State == JobExited && !strings.Contains(r.to.String(), words) {
			r.t.Fatalf("it has ended without %q: %q", words, r.to.String())
		}
	}
	r.to.Reset()
}

func (r *reader) types(text string) {
	r.t.Helper()
	if n, err := r.sb.WriteInput(testContext(r.t), r.id, []byte(text), false); err != nil || n != int64(len(text)) {
		r.t.Fatalf("typing %q: %d, %v", text, n, err)
	}
}

func TestTerminal(t *testing.T) {
	sb := newSandbox(t)
	spec := JobSpec{ID: "shell", Argv: []string{"bash", "--norc", "-i"}, Timeout: time.Minute, Keep: 1 << 10, LogBytes: 1 << 20,
		Env: []string{"PS1=ready> ", "TERM=xterm-256color"}, Terminal: &Size{Rows: 30, Cols: 100}}
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, sb: sb, id: "shell"}
	r.until("ready> ")
	r.types("test -t 0 -a -t 1 -a -t 2 && echo all $((1+1)) ends\n")
	r.until("all 2 ends")
	r.types("stty size\n")
	r.until("30 100")
	r.types("trap 'echo is $(stty size)' WINCH; echo set$((1+0))\n")
	r.until("set1")
	if err := sb.ResizeJob(testContext(t), "shell", Size{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	r.until("is 40 120")
	// Job control: the key interrupts what is in front, and not the shell.
	for _, key := range []string{"\x03", "\x1a"} {
		r.types("sh -c 'echo go$((1+0)); exec sleep 1000'\n")
		r.until("go1")
		r.types(key)
		if key == "\x03" {
			r.until("ready> ")
		}
	}
	r.until("Stopped")
	r.types("kill -9 %1; wait; echo none$((1+0))\n")
	r.until("none1")
	r.types("exit 6\n")
	st, err := sb.WaitJob(testContext(t), "shell")
	if err != nil || st.ExitCode != 6 || st.Stderr.Bytes != 0 {
		t.Errorf("ended with %+v, %v", st, err)
	}
	if _, err := sb.WriteInput(testContext(t), "shell", []byte("x"), false); !errors.Is(err, ErrNoInput) {
		t.Errorf("typing after its end: %v", err)
	}
}

// What reads the terminal ends at its end, which is a character, and what is
// left running is hung up on.
func TestTerminalEnds(t *testing.T) {
	sb := newSandbox(t)
	spec := JobSpec{ID: "cat", Argv: []string{"bash", "-c", "sleep 1000 & echo $! >pid; cat; echo over"}, Timeout: time.Minute, Keep: 1 << 10, Terminal: &Size{24, 80}}
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, sb: sb, id: "cat"}
	r.types("hello\n")
	r.until("hello\r\nhello\r\n") // as typed, and as printed
	r.types("\x04")
	r.until("over")
	st, err := sb.WaitJob(testContext(t), "cat")
	if err != nil || st.ExitCode != 0 {
		t.Fatalf("ended with %+v, %v", st, err)
	}
	pid := sb.pids(t, "pid", 1)[0]
	if err := sb.SignalJob(context.Background(), "cat", 9); err != nil {
		t.Fatal(err)
	}
	await(t, "the process left behind to end", func() bool { return !alive(pid) })
}
