package main

import (
	"context"

	"belljar/internal/access"
	"belljar/internal/job"
	"belljar/internal/sandbox"
	"belljar/internal/workspace"
)

// backend is what carries calls out, of MCP clients and of the command line.
type backend struct {
	*job.Desk
	runs       *sandbox.Manager
	workspaces *workspace.Manager
}

func (a *app) backend() backend { return backend{a.desk, a.manager, a.workspaces} }

func (b backend) Runtimes(ctx context.Context) ([]sandbox.RuntimeInfo, error) {
	return b.runs.Runtimes(ctx)
}

func (b backend) ListSandboxes(_ context.Context, s access.Subject) ([]workspace.Info, error) {
	return b.workspaces.List(s), nil
}

func (b backend) CreateSandbox(ctx context.Context, s access.Subject, name, image string) (workspace.Info, error) {
	return b.workspaces.Create(ctx, s, name, image)
}

func (b backend) StopSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) (workspace.Info, error) {
	return b.workspaces.Stop(ctx, s, name, endJobs)
}

func (b backend) RebuildSandbox(ctx context.Context, s access.Subject, name, image string, endJobs bool) (workspace.Info, error) {
	return b.workspaces.Rebuild(ctx, s, name, image, endJobs)
}

func (b backend) DeleteSandbox(ctx context.Context, s access.Subject, name string, endJobs bool) error {
	return b.workspaces.Delete(ctx, s, name, endJobs)
}
