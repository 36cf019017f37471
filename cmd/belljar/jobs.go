package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"belljar/internal/access"
	"belljar/internal/control"
	"belljar/internal/job"
)

type psCmd struct {
	All bool `short:"a" help:"Also those that have ended."`
}

// Run lists jobs.
func (c *psCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		list, err := client.List(s.ctx, access.Owner)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "JOB\tSTATUS\tTIME\tSANDBOX\tCOMMAND")
		for _, j := range list {
			if c.All || j.Status == job.Running {
				took := time.Duration(j.Seconds * float64(time.Second)).Round(time.Second / 10)
				fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%s\n", j.ID, j.Status, took, j.Sandbox, j.Title)
			}
		}
		return w.Flush()
	})
}

type logsCmd struct {
	Job string `arg:"" help:"Job, as ps names it."`
}

// Run prints what a job has printed, and goes on until it ends.
func (c *logsCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		return tail(s.ctx, client, c.Job)
	})
}

type killCmd struct {
	Job    string `arg:"" help:"Job, as ps names it."`
	Signal string `short:"s" help:"Signal for the command's process group, such as INT. Default: KILL, for all that the job has started."`
}

// Run ends a job.
func (c *killCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		_, err := client.Kill(s.ctx, access.Owner, c.Job, c.Signal)
		return err
	})
}
