package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"

	"belljar/internal/control"
	"belljar/internal/image"
)

type imageCmd struct {
	Build buildCmd      `cmd:"" help:"Build an image from a Containerfile."`
	Pull  pullCmd       `cmd:"" help:"Pull an image from its registry."`
	Load  loadCmd       `cmd:"" help:"Load the images of a Docker or OCI archive."`
	List  listImagesCmd `cmd:"" help:"List the images."`
	Rm    rmCmd         `cmd:"" help:"Remove an image, or a name of it."`
}

type buildCmd struct {
	File    string            `short:"f" type:"path" placeholder:"FILE" help:"Containerfile. Default: Containerfile, or Dockerfile, in the context."`
	Context string            `type:"path" placeholder:"DIR" help:"Directory that COPY reads from. Default: the Containerfile's."`
	Arg     map[string]string `name:"build-arg" placeholder:"NAME=VALUE" help:"Value of an ARG."`
	NoCache bool              `help:"Run every step again."`
	Name    string            `arg:"" help:"Name to give to the image."`
}

// Run builds an image.
func (c *buildCmd) Run(s *session) error {
	file, err := c.containerfile()
	if err != nil {
		return err
	}
	o := image.BuildOptions{Name: c.Name, Containerfile: file, Context: c.Context, Args: c.Arg, NoCache: c.NoCache}
	return withProgress(s, func(client *control.Client, p image.Progress) ([]image.Image, error) {
		img, err := client.Build(s.ctx, o, p)
		return []image.Image{img}, err
	})
}

// containerfile returns the absolute path of the file to build from.
func (c *buildCmd) containerfile() (string, error) {
	if c.File != "" {
		_, err := os.Stat(c.File)
		return c.File, err
	}
	dir := c.Context
	if dir == "" {
		dir = "."
	}
	for _, name := range []string{"Containerfile", "Dockerfile"} {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no Containerfile in %s: name one with -f", dir)
}

type pullCmd struct {
	Ref string `arg:"" help:"Image, such as debian:trixie-slim."`
}

// Run pulls an image.
func (c *pullCmd) Run(s *session) error {
	return withProgress(s, func(client *control.Client, p image.Progress) ([]image.Image, error) {
		img, err := client.Pull(s.ctx, c.Ref, p)
		return []image.Image{img}, err
	})
}

type loadCmd struct {
	Archive string `arg:"" type:"existingfile" help:"Docker or OCI archive, gzip or not, or an OCI layout's directory."`
}

// Run loads the images of an archive.
func (c *loadCmd) Run(s *session) error {
	path, err := filepath.Abs(c.Archive)
	if err != nil {
		return err
	}
	return withProgress(s, func(client *control.Client, p image.Progress) ([]image.Image, error) {
		return client.Load(s.ctx, path, p)
	})
}

type listImagesCmd struct{}

// Run lists the images.
func (listImagesCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		images, err := client.Images(s.ctx)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tCREATED\tSOURCE")
		for _, img := range images {
			fmt.Fprintf(t, "%s\t%s\t%d MiB\t%s\t%s\n", strings.Join(img.Names, " "), short(img.Digest),
				img.Bytes>>20, img.Created.Local().Format(time.DateTime), origin(img))
		}
		return t.Flush()
	})
}

// origin says where an image came from, and what it lacks.
func origin(img image.Image) string {
	var without []string
	for _, m := range img.Missing {
		without = append(without, m.What)
	}
	if len(without) == 0 {
		return img.Source
	}
	return img.Source + "; without " + strings.Join(without, ", ")
}

func short(digest string) string {
	_, hex, _ := strings.Cut(digest, ":")
	return hex[:min(12, len(hex))]
}

type rmCmd struct {
	Ref []string `arg:"" help:"Names or digests."`
}

// Run removes images.
func (c *rmCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		var errs []error
		for _, ref := range c.Ref {
			errs = append(errs, client.RemoveImage(s.ctx, ref))
		}
		return errors.Join(errs...)
	})
}

// withProgress makes a call that reports progress, and prints what came of it.
func withProgress(s *session, f func(*control.Client, image.Progress) ([]image.Image, error)) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		view := newProgress(os.Stderr, isatty.IsTerminal(os.Stderr.Fd()))
		images, err := f(client, view.event)
		view.end(err)
		for _, img := range images {
			if err == nil {
				fmt.Printf("%s  %s  %d MiB\n", strings.Join(img.Names, " "), short(img.Digest), img.Bytes>>20)
			}
		}
		return err
	})
}

// progress shows events: on a terminal as a bar with the latest line of
// output, elsewhere as a line per step.
type progress struct {
	out  io.Writer
	bar  *progressbar.ProgressBar // nil off a terminal
	step string
	tail []string // the latest output, shown if the work fails
}

const tailLines = 40

func newProgress(out io.Writer, terminal bool) *progress {
	p := &progress{out: out}
	if terminal {
		p.bar = progressbar.NewOptions64(-1, progressbar.OptionSetWriter(out), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(20), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false),
			progressbar.OptionThrottle(80*time.Millisecond), progressbar.OptionSetDescription("starting"))
	}
	return p
}

func (p *progress) event(e image.Event) {
	if e.Output {
		p.tail = append(p.tail, e.Text)
		p.tail = p.tail[max(0, len(p.tail)-tailLines):]
		if p.bar != nil {
			p.bar.Describe(cut(e.Text, 40))
		}
		return
	}
	step := strings.Join(strings.Fields(e.Text), " ")
	if e.Steps > 0 {
		// What is said between steps is worth its length; a command need only
		// be recognised.
		step = cut(fmt.Sprintf("[%d/%d] %s", e.Step, e.Steps, e.Text), 110)
	}
	if step != p.step {
		p.step, p.tail = step, nil
		if p.bar != nil {
			p.bar.Clear()
		}
		fmt.Fprintln(p.out, step)
	}
	if p.bar == nil {
		return
	}
	switch {
	case e.Total > 0:
		p.bar.ChangeMax64(e.Total)
		p.bar.Set64(e.Done)
	case e.Steps > 0:
		p.bar.ChangeMax(e.Steps)
		p.bar.Set(e.Step - 1)
	}
}

func (p *progress) end(err error) {
	if p.bar != nil {
		p.bar.Clear()
		p.bar.Exit()
	}
	if err == nil {
		return
	}
	for _, line := range p.tail {
		fmt.Fprintln(p.out, "  "+line)
	}
}

// cut makes one short line of a text.
func cut(s string, width int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}
