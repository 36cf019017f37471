package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ociRuntime runs scripts by the OCI runtime that a server uses, with the
// configuration, mounts and limits of a real sandbox. That one is held by a
// script that waits, since the root filesystem is its.
type ociRuntime struct {
	s      *server
	mounts *os.File // the namespace that has the sandbox's mounts
	dir    string   // of the bundles and of the runtime's state
	config *specs.Spec
	let    func() // ends the script that waits
	ended  chan struct{}
	runs   int
}

// holdTime is as long as a server started with the setting holdSetting lets a
// script run.
const (
	holdTime    = 2 * time.Hour
	holdSetting = "MAX_TIMEOUT=7200"
)

// holdSandbox makes a server hold one.
func holdSandbox(ctx context.Context, s *server) (_ *ociRuntime, err error) {
	ctx, let := context.WithCancel(ctx)
	o := &ociRuntime{s: s, let: let, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	go func() {
		defer close(o.ended)
		s.script(ctx, "bash", "sleep "+fmt.Sprint(holdTime.Seconds()-60), holdTime)
	}()
	if o.mounts, err = s.mountNamespace(); err != nil {
		return nil, err
	}
	err = inNamespace(o.mounts, func() error {
		o.config, err = liveConfig(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	o.dir, err = os.MkdirTemp("", "belljar-bench-")
	return o, err
}

func (o *ociRuntime) close() error {
	o.let()
	<-o.ended
	if o.mounts != nil {
		o.mounts.Close()
	}
	return os.RemoveAll(o.dir)
}

// prepare makes a bundle for the workload.
func (o *ociRuntime) prepare(_ context.Context, w workload) error {
	bundle := filepath.Join(o.dir, w.name)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return err
	}
	config := *o.config
	process, linux := *config.Process, *config.Linux
	process.Args, process.Cwd = w.stdin, workdir
	linux.CgroupsPath += "-bench"
	config.Process, config.Linux = &process, &linux
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
}

func (o *ociRuntime) run(ctx context.Context, w workload) error {
	o.runs++
	cmd := exec.CommandContext(ctx, o.s.runtime, "--root", filepath.Join(o.dir, "state"), "run",
		"--bundle", filepath.Join(o.dir, w.name), fmt.Sprintf("bench-%d", o.runs))
	cmd.Stdin = strings.NewReader(w.script)
	return inNamespace(o.mounts, func() error { return w.finish(cmd) })
}

// liveConfig waits for the only sandbox and returns its configuration. Call it
// inside the namespace of the mounts.
func liveConfig(ctx context.Context) (*specs.Spec, error) {
	const pattern = "/run/belljar/*/pid"
	for range 1000 {
		if found, _ := filepath.Glob(pattern); len(found) == 1 {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "config.json"))
			if err != nil {
				return nil, err
			}
			config := new(specs.Spec)
			return config, json.Unmarshal(data, config)
		}
		pause(ctx, 10*time.Millisecond)
	}
	return nil, fmt.Errorf("no sandbox at %s", pattern)
}

// mountNamespace opens the namespace that has the sandboxes' mounts; the
// server holds it by a descriptor.
func (s *server) mountNamespace() (*os.File, error) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "mnt:[") {
			return os.Open(fd)
		}
	}
	return nil, errors.New("the server holds no mount namespace")
}
