package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"belljar/internal/agent"
	"belljar/internal/engine/enginetest"
	"belljar/internal/lang"
)

// poolTable has a runtime that waits at its gate, by shell, and says so.
const poolTable = `
[[runtime]]
name = "slow"
title = "A shell that starts early"
extension = "slow"
argv = ["sh", "-c", '''
warm=cold
if [ -n "$BELLJAR_GATE" ]; then
    gate=$BELLJAR_GATE
    warm=light${BELLJAR_PRELOAD:+full}
    unset BELLJAR_GATE BELLJAR_PRELOAD
    echo $$ > "${gate%/*}/pid"
    cat "$gate" > /dev/null
fi
export warm
exec sh {script}
''']
version = ["sh", "-c", "echo 1"]
warm = true
preload = '(?m)^# big'
pool_max = 4

[[runtime]]
name = "elsewhere"
title = "Elsewhere"
extension = "sh"
argv = ["sh", "{script}"]
version = ["sh", "-c", "echo 1"]
image = "another"
pool_max = 0
`

func slow(script string) Request { return Request{Runtime: "slow", Script: script} }

// newPoolBench returns a Manager with a pool.
func newPoolBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	b := newBench(t, append([]func(*Options){
		withTable(t, poolTable+othersOff(t)),
		func(o *Options) { o.PoolMemory, o.FreeMemory = 1<<30, func() float64 { return 1 } },
	}, change...)...)
	if err := b.StartPool(); err != nil {
		t.Fatal(err)
	}
	return b
}

// othersOff is a table in which the built-in runtimes have no part of the
// pool, but for Bash: it takes a moment to start, and is there.
func othersOff(t *testing.T) string {
	t.Helper()
	table, err := lang.Load()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range table.Names() {
		if name != "bash" {
			fmt.Fprintf(&text, "[[runtime]]\nname = %q\ntitle = \"-\"\nextension = \"x\"\nargv = [\"sh\", \"{script}\"]\nversion = [\"true\"]\npool_max = 0\n", name)
		}
	}
	return text.String()
}

// part is a runtime's part of the pool.
func (b *bench) part(kind string) PoolState {
	states, _ := b.Pool()
	for _, s := range states {
		if s.Runtime == "slow" && s.Kind == kind {
			return s
		}
	}
	return PoolState{}
}

// full waits until the pool is as large as it should be.
func (b *bench) full(t *testing.T) {
	t.Helper()
	eventually(t, "the pool is full", func() bool {
		states, _ := b.Pool()
		for _, s := range states {
			if s.Ready < s.Target {
				return false
			}
		}
		return len(states) > 0
	})
}

// spares are the identifiers of the pool's sandboxes of a kind.
func (b *bench) spares(kind laneKind) []string {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	var ids []string
	for _, l := range b.pool.lanes {
		for _, s := range l.ready {
			if l.kind == kind {
				ids = append(ids, s.b.id)
			}
		}
	}
	return ids
}

func TestPoolServesRuns(t *testing.T) {
	b := newPoolBench(t)
	b.full(t)
	r := slow("echo $warm; cat; cat input/in; env | grep -c BELLJAR; pwd; echo kept > output/kept")
	r.Stdin, r.Inputs = "stdin\n", []Input{{Name: "in", Data: []byte("input\n")}}
	was := b.spares(laneLight)[0]
	res := b.must(t, r)
	if want := "light\nstdin\ninput\n0\n"; !strings.HasPrefix(res.Stdout, want) || !strings.Contains(res.Stdout, was) {
		t.Errorf("stdout %q, want %q, then the directory of %s", res.Stdout, want, was)
	}
	if res.Limits.TimeoutSeconds != 60 || len(res.OutputFiles) != 2 && len(res.OutputFiles) != 1 {
		t.Errorf("result %+v", res)
	}
	if got := b.part("light"); got.Hits != 1 || got.Misses != 0 {
		t.Errorf("counted %+v, want a hit", got)
	}
	if res := b.must(t, slow("# big\necho $warm")); res.Stdout != "lightfull\n" {
		t.Errorf("a script that wants libraries got %q", res.Stdout)
	}
	if res := b.must(t, bash("echo $warm; pwd")); !strings.Contains(res.Stdout, kindSpare) {
		t.Errorf("a runtime that does not start early ran at %q, want a spare sandbox", res.Stdout)
	}
	b.full(t)
	eventually(t, "the used sandbox is gone", func() bool {
		return !strings.Contains(strings.Join(sandboxes(t, b.mem), " "), was)
	})
}

// Of runs that come at once, no two get the same sandbox, and what one leaves
// no other finds.
func TestFault8And9PoolIsClaimedOnce(t *testing.T) {
	b := newPoolBench(t, func(o *Options) { o.Concurrency = 8 })
	var mu sync.Mutex
	seen := map[string]int{}
	for range 3 {
		b.full(t)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				res, err := b.Run(context.Background(), slow("pwd; ls output; touch output/residue residue"))
				if err != nil || !res.Success {
					t.Errorf("run: %+v, %v", res, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				seen[res.Stdout]++
			})
		}
		all.Wait()
	}
	spare := 0
	for out, n := range seen {
		if n > 1 || strings.Contains(out, "residue") {
			t.Errorf("%d runs printed %q, want a sandbox for each, without residue", n, out)
		}
		if strings.Contains(out, kindSpare) {
			spare++
		}
	}
	if got := b.part("light"); spare == 0 || got.Target != 4 {
		t.Errorf("%d of 24 runs got a spare sandbox; the pool should have grown: %+v", spare, got)
	}
}

// A spare sandbox that died while it waited costs its run nothing.
func TestDeadSparesAreReplaced(t *testing.T) {
	b := newPoolBench(t)
	for _, kill := range []func(id string){
		func(id string) {
			if err := b.mem.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		},
		func(id string) { // the interpreter alone
			data, err := os.ReadFile(filepath.Join(b.mem.Root(id), agent.LogDir, "run/pid"))
			if err != nil {
				t.Fatal(err)
			}
			pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is dead", func() bool { return syscall.Kill(pid, 0) != nil })
		},
	} {
		b.full(t)
		id := b.spares(laneLight)[0]
		kill(id)
		res := b.must(t, slow("pwd"))
		if strings.Contains(res.Stdout, id) {
			t.Errorf("the run was given the dead sandbox: %q", res.Stdout)
		}
	}
}

func TestSparesAreReplaced(t *testing.T) {
	var digest atomic.Value
	digest.Store("one")
	var late atomic.Int64
	var free atomic.Int64
	free.Store(100)
	b := newPoolBench(t, func(o *Options) {
		o.Digest = func(string) (string, error) {
			if d := digest.Load().(string); d != "" {
				return d, nil
			}
			return "", errors.New("no image")
		}
		o.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
		o.FreeMemory = func() float64 { return float64(free.Load()) / 100 }
	})
	for what, change := range map[string]func(){
		"another image": func() { digest.Store(digest.Load().(string) + "x") },
		"age":           func() { late.Add(int64(spareAge)) },
	} {
		b.full(t)
		before := b.spares(laneLight)[0]
		change()
		if res := b.must(t, slow("pwd")); strings.Contains(res.Stdout, before) {
			t.Errorf("%s: the run was given %s", what, before)
		}
		eventually(t, what+": another is ready", func() bool {
			ids := b.spares(laneLight)
			return len(ids) > 0 && ids[0] != before && !strings.Contains(strings.Join(sandboxes(t, b.mem), " "), before)
		})
	}
	b.full(t)
	free.Store(5)
	eventually(t, "short of memory, the pool is empty", func() bool { return len(sandboxes(t, b.mem)) == 0 })
	free.Store(100)
	b.full(t)
	digest.Store("")
	eventually(t, "without an image, the pool is empty", func() bool { return len(sandboxes(t, b.mem)) == 0 })
}

// What prints before the gate would print it into every script's output.
func TestLoudStartIsNotUsed(t *testing.T) {
	loud := strings.Replace(poolTable, "warm=light", "echo loading\n    warm=light", 1)
	b := newPoolBench(t, withTable(t, loud+othersOff(t)))
	eventually(t, "the log names the runtime", func() bool {
		return strings.Contains(b.log.String(), `for=slow`) && strings.Contains(b.log.String(), "loading")
	})
	if res := b.must(t, slow("echo $warm")); res.Stdout != "cold\n" {
		t.Errorf("stdout %q", res.Stdout)
	}
	if got := b.part("light"); got.Misses != 1 || got.Ready != 0 {
		t.Errorf("pool: %+v", got)
	}
}

// What a command makes of its files at a first start, later sandboxes have: of
// the pool, and others, but not of another image.
func TestWhatACommandMadeIsKept(t *testing.T) {
	table := withTable(t, `
[[runtime]]
name = "slow"
title = "A shell that compiles"
extension = "slow"
argv = ["sh", "{files}/start.sh", "{script}"]
version = ["sh", "-c", "echo 1"]
files = ["start.sh"]
keep = "made"
warm = true
pool_max = 1
`+othersOff(t), `
here=${0%/*}
had=$(cat $here/made/code 2>/dev/null)
[ "$had" ] || { mkdir -p $here/made; echo code > $here/made/code; }
[ -z "$BELLJAR_GATE" ] || cat "$BELLJAR_GATE" > /dev/null
export had changed=$(stat -c %Y $here/start.sh)
exec sh "$1"
`)
	var digest atomic.Value
	digest.Store("one")
	b := newPoolBench(t, table, func(o *Options) { o.Digest = func(string) (string, error) { return digest.Load().(string), nil } })
	script := slow("echo had=$had; echo $changed")
	b.full(t)
	first := b.must(t, script)
	if !strings.HasPrefix(first.Stdout, "had=\n") {
		t.Errorf("the first: %q", first.Stdout)
	}
	b.full(t)
	want := strings.Replace(first.Stdout, "had=", "had=code", 1)
	if res := b.must(t, script); res.Stdout != want {
		t.Errorf("the second: %q, want %q", res.Stdout, want)
	}
	b.pool.close()
	if res := b.must(t, script); res.Stdout != want {
		t.Errorf("without a pool: %q, want %q", res.Stdout, want)
	}
	digest.Store("two")
	if res := b.must(t, script); res.Stdout != first.Stdout {
		t.Errorf("with another image: %q, want %q", res.Stdout, first.Stdout)
	}
}

func TestPoolIsBoundedInMemory(t *testing.T) {
	b := newPoolBench(t, func(o *Options) { o.PoolMemory = 2 * leastSize })
	// Asked for often, the pool of light ones takes all there is.
	for range 6 {
		b.must(t, slow("true"))
	}
	eventually(t, "the lane that is asked for has it", func() bool { return b.part("light").Ready == 2 })
	if _, memory := b.Pool(); memory > 2*leastSize {
		t.Errorf("the pool uses %d bytes", memory)
	}
	if n := len(b.spares(laneFull)) + len(b.spares(laneBare)); n > 0 {
		t.Errorf("%d more sandboxes than fit", n)
	}
}

func TestPoolIsOffByDefault(t *testing.T) {
	b := newBench(t, withTable(t, poolTable))
	if err := b.StartPool(); err != nil {
		t.Fatal(err)
	}
	if res := b.must(t, slow("echo $warm; pwd")); !strings.HasPrefix(res.Stdout, "cold\n") {
		t.Errorf("stdout %q", res.Stdout)
	}
	if n := len(b.spares(laneLight)); n > 0 {
		t.Errorf("%d spare sandboxes", n)
	}
}

// A run's time limit counts from its script's start, however long the
// interpreter has waited.
func TestPooledTimeout(t *testing.T) {
	b := newPoolBench(t)
	b.full(t)
	r := slow("echo begun; sleep 1000")
	r.Timeout = 300 * time.Millisecond
	res := b.must(t, r)
	if !res.TimedOut || res.Stdout != "begun\n" || res.DurationMS > 5000 {
		t.Errorf("got %+v", res)
	}
}

func TestPoolOfAnEarlierProcessGoes(t *testing.T) {
	mem := enginetest.NewMemory(t)
	made(t, mem, "spare-old", time.Now().Add(time.Hour), label(kindSpare, "server-1"))
	b := newBenchOn(t, mem)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids := sandboxes(t, mem); len(ids) > 0 {
		t.Errorf("left: %v", ids)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(fmt.Errorf("closing: %w", err))
	}
}
