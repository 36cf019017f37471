package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"belljar/internal/control"
	"belljar/internal/image"
	"belljar/internal/sandbox"
)

type serveCmd struct{}

// Run serves MCP over HTTP until a signal.
func (serveCmd) Run(s *session) error {
	if s.cfg.Transport == "stdio" {
		return stdioCmd{}.Run(s)
	}
	lock, err := lockState(s.cfg.StateDir)
	if errors.Is(err, errOwned) {
		return alreadyOwned(s)
	}
	if err != nil {
		return err
	}
	a, err := open(s.ctx, s.cfg, s.log, lock)
	if err != nil {
		return err
	}
	return errors.Join(a.serve(s.ctx), a.close())
}

// alreadyOwned says who has the state directory.
func alreadyOwned(s *session) error {
	client, err := control.Dial(s.ctx, s.cfg.socket())
	if err != nil {
		return fmt.Errorf("%w: another belljar is starting or ending there: %s", errOwned, s.cfg.StateDir)
	}
	info, err := client.Info(s.ctx)
	if err != nil {
		return err
	}
	where := "it runs a single command"
	if info.URL != "" {
		where = "it serves " + info.URL
	}
	return fmt.Errorf("%w by process %d (%s): stop it, or set BELLJAR_STATE_DIR: %s", errOwned, info.PID, where, s.cfg.StateDir)
}

// serve serves the public listener and the local one.
func (a *app) serve(ctx context.Context) error {
	l, err := a.listen()
	if err != nil {
		return err
	}
	a.url = baseURL(l) + "/mcp"
	return a.serveLocal(ctx, func(ctx context.Context) error {
		a.warnOfImage()
		if err := a.manager.StartPool(); err != nil {
			return err
		}
		a.log.Info("serving MCP", "url", a.url, "engine", a.engine.Properties().Engine, "version", version)
		err := a.mount().Serve(ctx, l)
		a.log.Info("stopping")
		return err
	})
}

// listen opens the public listener and tells the artifacts where it is.
func (a *app) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", a.cfg.address())
	if err != nil {
		return nil, fmt.Errorf("SANDBOX_HOST, SANDBOX_PORT: %w", err)
	}
	if a.cfg.PublicURL == "" {
		a.artifacts.SetBaseURL(baseURL(l))
		a.links.SetBaseURL(baseURL(l))
	}
	return l, nil
}

func baseURL(l net.Listener) string { return "http://" + l.Addr().String() }

// warnOfImage says at start what the first run would say.
func (a *app) warnOfImage() {
	name := a.cfg.Image
	if _, err := a.images.Get(name); !errors.Is(err, image.ErrNotFound) {
		return
	}
	a.log.Warn("the image that runs start from is not there yet; get it", "image", name, "command", sandbox.HowToGet(name))
}
