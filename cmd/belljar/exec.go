package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/control"
	"belljar/internal/job"
)

type execCmd struct {
	Sandbox string            `short:"s" placeholder:"NAME" help:"Sandbox. Default: the default one."`
	Timeout *seconds          `short:"t" placeholder:"SECONDS" help:"Time limit. Default: BELLJAR_EXECUTE_TIMEOUT."`
	Dir     string            `short:"w" placeholder:"DIR" help:"Where to start. Default: /sandbox."`
	Env     map[string]string `short:"e" placeholder:"NAME=VALUE" help:"Variable to set. May be repeated."`
	Detach  bool              `short:"d" help:"Print the job's identifier and do not wait."`
	Command []string          `arg:"" passthrough:"" help:"Command and its arguments; a single argument is for bash."`
}

// Run executes a command and exits as it did.
func (c *execCmd) Run(s *session) error {
	request, err := c.request()
	if err != nil {
		return err
	}
	code := 0
	err = withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		reply, err := client.Execute(s.ctx, request, job.Wait{})
		if err != nil {
			return err
		}
		if c.Detach {
			fmt.Println(reply.ID)
			return nil
		}
		if request.Interactive {
			go pour(s.ctx, client, reply.ID, os.Stdin)
		}
		code, err = follow(s.ctx, client, reply.ID)
		return err
	})
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return err
}

func (c *execCmd) request() (job.CommandRequest, error) {
	r := job.CommandRequest{Subject: access.Owner, Sandbox: c.Sandbox, Dir: c.Dir, Env: c.Env}
	if c.Timeout != nil {
		if r.Timeout = time.Duration(*c.Timeout); r.Timeout <= 0 {
			return r, errors.New("--timeout: want more than 0 seconds")
		}
	}
	if len(c.Command) == 1 {
		r.Command = c.Command[0]
	} else {
		words := make([]string, len(c.Command))
		for i, arg := range c.Command {
			words[i] = quote(arg)
		}
		r.Command = strings.Join(words, " ")
	}
	// Somebody at a terminal has belljar shell for it.
	r.Interactive = !c.Detach && !isatty.IsTerminal(os.Stdin.Fd())
	return r, nil
}

// quote makes a word that bash takes as it is.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// pour writes what it reads to a job, until either has no more of it. A call
// waits for the job to read on; a terminal stays open behind the last of it.
func pour(ctx context.Context, client *control.Client, id string, from io.Reader) {
	buf := make([]byte, 256<<10)
	for {
		n, err := from.Read(buf)
		for data := buf[:n]; len(data) > 0 || err != nil; {
			taken, writeErr := client.Input(ctx, access.Owner, id, string(data), err != nil && len(data) == 0)
			if writeErr != nil || len(data) == 0 {
				return // the job tells why, by its end
			}
			data = data[taken:]
		}
	}
}

const (
	// followWait is how long a call waits for more output.
	followWait = 20 * time.Second
	// lastWords is how long a job has to end once it was interrupted.
	lastWords = 10 * time.Second
)

// follow prints what a job prints, from its beginning to its end, and returns
// its exit code. When ctx ends, the job is interrupted.
func follow(ctx context.Context, client *control.Client, id string) (int, error) {
	interrupted := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.Background(), lastWords)
		defer cancel()
		client.Kill(late, access.Owner, id, "INT")
	})
	defer interrupted()
	// The end of ctx is not the end of the job's output.
	ctx = context.WithoutCancel(ctx)
	if err := tail(ctx, client, id); err != nil {
		return 0, err
	}
	reply, err := client.Await(ctx, access.Owner, id, job.Wait{For: lastWords})
	switch {
	case err != nil:
		return 0, err
	case reply.Script != nil:
		return reply.Script.ReturnCode, nil
	case reply.Command == nil:
		return 0, fmt.Errorf("job %s has ended and its result is not there", id)
	}
	if reply.Command.Error != "" {
		fmt.Fprintln(os.Stderr, "belljar:", reply.Command.Error)
	}
	return reply.Command.ExitCode, nil
}

// tail prints what a job prints, from its beginning to its end.
func tail(ctx context.Context, client *control.Client, id string) error {
	var at agent.Cursor
	for {
		out, err := client.Read(ctx, access.Owner, id, at, agent.MaxChunk, followWait)
		if err != nil {
			return err
		}
		for _, part := range []struct {
			chunk agent.Chunk
			since int64
			to    *os.File
		}{{out.Stdout, at.Stdout, os.Stdout}, {out.Stderr, at.Stderr, os.Stderr}} {
			if lost := part.chunk.From - part.since; lost > 0 {
				fmt.Fprintf(os.Stderr, "belljar: %d bytes came faster than they were read, and were not kept\n", lost)
			}
			part.to.Write(part.chunk.Data)
		}
		at = out.Next()
		if out.State == agent.JobExited && at.Stdout >= out.Stdout.Bytes && at.Stderr >= out.Stderr.Bytes {
			return nil
		}
	}
}
