package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gated is a job whose command says when it got to the gate and when it got
// through.
func gated(id, after string) JobSpec {
	spec := bash(id, `gate=$BELLJAR_GATE; unset BELLJAR_GATE; echo loaded; while read -r _; do :; done < "$gate"; `+after)
	spec.Gate = true
	return spec
}

func TestGateHoldsTheCommand(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	if err := sb.WriteFile(ctx, "/sandbox/work", 0o644, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	spec := gated("g", `cat; cat work; env | grep -c BELLJAR; ls "$gate"`)
	spec.Stdin = "/sandbox/work"
	if err := sb.StartJob(ctx, spec); err != nil {
		t.Fatal(err)
	}
	st, err := sb.WaitGate(ctx, "g")
	if err != nil || st.State != JobWaiting || string(st.Stdout.Head) != "loaded\n" {
		t.Fatalf("at the gate: %+v, %v", st, err)
	}
	// What arrives before the opening is seen by who had the file open.
	if err := sb.fill(ctx, "/sandbox/work", "work\n"); err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	if err := sb.OpenGate(ctx, "g", patience); err != nil {
		t.Fatal(err)
	}
	st, err = sb.WaitJob(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(st.Stdout.Head); got != "loaded\nwork\nwork\n0\n" {
		t.Errorf("stdout %q", got)
	}
	if st.Duration > time.Since(opened) {
		t.Errorf("duration %v counts from before the opening, %v ago", st.Duration, time.Since(opened))
	}
	if err := sb.OpenGate(ctx, "g", patience); !errors.Is(err, ErrGate) {
		t.Errorf("a second opening: %v, want ErrGate", err)
	}
}

// What was printed before the gate shows in the status at the gate, though the
// two come by different ways.
func TestGateComesAfterOutput(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	for i := range 50 {
		id := fmt.Sprint("g", i)
		if err := sb.StartJob(ctx, gated(id, "")); err != nil {
			t.Fatal(err)
		}
		st, err := sb.WaitGate(ctx, id)
		if err != nil || string(st.Stdout.Head) != "loaded\n" {
			t.Fatalf("at the gate: %q, %v", st.Stdout.Head, err)
		}
		if err := sb.OpenGate(ctx, id, patience); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGateOfADeadCommandStaysShut(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	if err := sb.StartJob(ctx, gated("g", `echo ran >> ran`)); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.WaitGate(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if err := sb.SignalJob(ctx, "g", 9); err != nil {
		t.Fatal(err)
	}
	if err := sb.OpenGate(ctx, "g", patience); !errors.Is(err, ErrGate) {
		t.Errorf("got %v, want ErrGate", err)
	}
	if _, err := os.Stat(sb.file("ran")); err == nil {
		t.Error("the command got through")
	}
}

// A command that ends without coming to its gate, or takes its FIFO away,
// leaves nothing that waits: the sandbox's cleanup would hang.
func TestGateThatIsNeverReached(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	for id, script := range map[string]string{"quick": "exit 3", "thief": `rm "$BELLJAR_GATE"; exit 3`} {
		spec := bash(id, script)
		spec.Gate = true
		if err := sb.StartJob(ctx, spec); err != nil {
			t.Fatal(err)
		}
		st, err := sb.WaitGate(ctx, id)
		if err != nil || st.State != JobExited || st.ExitCode != 3 {
			t.Errorf("%s: got %+v, %v; want exit code 3", id, st, err)
		}
		if err := sb.OpenGate(ctx, id, patience); !errors.Is(err, ErrGate) {
			t.Errorf("%s: %v, want ErrGate", id, err)
		}
	}
}

func TestTimeLimitCountsFromTheGate(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	slow := gated("slow", "sleep 1000")
	early := gated("early", "true")
	early.Timeout = 100 * time.Millisecond // for waiting
	for _, spec := range []JobSpec{slow, early} {
		if err := sb.StartJob(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := sb.WaitJob(ctx, "early"); err != nil || !st.TimedOut {
		t.Errorf("nobody opened: %+v, %v; want a timeout", st, err)
	}
	if _, err := sb.WaitGate(ctx, "slow"); err != nil {
		t.Fatal(err)
	}
	if err := sb.OpenGate(ctx, "slow", 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.WaitJob(ctx, "slow"); err != nil || !st.TimedOut || st.ExitCode != 124 {
		t.Errorf("got %+v, %v; want a timeout", st, err)
	}
}

// fill writes a file in place.
func (sb *sandbox) fill(ctx context.Context, path, text string) error {
	return sb.WriteFiles(ctx, NewFile{Path: path, Mode: 0o600, Data: []byte(text), InPlace: true})
}

func TestWritingInPlaceKeepsTheFile(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	if err := sb.fill(ctx, "/sandbox/new", "one"); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(sb.file("new"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.fill(ctx, "/sandbox/new", "four"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(sb.file("new"))
	if err != nil || !os.SameFile(before, after) || after.Size() != 4 {
		t.Errorf("%v, %v: want the same file with 4 bytes", after, err)
	}
	// Nothing of what was there before is left behind.
	if err := sb.fill(ctx, "/sandbox/new", "2"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(sb.file("new")); err != nil || string(data) != "2" {
		t.Errorf("%q, %v: want what was written last", data, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(sb.file(""), "link")); err != nil {
		t.Fatal(err)
	}
	if err := sb.fill(ctx, "/sandbox/link", "x"); err == nil {
		t.Error("a symbolic link was followed")
	}
}

// What a command prints while it waits would come back as the output of a
// script that did not print it.
func TestGateOfACommandThatPrintsStaysShut(t *testing.T) {
	sb := newSandbox(t)
	ctx := testContext(t)
	for id, print := range map[string]string{"stdout": "echo late", "stderr": "echo late >&2"} {
		spec := bash(id, `mkfifo go done; (read -r _ < go; `+print+`; echo > done) & cat "$BELLJAR_GATE"; echo ran >> ran`)
		spec.Gate, spec.Dir = true, "/"+id
		if err := os.Mkdir(filepath.Join(sb.root, id), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := sb.StartJob(ctx, spec); err != nil {
			t.Fatal(err)
		}
		if st, err := sb.WaitGate(ctx, id); err != nil || st.State != JobWaiting {
			t.Fatalf("%s: %+v, %v", id, st, err)
		}
		if err := os.WriteFile(filepath.Join(sb.root, id, "go"), []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.ReadFile(filepath.Join(sb.root, id, "done")); err != nil {
			t.Fatal(err)
		}
		if err := sb.OpenGate(ctx, id, patience); !errors.Is(err, ErrGate) {
			t.Errorf("%s: got %v, want ErrGate", id, err)
		}
		if _, err := os.Stat(filepath.Join(sb.root, id, "ran")); err == nil {
			t.Errorf("%s: the command got through", id)
		}
	}
}
