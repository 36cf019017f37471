package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tool is docker or podman, with the image in its store.
type tool struct {
	name string
	argv []string // the program, and options that it needs here
	env  []string
	tag  string // of the image
	note string // what is unusual about it
}

// contestant runs the script as a user would: on standard input, without a
// network, with limits.
func (t *tool) contestant() contestant {
	about := "`" + t.name + " run --rm -i --network none --memory 2g --cpus 2 IMAGE python3 -`, the script on standard input"
	if t.note != "" {
		about += "; " + t.note
	}
	return contestant{name: t.name + " run", about: about, run: func(ctx context.Context, w workload) error {
		argv := append(t.command("run", "--rm", "-i", "--network", "none", "--memory", "2g", "--cpus", "2", t.tag), w.stdin...)
		return w.stream(ctx, t.env, argv)
	}}
}

func (t *tool) command(args ...string) []string {
	return slices.Concat(t.argv, args)
}

// forget removes the image.
func (t *tool) forget() error {
	_, err := t.try(context.Background(), "rmi", t.tag)
	return err
}

// try runs a command of the tool and returns what it prints.
func (t *tool) try(ctx context.Context, args ...string) (string, error) {
	argv := t.command(args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = t.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", t.name, args[0], err, tail(string(out)))
	}
	return strings.TrimSpace(string(out)), err
}

// load brings a root filesystem into the tool's store, unless it is there.
func (t *tool) load(ctx context.Context, img image) error {
	t.tag = "belljar-bench:" + strings.TrimPrefix(img.Digest, "sha256:")[:12]
	if _, err := t.try(ctx, "image", "inspect", t.tag); err == nil {
		return nil
	}
	args := []string{"import"}
	for _, v := range img.Config.Env {
		args = append(args, "--change", "ENV "+v)
	}
	argv := t.command(append(args, "-", t.tag)...)
	pack := exec.CommandContext(ctx, "tar", "-C", img.rootfs, "-c", ".")
	unpack := exec.CommandContext(ctx, argv[0], argv[1:]...)
	unpack.Env = t.env
	pipe, err := pack.StdoutPipe()
	if err != nil {
		return err
	}
	unpack.Stdin = pipe
	if err := pack.Start(); err != nil {
		return err
	}
	out, err := unpack.CombinedOutput()
	packed := pack.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(packed, &exit) && exit.ExitCode() == 1 {
		// Files changed meanwhile, tar(1): images share theirs by links, and
		// the number of those counts as well.
		packed = nil
	}
	if err := errors.Join(err, packed); err != nil {
		return fmt.Errorf("%s import: %w: %s", t.name, err, tail(string(out)))
	}
	return nil
}

// openDocker returns docker with a daemon: the one that runs, or else one of
// this program's own, with its data in dir. close stops that.
func openDocker(ctx context.Context, dir string) (_ *tool, close func() error, err error) {
	close = func() error { return nil }
	if _, err := exec.LookPath("docker"); err != nil {
		return nil, nil, errors.New("not installed")
	}
	t := &tool{name: "docker", argv: []string{"docker"}, env: os.Environ()}
	if _, err := t.try(ctx, "version"); err == nil {
		return t, close, nil
	}
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, nil, errors.New("no daemon answers")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	socket := "unix://" + filepath.Join(dir, "socket")
	// No bridge: nobody's network is changed, and none is wanted.
	cmd := exec.Command(daemon, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", socket, "--bridge", "none", "--iptables=false", "--ip-forward=false")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	close = func() error { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait(); return nil }
	t.argv = append(t.argv, "--host", socket)
	for range 300 {
		if _, err = t.try(ctx, "version"); err == nil {
			return t, close, nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	close()
	said, _ := os.ReadFile(log.Name())
	return nil, nil, fmt.Errorf("dockerd does not start: %s", tail(string(said)))
}

// podmanConfig is for machines whose default is more than the kernel or the
// OCI runtime can give.
const podmanConfig = `[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
`

// way is a way to call podman.
type way struct {
	argv, env []string
	note      string
}

// podmanWays are tried in this order: as it is, then with less and less that a
// machine may lack. config is a file with podmanConfig.
func podmanWays(config string) []way {
	runc, limits := []string{"--runtime", "runc"}, []string{"CONTAINERS_CONF=" + config}
	return []way{
		{},
		{runc, nil, "with runc, since its default OCI runtime cannot run a container here"},
		{nil, limits, "without its default limits, which cannot be set here"},
		{runc, limits, "with runc and without its default limits, since it cannot run a container here otherwise"},
	}
}

// openPodman returns rootful podman with a store in dir, in the first way that
// can run a container.
func openPodman(ctx context.Context, dir string, img image) (*tool, error) {
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, errors.New("not installed")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "containers.conf")
	if err := os.WriteFile(config, []byte(podmanConfig), 0o600); err != nil {
		return nil, err
	}
	store := []string{"podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run")}
	t := &tool{name: "podman", argv: store, env: os.Environ()}
	if err := t.load(ctx, img); err != nil {
		return nil, err
	}
	var errs []error
	for _, w := range podmanWays(config) {
		t.argv, t.env, t.note = slices.Concat(store, w.argv), append(os.Environ(), w.env...), w.note
		_, err := t.try(ctx, "run", "--rm", "--network", "none", "--memory", "2g", "--cpus", "2", t.tag, "true")
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
