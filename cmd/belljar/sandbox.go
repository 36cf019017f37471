package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"belljar/internal/access"
	"belljar/internal/control"
)

type sandboxCmd struct {
	List    sandboxListCmd    `cmd:"" aliases:"ls" help:"List workspaces."`
	Create  sandboxCreateCmd  `cmd:"" help:"Make a workspace."`
	Stop    sandboxStopCmd    `cmd:"" help:"End what runs in a workspace. Its files stay."`
	Rebuild sandboxRebuildCmd `cmd:"" help:"Put a workspace onto a newer or another image. Its /sandbox stays, all else is gone."`
	Delete  sandboxDeleteCmd  `cmd:"" aliases:"rm" help:"Delete a workspace with all its files."`
}

type sandboxListCmd struct{}

// Run lists workspaces.
func (sandboxListCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		list, err := client.ListSandboxes(s.ctx, access.Owner)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tSTATE\tIMAGE\tCREATED\tUSED\tID")
		for _, b := range list {
			image := b.Image
			if b.NewImage {
				image += " (newer exists)"
			}
			const minute = "2006-01-02 15:04"
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, b.State, image, b.Created.Local().Format(minute), b.Used.Local().Format(minute), b.ID)
		}
		return w.Flush()
	})
}

type sandboxCreateCmd struct {
	Name  string `arg:"" help:"1 to 40 of a-z, 0-9, - and _."`
	Image string `arg:"" optional:"" help:"What it starts from. Default: BELLJAR_WORKSPACE_IMAGE."`
}

// Run makes a workspace.
func (c *sandboxCreateCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		_, err := client.CreateSandbox(s.ctx, access.Owner, c.Name, c.Image)
		return err
	})
}

type sandboxStopCmd struct {
	Name  string `arg:"" help:"Workspace."`
	Force bool   `short:"f" help:"Also if jobs run in it: end them."`
}

// Run stops a workspace.
func (c *sandboxStopCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		_, err := client.StopSandbox(s.ctx, access.Owner, c.Name, c.Force)
		return err
	})
}

type sandboxRebuildCmd struct {
	Name  string `arg:"" help:"Workspace."`
	Image string `arg:"" optional:"" help:"Image. Default: the newest of the name that it has."`
	Force bool   `short:"f" help:"Also if jobs run in it: end them."`
}

// Run puts a workspace onto an image.
func (c *sandboxRebuildCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		_, err := client.RebuildSandbox(s.ctx, access.Owner, c.Name, c.Image, c.Force)
		return err
	})
}

type sandboxDeleteCmd struct {
	Name  string `arg:"" help:"Workspace."`
	Force bool   `short:"f" help:"Also if jobs run in it: end them."`
}

// Run deletes a workspace.
func (c *sandboxDeleteCmd) Run(s *session) error {
	return withOwner(s.ctx, s.cfg, s.cfg.quietLogger(), func(client *control.Client) error {
		return client.DeleteSandbox(s.ctx, access.Owner, c.Name, c.Force)
	})
}
