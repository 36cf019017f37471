package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// workspaces is what was measured of workspaces.
type workspaces struct {
	// A command in one that runs: by execute, on the host, and by docker exec.
	execute, bare, docker times
	// The first command of a stopped one, and a container of the OCI runtime.
	first, oci times
	// idle is what each of count idle ones takes, in bytes: of its control
	// group, and of the server.
	count         int
	group, growth int64
}

const (
	firstShare   = 2 // of the rounds
	noCommand    = "true"
	dockerExec   = "belljar-bench-exec"
	enoughToIdle = "BELLJAR_WORKSPACE_DISK=128MiB" // for that many not to ask for more disk than there is
)

// emptyWorkload is what the OCI runtime runs beside a stopped workspace's first
// command.
var emptyWorkload = workload{name: "empty", stdin: []string{noCommand}, share: 1}

// measureWorkspaces measures all of it. The OCI runtime's sandbox must still be
// held.
func (s *stage) measureWorkspaces(ctx context.Context, o options, rounds int, r *results) error {
	progress("commands in a workspace")
	state := filepath.Join(filepath.Clean(o.state)+"-bench", "workspaces")
	if err := os.MkdirAll(state, 0o711); err != nil {
		return err
	}
	s.atEnd(func() error { return os.RemoveAll(state) })
	img, err := findImage(o.state, o.image)
	if err != nil {
		return err
	}
	if err := img.link(state); err != nil {
		return err
	}
	server, err := start(o.belljar, state, o.image, "BELLJAR_POOL_MEMORY=0", "BELLJAR_IDLE_STOP=-1", enoughToIdle, "BELLJAR_WORKSPACES=300")
	if err != nil {
		return err
	}
	err = s.measureCommands(ctx, server, rounds, r)
	if err == nil {
		err = s.measureFirst(ctx, server, max(rounds/firstShare, 1), r)
	}
	if err == nil {
		progress("%d idle workspaces", o.idle)
		err = measureIdle(ctx, server, o.idle, r)
	}
	return errors.Join(err, server.deleteAll(), server.stop())
}

// measureCommands times a command that does nothing, in turns.
func (s *stage) measureCommands(ctx context.Context, server *server, rounds int, r *results) error {
	type way struct {
		to  *times
		run func() error
	}
	ways := []way{
		{&r.workspaces.execute, func() error { return server.execute(ctx, "bench", noCommand) }},
		{&r.workspaces.bare, func() error { return exec.CommandContext(ctx, "bash", "-c", noCommand).Run() }},
	}
	if _, err := server.call(ctx, "sandbox_create", map[string]any{"name": "bench"}); err != nil {
		return err
	}
	for _, t := range s.tools {
		if t.name != "docker" {
			continue
		}
		if _, err := t.try(ctx, "run", "--detach", "--rm", "--network", "none", "--name", dockerExec, t.tag, "sleep", "3600"); err != nil {
			return err
		}
		defer t.try(context.WithoutCancel(ctx), "kill", dockerExec)
		argv := t.command("exec", dockerExec, noCommand)
		ways = append(ways, way{&r.workspaces.docker, func() error {
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Env = t.env
			return cmd.Run()
		}})
	}
	const before = 3
	for i := range before + rounds {
		for _, w := range ways {
			if err := s.settler.rest(ctx); err != nil {
				return err
			}
			begun := time.Now()
			if err := w.run(); err != nil {
				return err
			}
			if i >= before {
				*w.to = append(*w.to, time.Since(begun))
			}
		}
	}
	return nil
}

// measureFirst times the first command of a stopped workspace, in turns with a
// container that does nothing.
func (s *stage) measureFirst(ctx context.Context, server *server, rounds int, r *results) error {
	if err := s.oci.prepare(ctx, emptyWorkload); err != nil {
		return err
	}
	for i := range 1 + rounds {
		if _, err := server.call(ctx, "sandbox_stop", map[string]any{"name": "bench", "end_jobs": true}); err != nil {
			return err
		}
		for _, w := range []struct {
			to  *times
			run func() error
		}{
			{&r.workspaces.first, func() error { return server.execute(ctx, "bench", noCommand) }},
			{&r.workspaces.oci, func() error { return s.oci.run(ctx, emptyWorkload) }},
		} {
			if err := s.settler.rest(ctx); err != nil {
				return err
			}
			begun := time.Now()
			if err := w.run(); err != nil {
				return err
			}
			if i > 0 {
				*w.to = append(*w.to, time.Since(begun))
			}
		}
	}
	return nil
}

// measureIdle makes many workspaces, each of which has executed a command.
func measureIdle(ctx context.Context, server *server, idle int, r *results) error {
	before, err := server.rss()
	if err != nil {
		return err
	}
	for i := range idle {
		name := fmt.Sprintf("idle-%d", i)
		if _, err := server.call(ctx, "sandbox_create", map[string]any{"name": name}); err != nil {
			return err
		}
		if err := server.execute(ctx, name, noCommand); err != nil {
			return err
		}
	}
	after, err := server.rss()
	if err != nil {
		return err
	}
	id, err := server.id()
	if err != nil {
		return err
	}
	var sum int64
	for _, pattern := range []string{"/sys/fs/cgroup/memory/belljar/%s/ws-*", "/sys/fs/cgroup/belljar/%s/ws-*"} {
		groups, err := filepath.Glob(fmt.Sprintf(pattern, id))
		if err != nil {
			return err
		}
		for _, dir := range groups {
			if used, ok := groupMemory(dir); ok {
				sum += used
				r.workspaces.count++
			}
		}
	}
	if r.workspaces.count < idle {
		return fmt.Errorf("%d of %d workspaces run", r.workspaces.count, idle)
	}
	r.workspaces.group = sum / int64(r.workspaces.count)
	r.workspaces.growth = (after - before) / int64(idle)
	return nil
}

// execute runs a command, which must succeed, in a workspace.
func (s *server) execute(ctx context.Context, sandbox, command string) error {
	answer, err := s.call(ctx, "execute", map[string]any{"sandbox": sandbox, "command": command})
	if err == nil && !bytes.Contains(answer, []byte(`"exit_code":0`)) {
		err = fmt.Errorf("the command failed: %s", answer)
	}
	return err
}

// deleteAll deletes the workspaces, which would outlive the server.
func (s *server) deleteAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	answer, err := s.call(ctx, "sandbox_list", map[string]any{})
	if err != nil {
		return err
	}
	_, data, _ := bytes.Cut(answer, []byte("data: "))
	var list struct {
		Result struct {
			StructuredContent struct{ Sandboxes []struct{ Name string } }
		}
	}
	if len(data) == 0 {
		data = answer
	}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&list); err != nil {
		return err
	}
	var errs []error
	for _, w := range list.Result.StructuredContent.Sandboxes {
		_, err := s.call(ctx, "sandbox_delete", map[string]any{"name": w.Name, "end_jobs": true})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// judge says for each threshold of workspaces whether it was met.
func (w workspaces) judge() []verdict {
	above := atMost("execute(true): milliseconds above bash on the host", 3)
	docker := atLeast("execute(true): faster than docker exec", 20)
	first := atMost("first command of a stopped workspace: time over that of a container of the OCI runtime", 3)
	memory := atMost("memory of each of many idle workspaces, in MiB", 8)
	if len(w.execute) > 0 {
		above.decide(float64(w.execute.median()-w.bare.median()) / float64(time.Millisecond))
	}
	if len(w.docker) > 0 {
		docker.decide(float64(w.docker.median()) / float64(w.execute.median()))
	}
	if len(w.first) > 0 {
		first.decide(float64(w.first.median()) / float64(w.oci.median()))
	}
	if w.count > 0 {
		memory.decide(float64(w.group+w.growth) / (1 << 20))
	}
	return []verdict{above, docker, first, memory}
}

// write prints the figures.
func (w workspaces) write(out io.Writer) {
	if len(w.execute) == 0 {
		return
	}
	fmt.Fprintf(out, "## Workspaces\n\nA command that does nothing; timed runs: %d each, of a first command %d.\n\n", len(w.execute), len(w.first))
	t := figures("", "median, ms", "p95, ms")
	for _, row := range []struct {
		name string
		of   times
	}{
		{"`execute` in a workspace that runs", w.execute}, {"bash on the host", w.bare}, {"docker exec", w.docker},
		{"`execute` in a workspace that is stopped", w.first}, {"container of the OCI runtime, by hand", w.oci},
	} {
		if len(row.of) > 0 {
			t.add(row.name, ms(row.of.median()), ms(row.of.p95()))
		}
	}
	t.write(out)
	fmt.Fprintf(out, "Memory of each of %d idle workspaces, in MiB: %s of its control group, and %s by which the server has grown.\n\n",
		w.count, mib(w.group), mib(w.growth))
}
