// Belljar serves sealed Linux sandboxes to AI clients over the Model Context
// Protocol.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the build.
var version = "devel"

// cli is the command line.
type cli struct {
	Config `group:"Configuration (flags go over the environment, the environment over .env):"`

	Serve    serveCmd    `cmd:"" help:"Serve MCP over HTTP at /mcp."`
	Stdio    stdioCmd    `cmd:"" help:"Serve MCP on standard input and output."`
	Run      runCmd      `cmd:"" help:"Run a script and write its files to a directory."`
	Runtimes runtimesCmd `cmd:"" name:"list-runtimes" help:"List the runtimes."`
	Exec     execCmd     `cmd:"" help:"Execute a command in a workspace."`
	Shell    shellCmd    `cmd:"" help:"Open a shell in a workspace."`
	CP       cpCmd       `cmd:"" name:"cp" help:"Copy a file into a workspace or out of one."`
	PS       psCmd       `cmd:"" name:"ps" help:"List the jobs that run."`
	Logs     logsCmd     `cmd:"" help:"Print what a job has printed, until it ends."`
	Kill     killCmd     `cmd:"" help:"End a job."`
	Sandbox  sandboxCmd  `cmd:"" help:"List, make, stop and delete workspaces."`
	Image    imageCmd    `cmd:"" help:"Build, pull, load, list and remove images."`
	GC       gcCmd       `cmd:"" name:"gc" help:"Remove expired files and what a crash left; for a timer."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
}

// session is what every command gets.
type session struct {
	ctx context.Context
	cfg *Config
	log *slog.Logger
}

// exitCode ends the program without a message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func main() {
	// A run makes a few hundred KiB of garbage beside a live heap of a few MiB:
	// at Go's default of 100 that is a collection for every ten runs or so.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) > 0 && args[0] == netCommand {
		return runNet(args[1:])
	}
	err := command(args)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "belljar:", err)
	return 1
}

func command(args []string) error {
	if err := loadDotEnv(); err != nil {
		return err
	}
	unsetEmpty()
	var c cli
	parser, err := kong.New(&c, kong.Name("belljar"), kong.UsageOnError(),
		kong.Description("Sealed Linux sandboxes for AI clients, over the Model Context Protocol."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}))
	if err != nil {
		return err
	}
	k, err := parser.Parse(args)
	if err != nil {
		var parse *kong.ParseError
		if errors.As(err, &parse) {
			if n := parse.Context.Selected(); n != nil {
				return fmt.Errorf("%w; want: belljar %s (see %s --help)", err, n.Summary(), n.FullPath())
			}
			return fmt.Errorf("%w (belljar --help lists commands and settings)", err)
		}
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal the second one kills.
	context.AfterFunc(ctx, stop)
	return k.Run(&session{ctx: ctx, cfg: &c.Config, log: c.logger()})
}

// settings names the environment variables of every setting.
func settings() []string {
	var names []string
	for field := range reflect.TypeFor[Config]().Fields() {
		names = append(names, strings.Split(field.Tag.Get("env"), ",")...)
	}
	return names
}

// unsetEmpty takes settings that are set to nothing for not set, as compose
// files and shells leave them.
func unsetEmpty() {
	for _, name := range settings() {
		if os.Getenv(name) == "" {
			os.Unsetenv(name)
		}
	}
}

// build tells builds of this program apart, also those without a version.
func build() string {
	name := version
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" || s.Key == "vcs.modified" {
				name += " " + s.Value
			}
		}
	}
	return name
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run() error {
	goVersion := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	fmt.Println("belljar", version, goVersion)
	return nil
}
