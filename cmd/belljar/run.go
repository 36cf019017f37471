package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"

	"belljar/internal/access"
	"belljar/internal/control"
	"belljar/internal/job"
	"belljar/internal/sandbox"
)

type runCmd struct {
	Runtime string   `arg:"" help:"Runtime, as list-runtimes names it."`
	File    string   `arg:"" help:"Script; - reads standard input."`
	Input   []string `short:"i" sep:"none" placeholder:"FILE" help:"File to give to the script, as input/NAME; NAME=FILE gives it another name. May be repeated."`
	Output  string   `short:"o" default:"output" placeholder:"DIR" help:"Directory to write the script's files to."`
	Stdin   string   `placeholder:"FILE" help:"File that the script reads from its standard input; - is this command's own."`
	Timeout *seconds `short:"t" placeholder:"SECONDS" help:"Time limit. Default: DEFAULT_TIMEOUT."`
}

// Run runs a script and exits as it did.
func (c *runCmd) Run(s *session) error {
	request, err := c.request()
	if err != nil {
		return err
	}
	var code int
	err = withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		done := spin("running " + c.File)
		reply, err := client.Run(s.ctx, request, job.Wait{For: math.MaxInt64})
		done()
		if err != nil {
			return err
		}
		result := reply.Script
		code = result.ReturnCode
		return c.show(s.ctx, client, result)
	})
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return err
}

func (c *runCmd) request() (sandbox.Request, error) {
	r := sandbox.Request{Subject: access.Owner, Runtime: c.Runtime, AllFiles: true}
	if c.Timeout != nil {
		if r.Timeout = time.Duration(*c.Timeout); r.Timeout <= 0 {
			return r, errors.New("--timeout: want more than 0 seconds")
		}
	}
	script, err := readFile(c.File)
	if err != nil {
		return r, fmt.Errorf("reading the script: %w", err)
	}
	r.Script = string(script)
	if c.Stdin != "" {
		if c.Stdin == "-" && c.File == "-" {
			return r, errors.New("--stdin -: the script itself comes from standard input")
		}
		stdin, err := readFile(c.Stdin)
		if err != nil {
			return r, fmt.Errorf("reading what the script shall read: %w", err)
		}
		r.Stdin = string(stdin)
	}
	for _, arg := range c.Input {
		name, file, named := strings.Cut(arg, "=")
		if !named {
			name, file = filepath.Base(arg), arg
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return r, fmt.Errorf("reading an input file: %w", err)
		}
		r.Inputs = append(r.Inputs, sandbox.Input{Name: name, Data: data})
	}
	return r, nil
}

// readFile reads a file, or standard input if it is called "-".
func readFile(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}

// show prints what the script printed and writes its files.
func (c *runCmd) show(ctx context.Context, client *control.Client, r *sandbox.Result) error {
	io.WriteString(os.Stdout, r.Stdout)
	io.WriteString(os.Stderr, r.Stderr)
	for _, f := range r.OutputFiles {
		if err := c.write(ctx, client, f); err != nil {
			return fmt.Errorf("writing %s: %w", f.Name, err)
		}
		fmt.Fprintf(os.Stderr, "%s  %d bytes\n", filepath.Join(c.Output, f.Name), f.Bytes)
	}
	for _, denied := range r.NetworkDenied {
		fmt.Fprintln(os.Stderr, "denied on the network:", denied)
	}
	for _, note := range r.Notes {
		fmt.Fprintln(os.Stderr, "note:", note)
	}
	if r.Error != "" {
		fmt.Fprintln(os.Stderr, "belljar:", r.Error)
	}
	return nil
}

// write writes a file below the output directory. Its name is the script's
// word, so it is kept inside by the kernel.
func (c *runCmd) write(ctx context.Context, client *control.Client, f sandbox.File) error {
	var from io.Reader
	if f.Text != nil {
		from = strings.NewReader(*f.Text)
	} else {
		body, err := client.Artifact(ctx, f.URL)
		if err != nil {
			return err
		}
		defer body.Close()
		from = body
	}
	root, err := openOutput(c.Output)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(path.Dir(f.Name), 0o755); err != nil {
		return err
	}
	out, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return giveToCaller(root, f.Name)
}

// openOutput opens the output directory, making it if it is missing.
func openOutput(dir string) (*os.Root, error) {
	_, missing := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err == nil && missing != nil {
		err = giveToCaller(root, ".")
	}
	return root, err
}

// giveToCaller makes the one who called sudo, if somebody did, the owner of a
// file and of the directories that lead to it.
func giveToCaller(root *os.Root, name string) error {
	uid, noUser := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, noGroup := strconv.Atoi(os.Getenv("SUDO_GID"))
	if noUser != nil || noGroup != nil || os.Geteuid() != 0 {
		return nil
	}
	for {
		if err := root.Lchown(name, uid, gid); err != nil {
			return err
		}
		if name = path.Dir(name); name == "." {
			return nil
		}
	}
}

// spin shows a spinner on a terminal until the returned function is called.
func spin(what string) (stop func()) {
	if !isatty.IsTerminal(os.Stderr.Fd()) {
		return func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSpinnerType(14), progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(true))
	return func() { bar.Finish() }
}

type runtimesCmd struct{}

// Run lists the runtimes.
func (runtimesCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		all, err := client.Runtimes(s.ctx)
		for _, r := range all {
			state := r.Version
			if !r.Available {
				state = "not available: " + r.Reason
			}
			fmt.Printf("%-10s .%-4s %s\n", r.Name, r.Extension, state)
			for _, part := range r.Missing {
				fmt.Println("           missing:", part)
			}
		}
		return err
	})
}

type gcCmd struct{}

// Run removes what has expired.
func (gcCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		n, err := client.Sweep(s.ctx)
		if err == nil {
			fmt.Println("removed", n, "expired files")
		}
		return err
	})
}
