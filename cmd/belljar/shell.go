package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/control"
	"belljar/internal/job"
)

type shellCmd struct {
	Sandbox string `short:"s" placeholder:"NAME" help:"Sandbox. Default: the default one."`
}

// Run opens a shell in a workspace on this terminal.
func (c *shellCmd) Run(s *session) error {
	in, out := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	if !term.IsTerminal(in) || !term.IsTerminal(out) {
		return errors.New("shell is for a terminal; to run a command use: belljar exec COMMAND")
	}
	code := 0
	err := withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		reply, err := client.Execute(s.ctx, job.CommandRequest{
			Subject: access.Owner, Sandbox: c.Sandbox, Command: "exec bash -l", Terminal: windowSize(out),
			Env: map[string]string{"TERM": os.Getenv("TERM"), "COLORTERM": os.Getenv("COLORTERM")},
		}, job.Wait{})
		if err != nil {
			return err
		}
		before, err := term.MakeRaw(in)
		if err != nil {
			return err
		}
		defer term.Restore(in, before)
		code, err = attach(s.ctx, client, reply.ID, out)
		return err
	})
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return err
}

// windowSize is that of the terminal, or a usual one.
func windowSize(fd int) *agent.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<15 || rows > 1<<15 {
		return &agent.Size{Rows: 24, Cols: 80}
	}
	return &agent.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// attach joins this terminal to that of a job until the job ends, and returns
// its exit code. When ctx ends, it hangs up.
func attach(ctx context.Context, client *control.Client, id string, out int) (int, error) {
	calls, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() { client.Kill(calls, access.Owner, id, "HUP") })
	defer stop()
	go pour(calls, client, id, os.Stdin)
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	defer signal.Stop(changes)
	go func() {
		for {
			select {
			case <-changes:
				client.Resize(calls, access.Owner, id, *windowSize(out))
			case <-calls.Done():
				return
			}
		}
	}()
	if err := tail(calls, client, id); err != nil {
		return 0, err
	}
	reply, err := client.Await(calls, access.Owner, id, job.Wait{For: lastWords})
	if err != nil || reply.Command == nil {
		return 0, err
	}
	return reply.Command.ExitCode, nil
}
