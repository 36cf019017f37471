package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"belljar/internal/lang"
)

// memory is what the pool and the servers take, in bytes.
type memory struct {
	spares map[lane]usage // bare ones have no runtime
	// growth is how much one more spare sandbox adds to the server's own.
	growth int64
	// servers are the servers' resident memory.
	servers map[string]resident
}

type usage struct{ sandboxes, bytes int64 }

// resident is a server's memory when it has started, and its pool is full, and
// after all runs.
type resident struct{ started, after int64 }

// measureSpares reads what each kind of spare sandbox uses.
func measureSpares(s *server) (map[lane]usage, error) {
	id, err := s.id()
	if err != nil {
		return nil, err
	}
	table, err := lang.Load()
	if err != nil {
		return nil, err
	}
	all := map[lane]usage{}
	for _, pattern := range []string{"/sys/fs/cgroup/memory/belljar/%s/*", "/sys/fs/cgroup/belljar/%s/*"} {
		groups, err := filepath.Glob(fmt.Sprintf(pattern, id))
		if err != nil {
			return nil, err
		}
		for _, dir := range groups {
			bytes, ok := groupMemory(dir)
			if !ok {
				continue // a file, or the group of another controller
			}
			l := kindOf(dir, table)
			all[l] = usage{all[l].sandboxes + 1, all[l].bytes + bytes}
		}
	}
	return all, nil
}

// groupMemory is what a cgroup of either version uses, without file pages that
// were not used of late.
func groupMemory(dir string) (bytes int64, ok bool) {
	for file, inactive := range map[string]string{"memory.current": "inactive_file", "memory.usage_in_bytes": "total_inactive_file"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		used, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
		for line := range strings.Lines(string(stat)) {
			if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == inactive {
				n, _ := strconv.ParseInt(value, 10, 64)
				used -= n
			}
		}
		return used, err == nil
	}
	return 0, false
}

// kindOf finds out which lane a spare sandbox is of: by a process that waits
// at a gate with a script's name among its arguments.
func kindOf(dir string, table lang.Table) lane {
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, pid := range strings.Fields(string(procs)) {
		environ, _ := os.ReadFile(filepath.Join("/proc", pid, "environ"))
		if !strings.Contains("\x00"+string(environ), "\x00BELLJAR_GATE=") {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		for _, r := range table.All() {
			if !r.Warm || !slices.ContainsFunc(strings.Split(string(cmdline), "\x00"), func(arg string) bool {
				return arg == r.Script() || strings.HasSuffix(arg, "="+r.Script())
			}) {
				continue
			}
			if r.Preload == "" || strings.Contains("\x00"+string(environ), "\x00BELLJAR_PRELOAD=") {
				return lane{r.Name, "full"}
			}
			return lane{r.Name, "light"}
		}
	}
	return lane{kind: "bare"}
}

// crowd is how many spare sandboxes a server's growth is measured with: one
// alone makes less of a difference than two starts.
const crowd = 32

// crowded is a table with a runtime for which that many bare sandboxes wait.
const crowded = `[[runtime]]
name = "crowd"
title = "A crowd"
extension = "crowd"
argv = ["true", "{script}"]
version = ["true"]
pool_min = 32
pool_max = 32
`

// measureCrowd is the resident memory of a server that has filled a pool with
// a crowd.
func measureCrowd(ctx context.Context, o options, state string) (_ int64, err error) {
	table := filepath.Join(state, "crowd.toml")
	if err := os.WriteFile(table, []byte(crowded), 0o600); err != nil {
		return 0, err
	}
	s, err := start(o.belljar, state, o.image, "BELLJAR_RUNTIMES="+table)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	settler := &settler{servers: []*server{s}, patience: o.rest}
	if err := settler.settle(ctx, s, lane{"crowd", "bare"}); err != nil {
		return 0, err
	}
	if ready, err := s.pool(ctx, "ready"); err != nil || ready[lane{"crowd", "bare"}] < crowd {
		return 0, errors.Join(err, fmt.Errorf("the pool holds %v of %d bare sandboxes", ready[lane{"crowd", "bare"}], crowd))
	}
	return s.rss()
}
