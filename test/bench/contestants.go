package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// contestant is a way to run a workload.
type contestant struct {
	name string
	// about says what exactly is timed.
	about string
	// warm is the server whose pool must have a sandbox of the right kind
	// before a timed run; nil if there is none.
	warm *server
	// prepare goes before a timed run, check after it; either may be nil.
	prepare func(context.Context, workload) error
	run     func(context.Context, workload) error
	check   func(context.Context, workload) error
}

// The contestants' names.
const (
	warmName   = "Belljar, warm"
	coldName   = "Belljar, cold"
	bareName   = "bare interpreter"
	ociName    = "OCI runtime by hand"
	dockerName = "docker run"
	podmanName = "podman run"
)

// absence is a contestant that could not take part.
type absence struct{ name, reason string }

// belljarWarm runs scripts in sandboxes of the pool. A run that found none of
// its kind is an error: it would be a figure for something else.
func belljarWarm(s *server) contestant {
	var hits float64
	count := func(ctx context.Context, w workload) (float64, error) {
		all, err := s.pool(ctx, "hits_total")
		return all[w.lane()], err
	}
	return contestant{
		name: warmName, about: "`run_script` through MCP over HTTP; a sandbox of the right kind is ready",
		warm: s, run: s.run,
		prepare: func(ctx context.Context, w workload) (err error) {
			hits, err = count(ctx, w)
			return err
		},
		check: func(ctx context.Context, w workload) error {
			now, err := count(ctx, w)
			if err == nil && now != hits+1 {
				err = fmt.Errorf("the run did not find a %s sandbox for %s", w.lane().kind, w.language)
			}
			return err
		},
	}
}

// stream gives the script to a command on standard input.
func (w workload) stream(ctx context.Context, env, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(w.script)
	return w.finish(cmd)
}

// finish runs a command of the workload and checks what it prints.
func (w workload) finish(cmd *exec.Cmd) error {
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s, %s: %w: %s%s", cmd.Args[0], w.name, err, tail(out.String()), tail(errs.String()))
	}
	return w.printed(out.String())
}

// tail is the end of what a program printed.
func tail(s string) string { return s[max(0, len(s)-2000):] }
