package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestInput(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("asks", `read -p "name? " name; echo "hello $name"; cat`)
	spec.Input = true
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	for _, in := range []struct {
		text string
		last bool
	}{{"Ada\n", false}, {"and the rest", true}} {
		if n, err := sb.WriteInput(testContext(t), "asks", []byte(in.text), in.last); err != nil || n != int64(len(in.text)) {
			t.Fatalf("%d bytes taken, %v", n, err)
		}
	}
	st, err := sb.WaitJob(testContext(t), "asks")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(st.Stdout.Head), "hello Ada\nand the rest"; got != want || st.ExitCode != 0 {
		t.Errorf("printed %q with exit code %d, want %q", got, st.ExitCode, want)
	}
	for _, id := range []string{"asks", "deaf"} {
		if id == "deaf" {
			sb.run(t, bash(id, "true"))
		}
		if _, err := sb.WriteInput(testContext(t), id, []byte("x"), false); !errors.Is(err, ErrNoInput) {
			t.Errorf("writing to %s: %v, want ErrNoInput", id, err)
		}
	}
	if _, err := sb.WriteInput(testContext(t), "nobody", nil, true); !errors.Is(err, ErrNoJob) {
		t.Errorf("writing to nobody: %v, want ErrNoJob", err)
	}
}

// TestInputUnread writes more than a pipe holds to a command that reads none.
func TestInputUnread(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("busy", "sleep 1000")
	spec.Input = true
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := sb.WriteInput(context.Background(), "busy", make([]byte, 1<<20), false)
		ended <- err
	}()
	if err := sb.SignalJob(testContext(t), "busy", 9); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended: // as soon as nobody can read any more
		if !errors.Is(err, ErrNoInput) {
			t.Errorf("%v, want ErrNoInput", err)
		}
	case <-time.After(inputTime / 2):
		t.Error("the writer waits for a command that was ended")
	}
}

// follow reads a job's output by cursors to its end.
func follow(t *testing.T, sb *sandbox, id string, most int) (stdout, stderr []byte, lost int64) {
	t.Helper()
	var at Cursor
	for {
		out, err := sb.Output(testContext(t), id, at, most, true)
		if err != nil {
			t.Fatal(err)
		}
		lost += out.Stdout.From - at.Stdout
		stdout, stderr = append(stdout, out.Stdout.Data...), append(stderr, out.Stderr.Data...)
		at = out.Next()
		if out.State == JobExited && at == (Cursor{out.Stdout.Bytes, out.Stderr.Bytes}) {
			return stdout, stderr, lost
		}
	}
}

func TestOutputByCursor(t *testing.T) {
	sb := newSandbox(t)
	for _, test := range []struct {
		name     string
		logBytes int64
		lost     bool
	}{{"log", 1 << 20, false}, {"short-log", 4000, true}, {"no-log", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			spec := bash(test.name, "seq 5000; echo over >&2")
			spec.LogBytes = test.logBytes
			sb.run(t, spec)
			var want strings.Builder
			for i := range 5000 {
				fmt.Fprintln(&want, i+1)
			}
			stdout, stderr, lost := follow(t, sb, test.name, 700)
			if string(stderr) != "over\n" {
				t.Errorf("stderr %q", stderr)
			}
			if got := int64(len(stdout)) + lost; got != int64(want.Len()) || (lost > 0) != test.lost {
				t.Errorf("%d bytes read and %d lost of %d", len(stdout), lost, want.Len())
			}
			// What is there is right, at both ends.
			n := min(len(stdout), int(max(test.logBytes, int64(spec.Keep))))
			if !strings.HasPrefix(want.String(), string(stdout[:n])) || !strings.HasSuffix(want.String(), string(stdout[len(stdout)-spec.Keep:])) {
				t.Errorf("read something else: %.50q…%q", stdout, stdout[len(stdout)-50:])
			}
		})
	}
}

// TestOutputWaits follows a job that prints when it is told to.
func TestOutputWaits(t *testing.T) {
	sb := newSandbox(t)
	spec := bash("steps", "while read line; do echo got $line; done")
	spec.Input, spec.LogBytes = true, 1<<10
	if err := sb.StartJob(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	var at Cursor
	for _, word := range []string{"one", "two"} {
		answer := make(chan Output, 1)
		go func() {
			out, _ := sb.Output(context.Background(), "steps", at, 100, true)
			answer <- out
		}()
		if _, err := sb.WriteInput(testContext(t), "steps", []byte(word+"\n"), false); err != nil {
			t.Fatal(err)
		}
		select {
		case out := <-answer:
			if got := string(out.Stdout.Data); got != "got "+word+"\n" || out.State != JobRunning {
				t.Errorf("read %q of a job that is %s", got, out.State)
			}
			at = out.Next()
		case <-time.After(patience):
			t.Fatal("no news")
		}
	}
	// A log that the script has changed is its own affair; the rest goes on.
	if err := os.Remove(sb.server.path(LogDir + "/steps/stdout")); err != nil {
		t.Fatal(err)
	}
	out, err := sb.Output(testContext(t), "steps", Cursor{}, 100, false)
	if err != nil || !bytes.HasPrefix([]byte("got one\ngot two\n"), out.Stdout.Data) {
		t.Errorf("without a log: %+v, %v", out, err)
	}
}
