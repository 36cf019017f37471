package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"belljar/internal/agent"
	"belljar/internal/engine"
)

// ociRuntime runs containers by a program such as crun or runc.
type ociRuntime struct {
	path    string
	version string // as it says itself: "crun 1.8.1"
	root    string // where the program keeps its state, in the namespace
	ns      *mountNamespace
}

// candidates are tried in this order.
var candidates = []string{"crun", "runc"}

// start runs a container in the background and returns the process id of its
// process 1. The bundle directory holds config.json. Call it inside the mount
// namespace.
func (r ociRuntime) start(ctx context.Context, bundle, id string) (pid int, err error) {
	pidFile := filepath.Join(bundle, "pid")
	logFile := filepath.Join(bundle, "runtime.log")
	// Standard streams stay /dev/null: the container inherits them, and what
	// a script writes to its process 1's must not land on the host.
	cmd := r.command(ctx, "--log", logFile, "run", "--detach", "--bundle", bundle, "--pid-file", pidFile, id)
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s run: %w: %s", filepath.Base(r.path), err, lastError(logFile))
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(string(data), "%d", &pid); err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s wrote no process id", filepath.Base(r.path))
	}
	return pid, nil
}

// run runs a container and waits for its end. *exec.ExitError tells its exit
// code.
func (r ociRuntime) run(ctx context.Context, bundle, id string, out io.Writer) error {
	cmd := r.command(ctx, "run", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	return r.ns.do(cmd.Run)
}

// delete ends a container and removes what the runtime keeps of it. It is no
// error if there is none.
func (r ociRuntime) delete(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return r.ns.do(func() error {
		state := filepath.Join(r.root, id)
		if _, err := os.Stat(state); os.IsNotExist(err) {
			return nil
		}
		var out bytes.Buffer
		cmd := r.command(ctx, "delete", "--force", id)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			// What a killed runtime left half-made it may not recognise.
			if rmErr := os.RemoveAll(state); rmErr != nil {
				return fmt.Errorf("%s delete: %w: %s", filepath.Base(r.path), err, strings.TrimSpace(out.String()))
			}
		}
		return nil
	})
}

// forget removes what the runtime keeps of a container whose processes have
// ended. For crun and runc that is a directory; running them for it would take
// as long as several of the other steps of a removal together. Call it inside
// the mount namespace.
func (r ociRuntime) forget(id string) error {
	switch filepath.Base(r.path) {
	case "crun", "runc":
		return os.RemoveAll(filepath.Join(r.root, id))
	}
	return r.delete(id)
}

// protect mounts the runtime's program over itself, read-only. A program of a
// container cannot write to it by /proc/PID/exe then, and crun, which sees to
// that by such a mount of its own at every start otherwise, need not.
func (r ociRuntime) protect() error {
	path, err := filepath.EvalSymlinks(r.path)
	if err != nil {
		return err
	}
	return r.ns.do(func() error {
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	})
}

// command is a run of the runtime, to be made inside the mount namespace. It
// dies with this process: one that outlived it could finish making a container
// that its successor has just cleared away.
func (r ociRuntime) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.path, append([]string{"--root", r.root}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} // no secret of ours
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// logLine finds the message in a line of runc's log.
var logLine = regexp.MustCompile(`msg="((?:[^"\\]|\\.)*)"`)

// lastError returns the last line of a runtime's log, for people to read.
func lastError(logFile string) string {
	data, err := os.ReadFile(logFile)
	if err != nil {
		return "it left no log"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := lines[len(lines)-1]
	if m := logLine.FindStringSubmatch(last); m != nil {
		last = strings.ReplaceAll(m[1], `\"`, `"`)
	}
	return last
}

// chooseRuntime returns the first of the wanted runtimes that can run a
// container here, found out by running one.
func (e *Engine) chooseRuntime(ctx context.Context, wanted string) (ociRuntime, error) {
	names := candidates
	if wanted != "" {
		names = []string{wanted}
	}
	var errs []error
	for _, name := range names {
		r, err := e.probe(ctx, name)
		if err == nil {
			e.log.Info("OCI runtime chosen", "runtime", r.version, "path", r.path)
			e.logFailure("protecting the OCI runtime's program", r.protect())
			return r, nil
		}
		if errors.Is(err, unix.ENOSPC) {
			return ociRuntime{}, fmt.Errorf("the disk at %s is full: %w", e.dir, err)
		}
		errs = append(errs, err)
		e.log.Warn("OCI runtime passed over", "runtime", name, "reason", err)
	}
	return ociRuntime{}, fmt.Errorf("no OCI runtime can run a container here (install one: apt-get install crun): %w", errors.Join(errs...))
}

// probe runs a container whose only file is the agent, with all that a
// sandbox asks of a runtime.
func (e *Engine) probe(ctx context.Context, name string) (ociRuntime, error) {
	path, err := exec.LookPath(sbin(name))
	if err != nil {
		return ociRuntime{}, fmt.Errorf("%s: not installed", name)
	}
	r := ociRuntime{path: path, root: ociState, ns: e.ns}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return ociRuntime{}, fmt.Errorf("%s --version: %w", name, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	r.version = strings.Replace(strings.TrimSpace(first), " version ", " ", 1)

	ids, err := e.ids.take()
	if err != nil {
		return ociRuntime{}, err
	}
	defer e.ids.release(ids.slot)
	id := "probe" // one at a time; a name may be a path
	p := place{id}
	group := e.group(id)
	defer func() {
		e.logFailure("clearing the probe", errors.Join(r.delete(id), e.cg.end(group), e.ns.clear(p, group)))
	}()
	bundle, err := os.MkdirTemp(e.dir, scratch)
	if err != nil {
		return ociRuntime{}, err
	}
	defer os.RemoveAll(bundle)
	if err := e.prepareProbe(bundle, p, ids); err != nil {
		return ociRuntime{}, err
	}
	c := container{
		rootfs: p.rootfs(), ids: ids, group: group, dir: "/",
		argv:   []string{agent.Binary, "probe"},
		mounts: []specs.Mount{agentMount(p.share())},
		limits: engine.Limits{Memory: 256 << 20, CPUs: 1, PIDs: 64, Tmp: 1 << 20},
	}
	if err := e.writeConfig(bundle, c); err != nil {
		return ociRuntime{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var said bytes.Buffer
	if err := r.run(ctx, bundle, id, &said); err != nil {
		return ociRuntime{}, fmt.Errorf("%s could not run a container: %w: %s", r.version, err, strings.TrimSpace(said.String()))
	}
	return r, nil
}

// prepareProbe mounts an empty root filesystem and the agent.
func (e *Engine) prepareProbe(bundle string, p place, ids idRange) error {
	share := filepath.Join(bundle, "share")
	if err := e.makeShare(share); err != nil {
		return err
	}
	return e.ns.do(func() error {
		if err := os.MkdirAll(p.rootfs(), 0o711); err != nil {
			return err
		}
		opts := fmt.Sprintf("mode=0755,size=1m,uid=%d,gid=%d", ids.base, ids.base)
		if err := unix.Mount("probe", p.rootfs(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
			return err
		}
		return mountShare(share, p.share())
	})
}

// writeConfig writes a container's config.json into its bundle.
func (e *Engine) writeConfig(bundle string, c container) error {
	s, err := c.spec(e.cg)
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
}

// logFailure logs an error that changes nothing for the caller.
func (e *Engine) logFailure(doing string, err error) {
	if err != nil {
		e.log.Warn(doing+" failed", slog.Any("error", err))
	}
}
