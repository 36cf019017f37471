package main

import (
	"context"
	"errors"
	"net"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"belljar/internal/artifact"
	"belljar/internal/control"
	"belljar/internal/lang"
	"belljar/internal/mcpserver"
)

type stdioCmd struct{}

// Run serves MCP on standard input and output until the client hangs up. Where
// a server runs already, its sandboxes and links are used; else this process
// does the work itself, and serves the links.
func (stdioCmd) Run(s *session) error {
	lock, err := lockState(s.cfg.StateDir)
	if errors.Is(err, errOwned) {
		table, err := s.cfg.table()
		if err != nil {
			return err
		}
		return withOwner(s.ctx, s.cfg, s.log, func(client *control.Client) error {
			return speak(s.ctx, s, table, client, client.Files())
		})
	}
	if err != nil {
		return err
	}
	a, err := open(s.ctx, s.cfg, s.log, lock)
	if err != nil {
		return err
	}
	return errors.Join(a.serveStdio(s), a.close())
}

// serveStdio serves links on the configured port, or, if that is taken, on a
// free one.
func (a *app) serveStdio(s *session) error {
	l, err := a.listen()
	if err != nil {
		a.log.Warn("links to files get another port", "error", err)
		a.cfg.Port = 0
		if l, err = a.listen(); err != nil {
			return err
		}
	}
	return a.serveLocal(s.ctx, func(ctx context.Context) error {
		a.warnOfImage()
		if err := a.manager.StartPool(); err != nil {
			return err
		}
		return a.serveLinks(ctx, l, func(ctx context.Context) error { return speak(ctx, s, a.table, a.backend(), a.files) })
	})
}

// serveLinks serves the artifacts while f runs.
func (a *app) serveLinks(ctx context.Context, l net.Listener, f func(context.Context) error) error {
	links, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- a.mountLinks().Serve(links, l) }()
	a.log.Info("serving links", "url", baseURL(l)+artifact.Prefix)
	err := f(ctx)
	stop()
	return errors.Join(err, <-served)
}

// speak serves one client on standard input and output.
func speak(ctx context.Context, s *session, table lang.Table, backend mcpserver.Backend, files mcpserver.FilesBackend) error {
	err := tools(s.cfg, s.log, table, backend, files).Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil { // a signal is a normal end
		return nil
	}
	return err
}
