package sandbox

import (
	"context"
	"strings"
	"testing"

	"belljar/internal/engine"
)

// A script that fails for want of something which a sandbox does not have, or
// has elsewhere, hears of it; one that fails for reasons of its own does not.
func TestAdvice(t *testing.T) {
	b := newBench(t, func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, inspect: func(ctx context.Context, id string) (engine.Receipt, error) {
			r, err := real.Inspect(ctx, id)
			r.Network = "none (loopback only)"
			return r, err
		}}
	})
	const (
		input   = "input files stand in the directory input: this one is input/tables/data.csv"
		network = "a sandbox has no network"
	)
	for _, tc := range []struct{ said, want string }{
		{"FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", input},
		{"FileNotFoundError: [Errno 2] No such file or directory: 'input/data.csv'", input},
		{"FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/data.csv'", input},
		{"  cannot open file 'data.csv': No such file or directory", input},
		{`"main.gp" line 1: warning: Cannot find or open file "data.csv"`, input},
		{"cat: data.csv: No such file or directory", input},
		{"main.sh: line 1: ./data.csv: No such file or directory", input},
		{"SystemError: opening file \"/sandbox/data.csv\": No such file or directory", input},
		{"error: load: unable to find file data.csv", input},
		{"! LaTeX Error: File `data.csv' not found.", input},
		{"Error: ‘data.csv’ does not exist in current working directory", input},
		{"No such file or directory: 'input/tables/data.csv'", ""},
		{"No such file or directory: '/sandbox/input/tables/data.csv'", ""},
		{"No such file or directory: 'mydata.csv'", ""},
		{"No such file or directory: 'data.csv.gz'", ""},
		{"    df = read('data.csv')\nKeyError: column 'x' not found", ""},
		{"No such file or directory: '/mnt/data/plot.png'", "files to give back go to /sandbox/output"},
		{"OSError: [Errno 28] No space left on device", "a sandbox has 1024 MiB on its disk and 512 MiB in /tmp"},
		{"main.sh: fork: Resource temporarily unavailable", "a sandbox may have 512 processes and threads"},
		{"RuntimeError: can't start new thread", "a sandbox may have 512 processes and threads"},
		{"socket.gaierror: [Errno -3] Temporary failure in name resolution", network},
		{"curl: (6) Could not resolve host: example.org", network},
		{"OSError: [Errno 101] Network is unreachable", network},
		{"ModuleNotFoundError: No module named 'requests'", network},
		{"Error in library(nope) : there is no package called ‘nope’", network},
		{"main.sh: line 1: frobnicate: command not found", network},
		{"EOFError: EOF when reading a line", "the script reads its standard input, which is the argument stdin, and that is empty"},
		{"_tkinter.TclError: no display name and no $DISPLAY environment variable", "a sandbox has no display"},
		{"ZeroDivisionError: division by zero", ""},
		{"name resolution of symbols failed" + strings.Repeat("\nlater", 2000), ""},
		{"", ""},
	} {
		r := Request{Runtime: "bash", Script: "cat input/said >&2; exit 1", Inputs: []Input{
			{Name: "said", Data: []byte(tc.said)}, {Name: "tables/data.csv"},
		}}
		res := b.must(t, r)
		if res.ReturnCode != 1 || tc.want == "" && res.Error != "" || !strings.HasPrefix(res.Error, tc.want) && !strings.HasSuffix(res.Error, tc.want) {
			t.Errorf("%.100q: %q, want %q", tc.said, res.Error, tc.want)
		}
		r.Script = "cat input/said >&2"
		if res := b.must(t, r); res.Error != "" {
			t.Errorf("%.100q: success, but %q", tc.said, res.Error)
		}
	}
	r := bash("echo EOFError: EOF when reading a line >&2; exit 1")
	r.Stdin = "one line"
	if res := b.must(t, r); res.Error != "" {
		t.Errorf("with stdin: %q", res.Error)
	}
	if res := b.must(t, bash("kill -SEGV $$")); res.ReturnCode != 139 || res.Error != "ended by signal 11 (segmentation fault)" {
		t.Errorf("a signal: %d, %q", res.ReturnCode, res.Error)
	}
}

// Where there is a network, nobody is told that there is none.
func TestAdviceWithNetwork(t *testing.T) {
	b := newBench(t)
	for said, want := range map[string]string{
		"Temporary failure in name resolution": "",
		"No module named 'x'":                  "list_runtimes tells what is installed",
	} {
		if res := b.must(t, bash("echo \""+said+"\" >&2; exit 1")); res.Error != want {
			t.Errorf("%s: %q, want %q", said, res.Error, want)
		}
	}
}
