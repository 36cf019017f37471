package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joho/godotenv"

	"belljar/internal/artifact"
	"belljar/internal/egress"
	"belljar/internal/engine"
	"belljar/internal/lang"
	"belljar/internal/mcpserver"
)

// Config is every setting. Flags go over the environment, the environment
// over a file .env in the working directory. A bare number of a duration is
// seconds; sizes take B, KiB, MiB, GiB.
type Config struct {
	Host      string `env:"SANDBOX_HOST,HOST" default:"127.0.0.1" help:"Address to listen on. Until sign-in exists it must be a loopback one."`
	Port      int    `env:"SANDBOX_PORT,PORT" default:"8815" help:"Port to listen on; 0 takes a free one."`
	PublicURL string `env:"SANDBOX_PUBLIC_URL" placeholder:"URL" help:"Where users reach this server; links to files begin with it. Default: http://HOST:PORT."`
	Transport string `env:"MCP_TRANSPORT" default:"http" help:"What serve speaks: http or stdio."`

	Image          string  `env:"SANDBOX_IMAGE" default:"science" help:"Image that runs start from."`
	DefaultTimeout seconds `env:"DEFAULT_TIMEOUT" default:"60" help:"A run's time limit if it asks for none."`
	MaxTimeout     seconds `env:"MAX_TIMEOUT" default:"300" help:"The longest time limit that a run can ask for."`
	Runtimes       string  `env:"BELLJAR_RUNTIMES" type:"path" placeholder:"FILE" help:"TOML file with more runtimes, or other ones by the same names."`
	Concurrency    int     `env:"BELLJAR_CONCURRENCY" default:"8" help:"Runs at a time; more wait for their turn."`

	PoolMemory byteSize `env:"BELLJAR_POOL_MEMORY" default:"1GiB" help:"Memory of the sandboxes that wait for scripts, together; 0 makes each when it is needed."`

	Memory       byteSize `env:"BELLJAR_MEMORY" default:"2GiB" help:"Memory of a sandbox, swap and tmpfs included."`
	CPUs         float64  `name:"cpus" env:"BELLJAR_CPUS" default:"2" help:"CPUs of a sandbox."`
	PIDs         int64    `name:"pids" env:"BELLJAR_PIDS" default:"512" help:"Processes and threads of a sandbox."`
	Tmp          byteSize `env:"BELLJAR_TMP" default:"512MiB" help:"Size of /tmp in a sandbox. It is memory."`
	Disk         byteSize `env:"BELLJAR_DISK" default:"1GiB" help:"Disk of a sandbox."`
	Inodes       int64    `env:"BELLJAR_INODES" default:"65536" help:"Files of a sandbox."`
	Network      string   `env:"BELLJAR_NETWORK" default:"internet" help:"What a sandbox reaches: internet, none, or a list of domains (*.example.org for those below), CIDRs, and ports (example.org:443)."`
	NetworkAllow string   `env:"BELLJAR_NETWORK_ALLOW" placeholder:"CIDRS" help:"Private addresses that BELLJAR_NETWORK may reach as well, such as 10.1.2.0/24 or 10.1.2.3:5432. The host's own, and metadata services, count one by one only."`
	NetworkFlows int      `env:"BELLJAR_NETWORK_FLOWS" default:"1024" help:"Connections of a sandbox at a time."`
	NetworkRate  float64  `env:"BELLJAR_NETWORK_RATE" default:"0" help:"Megabits per second of a sandbox, each way; 0 is no limit."`
	Strict       bool     `name:"strict-limits" env:"BELLJAR_STRICT_LIMITS" help:"Refuse to run what the kernel would not hold to a limit."`

	Toolsets          []string `env:"BELLJAR_TOOLSETS" default:"runs,workspace,files,jobs,sandboxes" help:"Tools to offer: any of runs, workspace, files, jobs, sandboxes."`
	WorkspaceImage    string   `env:"BELLJAR_WORKSPACE_IMAGE" help:"Image that workspaces start from. Default: workbench if there is one, else SANDBOX_IMAGE."`
	ExecuteTimeout    seconds  `env:"BELLJAR_EXECUTE_TIMEOUT" default:"3600" help:"A command's time limit if it asks for none."`
	MaxExecuteTimeout seconds  `env:"BELLJAR_MAX_EXECUTE_TIMEOUT" default:"604800" help:"The longest time limit that a command can ask for."`
	IdleStop          seconds  `env:"BELLJAR_IDLE_STOP" default:"1800" help:"Time after which a workspace in which nothing runs is stopped; -1 for never. Its files stay."`
	FileTTL           seconds  `name:"file-ttl" env:"FILE_TTL" default:"168h" help:"Time after which an entry of a workspace's /sandbox is deleted in which nothing changes; 0 for never."`
	Workspaces        int      `env:"BELLJAR_WORKSPACES" default:"20" help:"Workspaces that a user may have."`
	WorkspaceMemory   byteSize `env:"BELLJAR_WORKSPACE_MEMORY" default:"4GiB" help:"Memory of a workspace, swap and tmpfs included."`
	WorkspaceCPUs     float64  `name:"workspace-cpus" env:"BELLJAR_WORKSPACE_CPUS" default:"2" help:"CPUs of a workspace."`
	WorkspacePIDs     int64    `name:"workspace-pids" env:"BELLJAR_WORKSPACE_PIDS" default:"1024" help:"Processes and threads of a workspace."`
	WorkspaceDisk     byteSize `env:"BELLJAR_WORKSPACE_DISK" default:"20GiB" help:"Disk of a workspace."`
	WorkspaceInodes   int64    `env:"BELLJAR_WORKSPACE_INODES" placeholder:"N" help:"Files of a workspace. Default: one for each 16 KiB of its disk."`

	LinkTTL     seconds  `name:"link-ttl" env:"LINK_TTL" default:"604800" help:"How long a link to a file of a workspace lives if it is not said."`
	UploadBytes byteSize `env:"BELLJAR_UPLOAD_BYTES" default:"4GiB" help:"Largest file that can be put into a workspace by a link."`
	APIKey      string   `name:"api-key" env:"SANDBOX_API_KEY" placeholder:"KEY" help:"Signs links to the files of workspaces, with the server's own secret; with another one, no link of before is good. Give it in the environment, since arguments show."`

	InputBytes  byteSize `env:"BELLJAR_INPUT_BYTES" default:"64MiB" help:"Script, stdin and input files of a run together."`
	MaxOutput   byteSize `name:"max-output-bytes" env:"MAX_OUTPUT_BYTES" default:"64KiB" help:"Text of stdout, and of stderr, in a result. The rest goes to a file."`
	LogBytes    byteSize `env:"BELLJAR_LOG_BYTES" default:"16MiB" help:"That file's size."`
	OutputFiles int      `env:"BELLJAR_OUTPUT_FILES" default:"500" help:"Output files of a run."`
	OutputBytes byteSize `env:"BELLJAR_OUTPUT_BYTES" default:"1GiB" help:"Output files of a run together."`
	InlineBytes byteSize `env:"BELLJAR_INLINE_BYTES" default:"4KiB" help:"Text files up to this size come as text, without a link."`
	OutputDir   string   `env:"OUTPUT_DIR" type:"path" placeholder:"DIR" help:"Where output files wait for their download. Default: output in the state directory."`
	OutputTTL   seconds  `name:"output-ttl" env:"OUTPUT_TTL" default:"3600" help:"How long a link to an output file lives."`
	OutputQuota byteSize `env:"BELLJAR_OUTPUT_QUOTA" default:"10GiB" help:"All output files together."`
	KeepAlive   seconds  `env:"BELLJAR_KEEP_ALIVE" default:"5" help:"Time between signs of life on a stream; 0 sends none."`
	StateDir    string   `env:"BELLJAR_STATE_DIR" type:"path" default:"/var/lib/belljar" help:"Images, sandboxes and the database."`
	OCIRuntime  string   `name:"oci-runtime" env:"BELLJAR_OCI_RUNTIME" placeholder:"NAME" help:"OCI runtime to use. Default: the first of crun and runc that works."`
	LogLevel    string   `env:"BELLJAR_LOG_LEVEL" default:"info" help:"Least level that is logged: debug, info, warn or error."`
}

// check refuses settings that cannot be, by name.
func (c *Config) check() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("SANDBOX_PORT", "%d: want 0 to 65535", c.Port)
	}
	if !loopback(c.Host) {
		bad("SANDBOX_HOST or HOST", "%q: until sign-in exists the server listens on a loopback address only, such as 127.0.0.1", c.Host)
	}
	if u, err := url.Parse(c.PublicURL); c.PublicURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "") {
		bad("SANDBOX_PUBLIC_URL", "%q: want an address such as https://sandbox.example.org", c.PublicURL)
	}
	if c.DefaultTimeout <= 0 || c.DefaultTimeout > c.MaxTimeout {
		bad("DEFAULT_TIMEOUT", "%v: want more than 0 and at most MAX_TIMEOUT, %v", c.DefaultTimeout, c.MaxTimeout)
	}
	for _, choice := range []struct {
		name, value string
		of          []string
	}{
		{"MCP_TRANSPORT", c.Transport, []string{"http", "streamable-http", "stdio"}},
		{"BELLJAR_LOG_LEVEL", c.LogLevel, []string{"debug", "info", "warn", "error"}},
	} {
		if !slices.Contains(choice.of, choice.value) {
			bad(choice.name, "%q: want %s", choice.value, strings.Join(choice.of, " or "))
		}
	}
	if _, err := c.network(); err != nil {
		bad("BELLJAR_NETWORK, BELLJAR_NETWORK_ALLOW", "%w", err)
	}
	for _, n := range []struct {
		name string
		ok   bool
		want string
	}{
		{"BELLJAR_NETWORK_FLOWS", c.NetworkFlows > 0 && c.NetworkFlows <= 65536, "1 to 65536"},
		{"BELLJAR_NETWORK_RATE", c.NetworkRate >= 0 && c.NetworkRate <= 1e6, "0 to 1000000"},
		{"OUTPUT_TTL", c.OutputTTL > 0, "more than 0"},
		{"LINK_TTL", c.LinkTTL > 0 && time.Duration(c.LinkTTL) <= artifact.MaxLinkTTL, "more than 0 and at most 365 days"},
		{"BELLJAR_UPLOAD_BYTES", c.UploadBytes > 0, "more than 0"},
		{"MAX_OUTPUT_BYTES", c.MaxOutput > 0 && c.MaxOutput <= 4<<20, "more than 0 and at most 4MiB"},
		{"BELLJAR_CONCURRENCY", c.Concurrency > 0, "at least 1"},
		{"BELLJAR_CPUS", c.CPUs > 0, "more than 0"},
		{"BELLJAR_PIDS", c.PIDs > 0, "at least 1"},
		{"BELLJAR_MEMORY", c.Memory >= 16<<20, "at least 16MiB"},
		{"BELLJAR_TMP", c.Tmp > 0, "more than 0"},
		{"BELLJAR_DISK", c.Disk >= 16<<20, "at least 16MiB"},
		{"BELLJAR_INODES", c.Inodes >= 512, "at least 512"},
		{"BELLJAR_INPUT_BYTES", c.InputBytes > 0, "more than 0"},
		{"BELLJAR_LOG_BYTES", c.LogBytes > 0, "more than 0"},
		{"BELLJAR_POOL_MEMORY", c.PoolMemory >= 0, "0 or more"},
		{"BELLJAR_OUTPUT_FILES", c.OutputFiles > 0, "at least 1"},
		{"BELLJAR_OUTPUT_BYTES", c.OutputBytes > 0, "more than 0"},
		{"BELLJAR_OUTPUT_QUOTA", c.OutputQuota > 0, "more than 0"},
		{"BELLJAR_KEEP_ALIVE", c.KeepAlive >= 0, "0 or more"},
		{"BELLJAR_MAX_EXECUTE_TIMEOUT", c.MaxExecuteTimeout > 0, "more than 0"},
		{"BELLJAR_EXECUTE_TIMEOUT", c.ExecuteTimeout > 0 && c.ExecuteTimeout <= c.MaxExecuteTimeout, "more than 0 and at most BELLJAR_MAX_EXECUTE_TIMEOUT"},
		{"FILE_TTL", c.FileTTL >= 0, "0 or more"},
		{"BELLJAR_WORKSPACES", c.Workspaces > 0, "at least 1"},
		{"BELLJAR_WORKSPACE_CPUS", c.WorkspaceCPUs > 0, "more than 0"},
		{"BELLJAR_WORKSPACE_PIDS", c.WorkspacePIDs > 0, "at least 1"},
		{"BELLJAR_WORKSPACE_MEMORY", c.WorkspaceMemory >= 16<<20, "at least 16MiB"},
		{"BELLJAR_WORKSPACE_DISK", c.WorkspaceDisk >= 64<<20, "at least 64MiB"},
		{"BELLJAR_WORKSPACE_INODES", c.WorkspaceInodes == 0 || c.WorkspaceInodes >= 512 && c.WorkspaceInodes <= int64(c.WorkspaceDisk)/4096, "at least 512, and at most one for each 4 KiB of BELLJAR_WORKSPACE_DISK"},
	} {
		if !n.ok {
			bad(n.name, "want %s", n.want)
		}
	}
	for _, set := range c.Toolsets {
		if !slices.Contains(mcpserver.Sets(), set) {
			bad("BELLJAR_TOOLSETS", "%q: want any of %s, with commas between them", set, strings.Join(mcpserver.Sets(), ", "))
		}
	}
	if len(c.StateDir) > 90 {
		bad("BELLJAR_STATE_DIR", "%q is too long for the path of a socket: want at most 90 bytes", c.StateDir)
	}
	return errors.Join(errs...)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

func (c *Config) address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// table loads the runtimes, the operator's included.
func (c *Config) table() (lang.Table, error) {
	var extra []string
	if c.Runtimes != "" {
		extra = append(extra, c.Runtimes)
	}
	table, err := lang.Load(extra...)
	if err != nil {
		return table, fmt.Errorf("BELLJAR_RUNTIMES: %w", err)
	}
	return table, nil
}

func (c *Config) outputDir() string {
	if c.OutputDir != "" {
		return c.OutputDir
	}
	return filepath.Join(c.StateDir, "output")
}

func (c *Config) socket() string { return filepath.Join(c.StateDir, "belljar.sock") }

func (c *Config) workspaceLimits() engine.Limits {
	return engine.Limits{
		Memory: int64(c.WorkspaceMemory), CPUs: c.WorkspaceCPUs, PIDs: c.WorkspacePIDs,
		Disk: int64(c.WorkspaceDisk), Inodes: cmp.Or(c.WorkspaceInodes, int64(c.WorkspaceDisk)/(16<<10)),
	}
}

func (c *Config) limits() engine.Limits {
	return engine.Limits{
		Memory: int64(c.Memory), CPUs: c.CPUs, PIDs: c.PIDs,
		Tmp: int64(c.Tmp), Disk: int64(c.Disk), Inodes: c.Inodes,
	}
}

// network is what sandboxes may reach.
func (c *Config) network() (engine.Network, error) {
	n, err := engine.ParseNetwork(c.Network, c.NetworkAllow)
	if err != nil {
		return n, err
	}
	if n.None() {
		return engine.Network{}, nil
	}
	n.Flows, n.BitRate = c.NetworkFlows, int64(c.NetworkRate*1e6)
	return n, egress.Check(n)
}

// logger writes to standard error: standard output is the protocol's or the
// script's. Under systemd the journal has the time already.
func (c *Config) logger() *slog.Logger {
	var level slog.Level
	level.UnmarshalText([]byte(c.LogLevel)) // an enum, checked before
	o := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// quietLogger is for commands whose output is for a person: what goes well is
// not logged, unless debugging is asked for.
func (c *Config) quietLogger() *slog.Logger {
	quiet := *c
	if quiet.LogLevel == "info" {
		quiet.LogLevel = "warn"
	}
	return quiet.logger()
}

// loadDotEnv adds what a file .env sets to the environment, below what is
// set there already.
func loadDotEnv() error {
	values, err := godotenv.Read(".env")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading .env: %w", err)
	}
	for name, value := range values {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
	return nil
}

// seconds is a duration whose bare number is in seconds.
type seconds time.Duration

// UnmarshalText reads "90", "1.5" or "2m30s".
func (s *seconds) UnmarshalText(text []byte) error {
	if n, err := strconv.ParseFloat(string(text), 64); err == nil && n < 1e9 && n > -1e9 {
		*s = seconds(n * float64(time.Second))
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration: want seconds, such as 90, or 2m30s", text)
	}
	*s = seconds(d)
	return nil
}

func (s seconds) String() string { return time.Duration(s).String() }

// byteSize is a number of bytes.
type byteSize int64

// UnmarshalText reads "65536", "64KiB", "512M" or "2GiB"; K, M and G are
// powers of 1024 with and without iB.
func (b *byteSize) UnmarshalText(text []byte) error {
	digits := 0
	for digits < len(text) && (text[digits] >= '0' && text[digits] <= '9' || text[digits] == '.') {
		digits++
	}
	unit, known := map[string]float64{
		"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "MIB": 1 << 20,
		"G": 1 << 30, "GB": 1 << 30, "GIB": 1 << 30, "T": 1 << 40, "TB": 1 << 40, "TIB": 1 << 40,
	}[strings.ToUpper(strings.TrimSpace(string(text[digits:])))]
	n, err := strconv.ParseFloat(string(text[:digits]), 64)
	if err != nil || !known || n*unit >= 1<<60 {
		return fmt.Errorf("%q is no size: want bytes, such as 65536, or 64KiB, 512MiB, 2GiB", text)
	}
	*b = byteSize(n * unit)
	return nil
}
