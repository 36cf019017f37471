package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"belljar/internal/artifact"
	"belljar/internal/control"
	"belljar/internal/engine"
	"belljar/internal/engine/native"
	"belljar/internal/image"
	"belljar/internal/job"
	"belljar/internal/lang"
	"belljar/internal/mcpserver"
	"belljar/internal/sandbox"
	"belljar/internal/sqlite"
	"belljar/internal/web"
	"belljar/internal/workspace"
)

// app is the product, opened: open → mount → serve → close.
type app struct {
	cfg  *Config
	log  *slog.Logger
	lock *os.File

	table      lang.Table
	db         *sqlite.DB
	artifacts  *artifact.Store
	images     *image.Store
	engine     *native.Engine
	manager    *sandbox.Manager
	workspaces *workspace.Manager
	desk       *job.Desk
	links      *artifact.Links
	files      *workspace.Files
	metrics    *metrics
	network    engine.Network // what sandboxes reach

	// url is where MCP is served, once it is.
	url string
}

// open opens everything below the protocols. It takes the lock over, and
// lets go of it on failure.
func open(ctx context.Context, cfg *Config, log *slog.Logger, lock *os.File) (*app, error) {
	a := &app{cfg: cfg, log: log, lock: lock}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

func (a *app) open(ctx context.Context) (err error) {
	agent, err := agentProgram()
	if err != nil {
		return err
	}
	if a.table, err = a.cfg.table(); err != nil {
		return err
	}
	state := a.cfg.StateDir
	if a.db, err = sqlite.Open(ctx, filepath.Join(state, "belljar.db")); err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	a.artifacts, err = artifact.Open(ctx, a.db, artifact.Options{
		Dir: a.cfg.outputDir(), BaseURL: a.cfg.PublicURL, TTL: time.Duration(a.cfg.OutputTTL),
		MaxBytes: int64(a.cfg.OutputQuota), Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("opening the output directory: %w", err)
	}
	if a.images, err = image.Open(filepath.Join(state, "images"), image.Options{Log: a.log}); err != nil {
		return fmt.Errorf("opening the image store: %w", err)
	}
	a.engine, err = native.Open(ctx, native.Options{
		Dir: filepath.Join(state, "native"), Images: a.images, Agent: agent,
		Runtime: a.cfg.OCIRuntime, Log: a.log,
		Network: []string{"/proc/self/exe", netCommand}, Build: build(),
	})
	if err != nil {
		return fmt.Errorf("opening the native engine: %w", err)
	}
	if a.network, err = a.cfg.network(); err != nil {
		return err
	}
	if !a.network.None() {
		if err := a.engine.PrepareNetwork(ctx); err != nil {
			a.log.Warn("sandboxes have no network (BELLJAR_NETWORK=none says that none is wanted)", "reason", err)
		}
	}
	a.metrics = newMetrics()
	a.manager, err = sandbox.New(sandbox.Options{
		Engine: a.engine, Store: a.artifacts, Table: a.table, ServerID: a.engine.ServerID(),
		Image: a.cfg.Image, Limits: a.cfg.limits(), Strict: a.cfg.Strict, Network: a.network,
		DefaultTimeout: time.Duration(a.cfg.DefaultTimeout), MaxTimeout: time.Duration(a.cfg.MaxTimeout),
		MaxOutput: int(a.cfg.MaxOutput), LogBytes: int64(a.cfg.LogBytes), MaxInputBytes: int64(a.cfg.InputBytes),
		MaxFiles: a.cfg.OutputFiles, MaxFileBytes: int64(a.cfg.OutputBytes), MaxRunBytes: int64(a.cfg.OutputBytes),
		InlineBytes: int(a.cfg.InlineBytes), Concurrency: a.cfg.Concurrency, Log: a.log,
		PoolMemory: int64(a.cfg.PoolMemory), Digest: a.digest, Observe: a.metrics.observeClaim,
	})
	if err != nil {
		return err
	}
	a.metrics.registry.MustRegister(poolCollector{a.manager.Pool})
	if err := a.manager.Start(ctx); err != nil {
		return err
	}
	return a.openWorkspaces(ctx)
}

// openWorkspaces opens what lasts longer than a call.
func (a *app) openWorkspaces(ctx context.Context) (err error) {
	a.workspaces, err = workspace.Open(ctx, workspace.Options{
		Engine: a.engine, ServerID: a.engine.ServerID(), Image: a.workspaceImage, Limits: a.cfg.workspaceLimits(), Network: a.network,
		IdleStop: time.Duration(a.cfg.IdleStop), FileTTL: time.Duration(a.cfg.FileTTL), Max: a.cfg.Workspaces, Digest: a.digest, Log: a.log,
	})
	if err != nil {
		return err
	}
	if err := a.openFiles(); err != nil {
		return err
	}
	a.desk, err = job.Open(ctx, job.Options{
		Runs: a.manager, Workspaces: a.workspaces, Store: a.db,
		MaxOutput: int(a.cfg.MaxOutput), LogBytes: int64(a.cfg.LogBytes),
		DefaultTimeout: time.Duration(a.cfg.ExecuteTimeout), MaxTimeout: time.Duration(a.cfg.MaxExecuteTimeout), Log: a.log,
	})
	return err
}

// openFiles opens what works on the files of workspaces.
func (a *app) openFiles() error {
	secret, err := artifact.LinkSecret(filepath.Join(a.cfg.StateDir, "link-secret"))
	if err != nil {
		return err
	}
	lender := workspace.Lending{Manager: a.workspaces}
	a.links, err = artifact.NewLinks(artifact.LinkOptions{
		Store: a.db, Workspaces: workspace.Linked(lender), Secret: secret, Key: a.cfg.APIKey,
		BaseURL: a.cfg.PublicURL, TTL: time.Duration(a.cfg.LinkTTL), Log: a.log,
	})
	if err != nil {
		return err
	}
	a.files = workspace.NewFiles(workspace.FilesOptions{
		Lender: lender, Links: a.links, MaxText: int(a.cfg.MaxOutput), MaxUpload: int64(a.cfg.UploadBytes), Log: a.log,
	})
	return nil
}

// workspaceImage is what a workspace starts from: the image that is made for
// it, or, where that was not built, the one that runs start from.
func (a *app) workspaceImage() string {
	if a.cfg.WorkspaceImage != "" {
		return a.cfg.WorkspaceImage
	}
	if _, err := a.images.Get(workbench); err == nil {
		return workbench
	}
	return a.cfg.Image
}

// workbench is the image that is made for workspaces.
const workbench = "workbench"

// digest is what an image's name means now.
func (a *app) digest(name string) (string, error) {
	img, err := a.images.Get(name)
	return img.Digest, err
}

// closeTime bounds how long ending waits for runs to end.
const closeTime = 30 * time.Second

// close ends what was opened, in the reverse order. Sandboxes of runs are
// removed; the lock goes last.
func (a *app) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var errs []error
	if a.manager != nil {
		errs = append(errs, a.manager.Close(ctx))
	}
	if a.desk != nil {
		a.desk.Close()
	}
	if a.workspaces != nil {
		a.workspaces.Close()
	}
	if a.engine != nil {
		errs = append(errs, a.engine.Close())
	}
	if a.artifacts != nil {
		errs = append(errs, a.artifacts.Close())
	}
	if a.db != nil {
		errs = append(errs, a.db.Close())
	}
	return errors.Join(append(errs, a.lock.Close())...)
}

// mount returns what the public listener serves.
func (a *app) mount() *web.Server {
	s := a.mountLinks()
	most := maxRequest(a.cfg.InputBytes)
	s.Handle("/mcp", mcpserver.Handler(tools(a.cfg, a.log, a.table, a.backend(), a.files), most),
		s.Local(), s.Budget(2*most), web.KeepAlive(time.Duration(a.cfg.KeepAlive)))
	s.Handle("/metrics", a.metrics.handler(), s.Local())
	return s
}

// mountLinks returns a server of links to files alone.
func (a *app) mountLinks() *web.Server {
	public, _ := url.Parse(a.cfg.PublicURL) // checked with the settings
	s := web.New(web.Options{Log: a.log, PublicURL: public, MaxBody: maxRequest(a.cfg.InputBytes)})
	s.Handle(artifact.Prefix, a.artifacts.Handler())
	s.Handle(artifact.SharePrefix, a.links.ShareHandler())
	s.Handle(artifact.UploadPrefix, a.links.UploadHandler())
	s.LimitBody(artifact.UploadPrefix, int64(a.cfg.UploadBytes))
	return s
}

// maxRequest is how large a request with the input files may be: base64 takes
// four bytes for three, line breaks come on top, and JSON is around it.
func maxRequest(inputs byteSize) int64 { return int64(inputs)/2*3 + 1<<20 }

// tools returns the MCP server, with what carries its calls out. Without files,
// it has no tools for them.
func tools(cfg *Config, log *slog.Logger, table lang.Table, backend mcpserver.Backend, files mcpserver.FilesBackend) *mcp.Server {
	network, _ := cfg.network() // checked with the settings
	return mcpserver.New(mcpserver.Options{
		Network: network,
		Backend: backend, Files: files, LinkTTL: time.Duration(cfg.LinkTTL), Version: version, Runtimes: table.Names(),
		DefaultTimeout: time.Duration(cfg.DefaultTimeout), MaxTimeout: time.Duration(cfg.MaxTimeout),
		CommandTimeout: time.Duration(cfg.ExecuteTimeout), MaxCommandTimeout: time.Duration(cfg.MaxExecuteTimeout),
		Sets: cfg.Toolsets, Log: log,
	})
}

// serveLocal serves the local interface while f runs, and sweeps.
func (a *app) serveLocal(ctx context.Context, f func(context.Context) error) error {
	l, err := control.Listen(a.cfg.socket())
	if err != nil {
		return fmt.Errorf("listening on %s: %w", a.cfg.socket(), err)
	}
	s := &control.Server{
		Info: func() control.Info {
			return control.Info{Version: version, PID: os.Getpid(), URL: a.url, Engine: a.engine.Properties().Engine}
		},
		Backend: a.backend(), Files: a.files, Images: imageKeeper{a.images, a.engine, a.manager}, Sweep: a.sweep,
		Artifacts: a.artifacts.Handler(), ArtifactPrefix: artifact.Prefix, Log: a.log,
	}
	local, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, a.desk.Drain)()
	go a.artifacts.Run(local)
	go a.links.Run(local)
	served := make(chan error, 1)
	go func() { served <- s.Serve(local, l) }()
	err = f(ctx)
	stop()
	return errors.Join(err, <-served)
}

func (a *app) sweep(ctx context.Context) (int, error) {
	removed, err := a.artifacts.Sweep(ctx)
	_, forgotten := a.links.Sweep(ctx)
	return removed, errors.Join(err, forgotten, a.manager.Sweep(ctx))
}

// imageKeeper is the store of images, with what else has to do with them.
type imageKeeper struct {
	*image.Store
	runner  image.Runner
	manager *sandbox.Manager
}

// Build builds an image and gives it its name.
func (k imageKeeper) Build(ctx context.Context, o image.BuildOptions, p image.Progress) (image.Image, error) {
	return k.Store.Build(ctx, o, k.runner, p)
}

// Remove removes an image, also if sandboxes of it wait for scripts.
func (k imageKeeper) Remove(ctx context.Context, ref string) error {
	err := k.Store.Remove(ctx, ref)
	if !errors.Is(err, image.ErrInUse) {
		return err
	}
	img, err := k.Get(ref)
	if err != nil {
		return err
	}
	return k.manager.WithoutSpares(ctx, img.Digest, func() error { return k.Store.Remove(ctx, ref) })
}
