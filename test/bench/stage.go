package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/lang"
)

// stage is where the contestants compete.
type stage struct {
	warm, cold  *server
	chroot      *chroot
	oci         *ociRuntime
	tools       []*tool
	settler     *settler
	contestants []contestant
	absent      []absence

	mu   sync.Mutex     // guards ends
	ends []func() error // what to do at the end, the last first
}

// atEnd adds something to do at the end.
func (s *stage) atEnd(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

func (s *stage) end() error {
	var errs []error
	for _, f := range slices.Backward(s.ends) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// set brings all contestants on, and measures the memory of servers that have
// done nothing yet.
func (s *stage) set(ctx context.Context, o options, r *results) error {
	img, err := findImage(o.state, o.image)
	if err != nil {
		return err
	}
	// Beside the state directory, since its image is linked.
	scratch := filepath.Clean(o.state) + "-bench"
	if err := os.MkdirAll(scratch, 0o711); err != nil {
		return err
	}
	if !o.keep {
		s.atEnd(func() error { return os.RemoveAll(scratch) })
	}
	s.openTools(ctx, o, scratch, img)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	progress("starting servers with a pool and without, and filling the pool")
	crowded, err := s.startServers(ctx, o, scratch, img)
	if err != nil {
		return err
	}
	if err := s.settler.settle(ctx, s.warm, lanes(r.workloads)...); err != nil {
		return err
	}
	if err := s.measureStarted(r, crowded); err != nil {
		return err
	}
	if err := s.openBare(ctx, img, r.workloads); err != nil {
		return err
	}
	s.line()
	r.facts = slices.Concat(machine(), versions(ctx, o.belljar, s))
	return nil
}

// openTools brings on docker and podman, where they can be had.
func (s *stage) openTools(ctx context.Context, o options, scratch string, img image) {
	open := map[string]func() (*tool, error){
		"docker": func() (*tool, error) {
			t, stop, err := openDocker(ctx, filepath.Join(scratch, "docker"))
			if err != nil {
				return nil, err
			}
			s.atEnd(stop)
			if err := t.load(ctx, img); err != nil {
				return nil, err
			}
			if !o.keep {
				s.atEnd(t.forget)
			}
			return t, nil
		},
		"podman": func() (*tool, error) {
			dir := filepath.Join(scratch, "podman")
			s.atEnd(func() error { return clearPodman(dir) })
			return openPodman(ctx, dir, img)
		},
	}
	opened := map[string]*tool{}
	reasons := map[string]error{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name, f := range open {
		if slices.Contains(o.without, name) {
			reasons[name] = errors.New("left out as asked")
			continue
		}
		progress("copying the image into %s's store", name)
		group.Go(func() {
			t, err := f()
			mu.Lock()
			defer mu.Unlock()
			opened[name], reasons[name] = t, err
		})
	}
	group.Wait()
	for _, name := range []string{"docker", "podman"} {
		if err := reasons[name]; err != nil {
			progress("%s is absent: %v", name, err)
			s.absent = append(s.absent, absence{name, err.Error()})
		} else {
			s.tools = append(s.tools, opened[name])
		}
	}
}

// clearPodman takes away the mounts that podman keeps in its store.
func clearPodman(dir string) error {
	for _, mount := range []string{"root/overlay", "run/overlay"} {
		unix.Unmount(filepath.Join(dir, mount), unix.MNT_DETACH)
	}
	return nil
}

// startServers starts those that take part, after another one that shows how
// a server grows with its pool: crowded is the memory of that.
func (s *stage) startServers(ctx context.Context, o options, scratch string, img image) (crowded int64, err error) {
	state := filepath.Join(scratch, "cold")
	if err := os.MkdirAll(state, 0o711); err != nil {
		return 0, err
	}
	s.atEnd(func() error { return os.RemoveAll(state) })
	if err := img.link(state); err != nil {
		return 0, err
	}
	if crowded, err = measureCrowd(ctx, o, state); err != nil {
		return 0, err
	}
	if s.warm, err = start(o.belljar, o.state, o.image); err != nil {
		return 0, err
	}
	s.atEnd(s.warm.stop)
	if s.cold, err = start(o.belljar, state, o.image, "BELLJAR_POOL_MEMORY=0", holdSetting); err != nil {
		return 0, err
	}
	s.atEnd(s.cold.stop)
	s.settler = &settler{servers: []*server{s.warm, s.cold}, held: map[*server]int{}, patience: o.rest}
	return crowded, nil
}

func lanes(workloads []workload) []lane {
	var all []lane
	for _, w := range workloads {
		all = append(all, w.lane())
	}
	return all
}

// measureStarted reads the memory of servers that have just started, and of
// the sandboxes in the pool.
func (s *stage) measureStarted(r *results, crowded int64) (err error) {
	if r.memory.spares, err = measureSpares(s.warm); err != nil {
		return err
	}
	warm, err := s.warm.rss()
	if err != nil {
		return err
	}
	cold, err := s.cold.rss()
	if err != nil {
		return err
	}
	r.memory.growth = (crowded - cold) / crowd
	r.memory.servers = map[string]resident{warmName: {started: warm}, coldName: {started: cold}}
	return nil
}

// openBare brings on what runs without a server of containers.
func (s *stage) openBare(ctx context.Context, img image, workloads []workload) (err error) {
	var runtimes []lang.Runtime
	for _, w := range workloads {
		runtimes = append(runtimes, w.runtime)
	}
	if s.chroot, err = newChroot(img, runtimes); err != nil {
		return err
	}
	s.atEnd(s.chroot.close)
	if s.oci, err = holdSandbox(ctx, s.cold); err != nil {
		return err
	}
	s.settler.held[s.cold] = 1
	s.atEnd(s.oci.close)
	return nil
}

// line lines the contestants up.
func (s *stage) line() {
	s.contestants = []contestant{
		belljarWarm(s.warm),
		{name: coldName, about: "the same with BELLJAR_POOL_MEMORY=0: a sandbox is made when it is asked for", run: s.cold.run},
		{name: bareName, about: "a process in a chroot of the image, with /dev and /proc, the script in a file",
			prepare: s.chroot.prepare, run: s.chroot.run, check: s.chroot.check},
		{name: ociName, about: "`" + filepath.Base(s.cold.runtime) + " run` with the configuration, mounts and limits of a real sandbox that is there already, the script on standard input",
			prepare: s.oci.prepare, run: s.oci.run},
	}
	for _, t := range s.tools {
		s.contestants = append(s.contestants, t.contestant())
	}
}

// measureLoads measures throughput.
func (s *stage) measureLoads(ctx context.Context, w workload, d time.Duration, r *results) error {
	s.oci.close()
	s.settler.held[s.cold] = 0
	r.loads = map[string]map[int]float64{}
	for _, n := range callers {
		for _, c := range s.contestants {
			if c.name != warmName && c.name != coldName && c.name != podmanName {
				continue
			}
			progress("throughput of %s, %d callers", c.name, n)
			if err := s.settler.settle(ctx, s.warm, w.lane()); err != nil {
				return err
			}
			took := d
			if n != judged {
				took /= 3
			}
			perSecond, err := load(ctx, c, w, n, took)
			if err != nil {
				return err
			}
			if r.loads[c.name] == nil {
				r.loads[c.name] = map[int]float64{}
			}
			r.loads[c.name][n] = perSecond
		}
	}
	return nil
}

// measureAfter reads the memory of servers after all runs.
func (s *stage) measureAfter(ctx context.Context, r *results) error {
	if err := s.settler.settle(ctx, nil); err != nil {
		return err
	}
	for name, server := range map[string]*server{warmName: s.warm, coldName: s.cold} {
		after, err := server.rss()
		if err != nil {
			return err
		}
		r.memory.servers[name] = resident{r.memory.servers[name].started, after}
	}
	return nil
}
