package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"belljar/internal/engine"
	"belljar/internal/lang"
)

// countCreates counts the sandboxes that are made.
func countCreates(n *atomic.Int64) func(*Options) {
	return func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, create: func(ctx context.Context, s engine.Spec) error {
			n.Add(1)
			return real.Create(ctx, s)
		}}
	}
}

// withTable adds entries to the table of runtimes, which may name start as the
// file start.sh.
func withTable(t *testing.T, text string, start ...string) func(*Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "runtimes.toml")
	for _, script := range start {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "start.sh"), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := lang.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.Table = table }
}

const moreRuntimes = `
[[runtime]]
name = "absent"
title = "Absent"
extension = "x"
argv = ["no-such-program", "{script}"]
version = ["no-such-program", "--version"]

[[runtime]]
name = "c++"
title = "C++"
extension = "cc"
argv = ["bash", "{script}"]
version = ["bash", "-c", "echo; echo \"  C++ $STANDARD\"; echo more"]
packages = ["bash", "-c", "echo boost 1.90; echo; echo eigen 3.4"]
env = { STANDARD = "23" }

[[runtime]]
name = "sick"
title = "Sick"
extension = "x"
argv = ["false", "{script}"]
version = ["bash", "-c", "echo cannot load libsick >&2; exit 5"]

[[runtime]]
name = "elsewhere"
title = "Elsewhere"
extension = "x"
argv = ["bash", "{script}"]
version = ["bash", "-c", "echo 1"]
image = "big"
`

func TestRuntimes(t *testing.T) {
	var creates atomic.Int64
	now := time.Now()
	b := newBench(t, countCreates(&creates), withTable(t, moreRuntimes), func(o *Options) {
		o.Now = func() time.Time { return now }
	})
	b.mem.SetImages("mini")
	infos, err := b.Runtimes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]RuntimeInfo{}
	var order []string
	for _, r := range infos {
		got[r.Name] = r
		order = append(order, r.Name)
	}
	if want := b.o.Table.Names(); !slices.Equal(order, want) {
		t.Errorf("order: %q, want %q", order, want)
	}
	if r := got["bash"]; !r.Available || !strings.HasPrefix(r.Version, "5.") || r.Extension != "sh" || r.Image != "mini" ||
		r.DefaultTimeout != 60 || r.MaxTimeout != 300 || r.Limits == nil || r.Limits.Memory.Value != 2<<30 {
		t.Errorf("bash: %+v", r)
	}
	if r := got["c++"]; !r.Available || r.Version != "C++ 23" || strings.Join(r.Packages, ",") != "boost 1.90,eigen 3.4" {
		t.Errorf("c++: %+v", r)
	}
	for name, reason := range map[string]string{
		"absent":    `Absent is not installed in the image "mini"`,
		"sick":      "its version command ended with exit code 5: cannot load libsick",
		"elsewhere": `the image "big" is not there yet; get it on the server: belljar image pull big`,
	} {
		if r := got[name]; r.Available || !strings.Contains(r.Reason, reason) || r.Limits != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}

	// What is known is kept for a while; what failed is not.
	b.mem.SetImages("mini", "big")
	creates.Store(0)
	infos, err = b.Runtimes(t.Context())
	if err != nil || creates.Load() != 1 {
		t.Fatalf("%d sandboxes for one image that was not known: %v", creates.Load(), err)
	}
	for _, r := range infos {
		if r.Name == "elsewhere" && (!r.Available || r.Version != "1") {
			t.Errorf("elsewhere: %+v", r)
		}
	}
	now = now.Add(probeFresh)
	creates.Store(0)
	if _, err = b.Runtimes(t.Context()); err != nil || creates.Load() != 2 {
		t.Errorf("%d sandboxes for two images known too long ago: %v", creates.Load(), err)
	}
}

func TestRuntimesShareAProbe(t *testing.T) {
	var creates atomic.Int64
	hold := make(chan struct{})
	b := newBench(t, func(o *Options) {
		real := o.Engine
		o.Engine = &faultyEngine{Engine: real, create: func(ctx context.Context, s engine.Spec) error {
			creates.Add(1)
			<-hold
			return real.Create(ctx, s)
		}}
	})
	// The first caller gives up; the probe goes on for the others.
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := b.Runtimes(ctx)
		first <- err
	}()
	eventually(t, "the probe has begun", func() bool { return creates.Load() == 1 })
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that gave up: %v", err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			infos, err := b.Runtimes(t.Context())
			if err != nil || len(infos) != len(b.o.Table.Names()) || !infos[0].Available {
				t.Errorf("%d runtimes, %v", len(infos), err)
			}
		})
	}
	close(hold)
	all.Wait()
	if creates.Load() != 1 {
		t.Errorf("%d sandboxes", creates.Load())
	}
}

func TestRuntimesWithoutSandbox(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.Engine = &faultyEngine{Engine: o.Engine, create: func(context.Context, engine.Spec) error {
			return errors.New("mount /var/lib/secret: input/output error")
		}}
	})
	infos, err := b.Runtimes(t.Context())
	if err != nil || len(infos) != len(b.o.Table.Names()) {
		t.Fatalf("%d runtimes, %v", len(infos), err)
	}
	for _, r := range infos {
		if r.Available || !strings.Contains(r.Reason, "the server's log says why") || strings.Contains(r.Reason, "secret") {
			t.Errorf("%+v", r)
		}
	}
	if !strings.Contains(b.log.String(), "secret") {
		t.Error("the log does not say why")
	}
}
