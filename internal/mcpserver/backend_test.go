package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"belljar/internal/engine"
	"belljar/internal/job"
	"belljar/internal/sandbox"
)

// echoBackend is a backend without sandboxes. Its one language has a command
// a script: print, inputs, picture, fail, hang, break.
type echoBackend struct {
	Backend               // for what no test asks of it
	hanging chan struct{} // receives when a script hangs
	ended   chan error    // receives why a hanging script ended
}

func newEchoBackend() *echoBackend {
	return &echoBackend{hanging: make(chan struct{}, 1), ended: make(chan error, 1)}
}

var receipt = engine.Receipt{
	Memory:  engine.Limit{Value: 2 << 30, Enforced: true, Note: "swap and /tmp count"},
	CPUs:    engine.Limit{Value: 2, Enforced: true},
	PIDs:    engine.Limit{Value: 512, Enforced: true},
	Tmp:     engine.Limit{Value: 512 << 20, Enforced: true},
	Disk:    engine.Limit{Value: 1 << 30, Enforced: true},
	Inodes:  engine.Limit{Value: 65536, Enforced: true},
	Network: "none",
}

func (e *echoBackend) Run(ctx context.Context, r sandbox.Request, w job.Wait) (job.Reply, error) {
	if w.Tell != nil {
		w.Tell(job.Progress{Elapsed: time.Second, Limit: r.Timeout, Line: "half of it"})
	}
	res, err := e.run(ctx, r)
	return job.Reply{ID: "job-echo", Kind: job.Script, Status: job.Exited, Script: res}, err
}

func (e *echoBackend) run(ctx context.Context, r sandbox.Request) (*sandbox.Result, error) {
	if r.Runtime != "echo" {
		return nil, &sandbox.RequestError{Message: fmt.Sprintf("unknown runtime %q; known are echo", r.Runtime)}
	}
	timeout := r.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	res := &sandbox.Result{
		Success:     true,
		OutputFiles: []sandbox.File{},
		DurationMS:  1234,
		Limits: sandbox.Limits{Receipt: receipt, TimeoutSeconds: timeout.Seconds(), OutputBytes: 64 << 10,
			LogBytes: 16 << 20, Files: 500, FileBytes: 256 << 20, FilesBytes: 1 << 30},
	}
	command, rest, _ := strings.Cut(r.Script, " ")
	switch command {
	case "print":
		res.Stdout = rest + r.Stdin
	case "inputs":
		for _, in := range r.Inputs {
			res.Stdout += fmt.Sprintf("%s: %d bytes, starting %.10q\n", in.Name, len(in.Data), in.Data)
		}
	case "picture":
		text := "a,b\n1,2\n"
		res.OutputFiles = []sandbox.File{
			{Name: "data.csv", Bytes: 8, SHA256: strings.Repeat("d", 64), MIME: "text/csv", Text: &text},
			{Name: "plot.png", Bytes: 70000, SHA256: strings.Repeat("e", 64), MIME: "image/png", URL: "http://host/sandbox-out/TOKEN/plot.png", ExpiresIn: 3600},
		}
		res.Images = []sandbox.Image{{Name: "plot.png", MIME: "image/png", Data: []byte("\x89PNG picture")}}
		res.Notes = []string{"left out: 3 more files, since a run may give back 500 at most; pack them into an archive"}
	case "fail":
		res.Success, res.ReturnCode, res.Stderr = false, 1, "Traceback: line 1 of main.py\n"
	case "hang":
		e.hanging <- struct{}{}
		<-ctx.Done()
		e.ended <- ctx.Err()
		return nil, ctx.Err()
	case "break":
		return nil, errors.New("dial unix /run/secret.sock: connection refused")
	}
	return res, nil
}

func (e *echoBackend) Runtimes(context.Context) ([]sandbox.RuntimeInfo, error) {
	limits := sandbox.Limits{Receipt: receipt, TimeoutSeconds: 60, OutputBytes: 64 << 10,
		LogBytes: 16 << 20, Files: 500, FileBytes: 256 << 20, FilesBytes: 1 << 30}
	return []sandbox.RuntimeInfo{
		{Name: "echo", Title: "Echo", Available: true, Version: "1.0", Extension: "echo", Image: "mini",
			Packages: []string{"loud 2.1", "soft 0.3"}, Missing: []string{"quiet: no route to its source"}, Limits: &limits, DefaultTimeout: 60, MaxTimeout: 300},
		{Name: "r", Title: "R", Reason: `Rscript is not installed in the image "mini"`, Extension: "R", Image: "mini",
			DefaultTimeout: 60, MaxTimeout: 300},
	}, nil
}
