package control

import (
	"context"
	"net/http"

	"belljar/internal/access"
	"belljar/internal/workspace"
)

// mountSandboxes mounts the calls about workspaces.
func (s *Server) mountSandboxes(mux *http.ServeMux) {
	mux.Handle("GET /v1/sandboxes", answered(func(r *http.Request) (any, error) {
		return s.Backend.ListSandboxes(r.Context(), access.Owner)
	}))
	mux.Handle("POST /v1/sandboxes/create", asked(func(ctx context.Context, q sandboxRequest) (any, error) {
		return s.Backend.CreateSandbox(ctx, access.Owner, q.Name, q.Image)
	}))
	mux.Handle("POST /v1/sandboxes/stop", asked(func(ctx context.Context, q sandboxRequest) (any, error) {
		return s.Backend.StopSandbox(ctx, access.Owner, q.Name, q.EndJobs)
	}))
	mux.Handle("POST /v1/sandboxes/rebuild", asked(func(ctx context.Context, q sandboxRequest) (any, error) {
		return s.Backend.RebuildSandbox(ctx, access.Owner, q.Name, q.Image, q.EndJobs)
	}))
	mux.Handle("POST /v1/sandboxes/delete", asked(func(ctx context.Context, q sandboxRequest) (any, error) {
		return struct{}{}, s.Backend.DeleteSandbox(ctx, access.Owner, q.Name, q.EndJobs)
	}))
}

// ListSandboxes lists workspaces, as workspace.Manager does. The subject is
// always the owner, here and below.
func (c *Client) ListSandboxes(ctx context.Context, _ access.Subject) ([]workspace.Info, error) {
	return call[[]workspace.Info](ctx, c, "GET", "/v1/sandboxes", nil)
}

// CreateSandbox makes a workspace, as workspace.Manager does.
func (c *Client) CreateSandbox(ctx context.Context, _ access.Subject, name, image string) (workspace.Info, error) {
	return call[workspace.Info](ctx, c, "POST", "/v1/sandboxes/create", sandboxRequest{Name: name, Image: image})
}

// StopSandbox stops a workspace, as workspace.Manager does.
func (c *Client) StopSandbox(ctx context.Context, _ access.Subject, name string, endJobs bool) (workspace.Info, error) {
	return call[workspace.Info](ctx, c, "POST", "/v1/sandboxes/stop", sandboxRequest{Name: name, EndJobs: endJobs})
}

// RebuildSandbox puts a workspace onto an image, as workspace.Manager does.
func (c *Client) RebuildSandbox(ctx context.Context, _ access.Subject, name, image string, endJobs bool) (workspace.Info, error) {
	return call[workspace.Info](ctx, c, "POST", "/v1/sandboxes/rebuild", sandboxRequest{Name: name, Image: image, EndJobs: endJobs})
}

// DeleteSandbox deletes a workspace, as workspace.Manager does.
func (c *Client) DeleteSandbox(ctx context.Context, _ access.Subject, name string, endJobs bool) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/sandboxes/delete", sandboxRequest{Name: name, EndJobs: endJobs})
	return err
}
