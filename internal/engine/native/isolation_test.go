package native

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
)

// started opens an engine and starts a sandbox to look around in.
func started(t *testing.T, change func(*engine.Spec)) (*enginetest.Subject, *agent.Client) {
	t.Helper()
	s := newSubject(t, options(t.TempDir(), ""))
	return s, start(t, s, "inside", change)
}

func start(t *testing.T, s *enginetest.Subject, id string, change func(*engine.Spec)) *agent.Client {
	t.Helper()
	spec := engine.Spec{ID: id, Image: "busybox", Limits: enginetest.Limits()}
	if change != nil {
		change(&spec)
	}
	s.Start(t, spec)
	return s.Connect(t, id)
}

func TestNamespaces(t *testing.T) {
	_, c := started(t, nil)
	for _, kind := range []string{"user", "mnt", "pid", "ipc", "uts", "net", "cgroup"} {
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		inside := strings.TrimSpace(enginetest.Output(t, c, "readlink /proc/self/ns/"+kind))
		if inside == host || !strings.HasPrefix(inside, kind+":[") {
			t.Errorf("%s namespace inside is %q, the host's is %q", kind, inside, host)
		}
	}
	if got := enginetest.Output(t, c, "hostname"); got != "sandbox\n" {
		t.Errorf("host name %q", got)
	}
	if got := enginetest.Output(t, c, "cat /proc/1/comm"); got != "agent\n" {
		t.Errorf("process 1 is %q", got)
	}
}

func TestRootInsideIsNoOneOutside(t *testing.T) {
	s, c := started(t, nil)
	d := start(t, s, "other", nil)
	maps := map[string]bool{}
	for _, client := range []*agent.Client{c, d} {
		for _, file := range []string{"uid_map", "gid_map"} {
			var in, out, size int
			text := enginetest.Output(t, client, "cat /proc/self/"+file)
			if _, err := fmt.Sscan(text, &in, &out, &size); err != nil {
				t.Fatal(err)
			}
			if in != 0 || out < rangesBase || size != rangeSize {
				t.Errorf("%s: %s", file, text)
			}
			maps[text] = true
		}
	}
	if len(maps) != 2 {
		t.Errorf("two sandboxes have the mappings %v, want one each", maps)
	}
	// What the sandbox's root writes belongs to no one on the host, and what
	// the image holds is root's inside.
	if got := enginetest.Output(t, c, "id -u; touch /root/x; stat -c %u:%g /root/x /bin/busybox"); got != "0\n0:0\n0:0\n" {
		t.Errorf("ids inside: %q", got)
	}
}

func TestPrivileges(t *testing.T) {
	_, c := started(t, nil)
	want := map[string]string{
		"Seccomp": "2", "NoNewPrivs": "1", "CapInh": "0000000000000000", "CapAmb": "0000000000000000",
		// Docker's default set without NET_RAW (13) and MKNOD (27).
		"CapPrm": "00000000a00405fb", "CapEff": "00000000a00405fb", "CapBnd": "00000000a00405fb",
	}
	for _, who := range []string{"1", "self"} {
		got := map[string]string{}
		for line := range strings.Lines(enginetest.Output(t, c, "cat /proc/"+who+"/status")) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if _, ok := want[name]; ok {
				got[name] = strings.TrimSpace(value)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("process %s (-want +got):\n%s", who, d)
		}
	}
}

func TestForbidden(t *testing.T) {
	_, c := started(t, nil)
	// The error may differ between kernels and runtimes; that there is one
	// may not. What is masked may also be empty.
	for line := range strings.Lines(enginetest.Output(t, c, "prober")) {
		if strings.HasSuffix(line, ": allowed\n") {
			t.Errorf("the sandbox may: %s", line)
		}
	}
	// A program that gains the owner's rights gains nothing: no_new_privs.
	got := enginetest.Output(t, c, "echo 'u:x:1000:1000::/:/bin/sh' >>/etc/passwd; su u -s /bin/sh -c /usr/bin/euid")
	if strings.TrimSpace(got) != "1000" {
		t.Errorf("a setuid program of the image runs as %s", got)
	}
}

func TestDevices(t *testing.T) {
	_, c := started(t, nil)
	got := strings.Fields(enginetest.Output(t, c, "cd /dev; find . -type c -o -type b | sort"))
	want := []string{"./full", "./null", "./pts/ptmx", "./random", "./tty", "./urandom", "./zero"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
}

func TestNoNetworkIsLoopback(t *testing.T) {
	_, c := started(t, nil)
	got := strings.Fields(enginetest.Output(t, c, "ls /sys/class/net"))
	if !slices.Equal(got, []string{"lo"}) {
		t.Errorf("interfaces: %v", got)
	}
	// Loopback works, nothing else has a route.
	out := enginetest.Output(t, c, "ping -c 1 -W 1 127.0.0.1 >/dev/null 2>&1; nc -l -p 7 -e echo hello >/dev/null 2>&1 & for i in 1 2 3 4 5 6 7 8 9 10; do nc 127.0.0.1 7 2>/dev/null </dev/null && break; sleep 0.1; done; cat /proc/net/route | wc -l; nc -w 1 10.0.0.1 80 </dev/null 2>&1; nc -w 1 169.254.169.254 80 </dev/null 2>&1; true")
	if !strings.HasPrefix(out, "hello\n1\n") || strings.Count(out, "unreachable") != 2 {
		t.Errorf("network: %q", out)
	}
}

func TestHostDoesNotShow(t *testing.T) {
	s, c := started(t, nil)
	dir := s.Engine.(*Engine).dir
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := enginetest.Output(t, c, fmt.Sprintf("cat %s/secret /proc/1/root%s/secret 2>/dev/null; ls %s 2>/dev/null; env; cat /proc/1/environ 2>/dev/null; ls -l /proc/*/fd 2>/dev/null", dir, dir, dir))
	for _, leak := range []string{"host\n", "sandboxes", "layer.ext4"} {
		if strings.Contains(got, leak) {
			t.Errorf("%q shows inside:\n%s", leak, got)
		}
	}
	// The other way round: a setuid file of the image is not within reach of
	// the host's users, since all paths to it begin in a closed directory.
	for _, d := range []string{e(s).sandboxDir(""), filepath.Dir(e(s).sandboxDir(""))} {
		info, err := os.Stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if d != dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", d, info.Mode())
		}
	}
	if entries, _ := filepath.Glob(runDir + "/inside*"); len(entries) != 0 {
		t.Errorf("mounts show on the host: %v", entries)
	}
}

// TestOwnCgroupShows looks at /sys/fs/cgroup, from which programs take the size
// of their heaps and pools: it shows the sandbox's own group or, in version 1,
// nothing.
func TestOwnCgroupShows(t *testing.T) {
	for _, runtime := range candidates {
		t.Run(runtime, func(t *testing.T) {
			needRuntime(t, runtime)
			s := newSubject(t, options(t.TempDir(), runtime))
			c := start(t, s, "inside", nil)
			start(t, s, "other", nil)
			if !e(s).cg.v2() {
				if got := enginetest.Output(t, c, "ls -A /sys/fs/cgroup"); got != "" {
					t.Errorf("/sys/fs/cgroup shows %q", got)
				}
				return
			}
			l := enginetest.Limits()
			want := fmt.Sprintf("%d\n0\n%d\n%d 100000\n", l.Memory, l.PIDs, int64(l.CPUs*100_000))
			if got := enginetest.Output(t, c, "cd /sys/fs/cgroup; cat memory.max memory.swap.max pids.max cpu.max"); got != want {
				t.Errorf("limits inside: %q, want %q", got, want)
			}
			// Its processes have numbers there, those of others would show as 0.
			if got := enginetest.Output(t, c, "cd /sys/fs/cgroup; head -n 1 cgroup.procs; grep -cx 0 cgroup.procs; find . -type d; cat /proc/self/cgroup"); got != "1\n0\n.\n0::/\n" {
				t.Errorf("groups inside: %q", got)
			}
		})
	}
}

func e(s *enginetest.Subject) *Engine { return s.Engine.(*Engine) }

func TestMemoryLimit(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.Memory = 64 << 20 })
	st := enginetest.Shell(t, c, "x=$(head -c 200000000 /dev/zero | tr '\\0' x)")
	if st.ExitCode == 0 {
		t.Errorf("took 200 MB of 64 MiB: %+v", st)
	}
	r, err := s.Engine.Inspect(t.Context(), "inside")
	if err != nil || r.OOMKills == 0 {
		t.Errorf("after the bomb: %d kills, %v", r.OOMKills, err)
	}
	if r.Memory.Value != 64<<20 || !r.Memory.Enforced || !strings.Contains(r.Memory.Note, "tmpfs") {
		t.Errorf("receipt: %+v", r.Memory)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Errorf("the agent after the bomb: %v", err)
	}
}

// TestTmpCountsAsMemory fills a /tmp that is larger than the memory limit.
// Its pages stay when the writer is killed, so the sandbox may end with it;
// its counters can be read all the same.
func TestTmpCountsAsMemory(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.Memory = 64 << 20; spec.Limits.Tmp = 256 << 20 })
	spec := agent.JobSpec{ID: "fill", Argv: []string{"head", "-c", "200000000", "/dev/zero"}, Timeout: time.Minute}
	spec.Argv = []string{"sh", "-c", strings.Join(spec.Argv, " ") + " >/tmp/bomb"}
	if err := c.StartJob(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitJob(t.Context(), "fill"); err == nil && st.ExitCode == 0 {
		t.Errorf("took 200 MB of 64 MiB: %+v", st)
	}
	if r, err := s.Engine.Inspect(t.Context(), "inside"); err != nil || r.OOMKills == 0 {
		t.Errorf("after the bomb: %d kills, %v", r.OOMKills, err)
	}
}

func TestForkBomb(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.PIDs = 64 })
	st := enginetest.Shell(t, c, "i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i+1)); done")
	if st.State != agent.JobExited {
		t.Errorf("the bomb: %+v", st)
	}
	if n := len(e(s).cg.procs(e(s).group("inside"))); n > 64 {
		t.Errorf("%d processes", n)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Errorf("the agent after the bomb: %v", err)
	}
}

// TestDiskLimit fills the writable layer: the writer hears ENOSPC, and nobody
// is killed, although more is written than the memory limit.
func TestDiskLimit(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.Memory = 48 << 20; spec.Limits.Disk = 128 << 20 })
	st := enginetest.Shell(t, c, "dd if=/dev/zero of=/root/fill bs=1M 2>&1; stat -c %s /root/fill")
	if st.ExitCode != 0 || !strings.Contains(string(st.Stdout.Head), "No space left") {
		t.Errorf("filling the disk: %+v %s", st, st.Stdout.Head)
	}
	r, err := s.Engine.Inspect(t.Context(), "inside")
	if err != nil || r.OOMKills != 0 || !r.Disk.Enforced {
		t.Errorf("receipt: %+v, %v", r, err)
	}
	enginetest.Output(t, c, "rm /root/fill; echo again >/root/after; cat /root/after")
	// Room that was given back inside is given back to the host.
	deadline := time.Now().Add(20 * time.Second)
	for {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(e(s).sandboxDir("inside"), layerFile), &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 < 32<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the layer still takes %d MiB", st.Blocks*512>>20)
		}
		enginetest.Output(t, c, "sync") // discards happen as transactions end
	}
}

func TestInodeLimit(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.Inodes = 1024 })
	st := enginetest.Shell(t, c, "mkdir /root/d; cd /root/d; i=0; while [ $i -lt 8000 ]; do touch $i || break; i=$((i+1)); done; echo $i")
	var made int
	fmt.Sscan(string(st.Stdout.Head), &made)
	r, err := s.Engine.Inspect(t.Context(), "inside")
	if err != nil {
		t.Fatal(err)
	}
	if made == 0 || float64(made) > r.Inodes.Value || !strings.Contains(string(st.Stderr.Head), "No space left") {
		t.Errorf("made %d files of %v: %s", made, r.Inodes.Value, st.Stderr.Head)
	}
}

func TestTmpLimit(t *testing.T) {
	_, c := started(t, func(spec *engine.Spec) { spec.Limits.Tmp = 8 << 20 })
	st := enginetest.Shell(t, c, "head -c 20000000 /dev/zero >/tmp/fill; stat -c %s /tmp/fill; stat -c %a /tmp")
	if string(st.Stdout.Head) != fmt.Sprintf("%d\n1777\n", 8<<20) {
		t.Errorf("/tmp holds %s: %s", st.Stdout.Head, st.Stderr.Head)
	}
}

func TestCPULimit(t *testing.T) {
	s, c := started(t, func(spec *engine.Spec) { spec.Limits.CPUs = 0.25 })
	// Two loops for a second of wall time: the kernel counts what they got.
	out := enginetest.Output(t, c, "loop='while :; do :; done'; timeout 1 sh -c \"$loop\" & timeout 1 sh -c \"$loop\"; wait; times")
	fields := strings.Fields(out) // the shell's own, then its children's
	if len(fields) != 4 {
		t.Fatalf("times printed %q", out)
	}
	user, _ := time.ParseDuration(fields[2])
	system, _ := time.ParseDuration(fields[3])
	if total := user + system; total == 0 || total > 600*time.Millisecond {
		t.Errorf("two loops got %v of CPU in a second, 0.25 is the limit", total)
	}
	if r, _ := s.Engine.Inspect(t.Context(), "inside"); r.CPUs.Value != 0.25 || !r.CPUs.Enforced {
		t.Errorf("receipt: %+v", r.CPUs)
	}
}

// TestHostileImages starts images whose directories lead out of them.
func TestHostileImages(t *testing.T) {
	needRoot(t)
	host := t.TempDir()
	for name, links := range map[string]map[string]string{
		"dev":  {"dev": host},
		"proc": {"proc": host},
		"sys":  {"sys": host},
		"tmp":  {"tmp": host},
		"run":  {"run": host},
		"work": {"sandbox": host, "var": host},
		"etc":  {"etc": host},
	} {
		t.Run(name, func(t *testing.T) {
			rootfs := filepath.Join(t.TempDir(), "rootfs")
			if err := os.CopyFS(rootfs, os.DirFS(filepath.Join(fixture.dir, "rootfs"))); err != nil {
				t.Fatal(err)
			}
			for link, target := range links {
				if err := os.RemoveAll(filepath.Join(rootfs, link)); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, filepath.Join(rootfs, link)); err != nil {
					t.Fatal(err)
				}
			}
			o := options(t.TempDir(), "")
			o.Images = images{"hostile": rootfs}
			s := newSubject(t, o)
			spec := engine.Spec{ID: "h", Image: "hostile", Limits: enginetest.Limits()}
			if err := s.Engine.Create(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Engine.Remove(t.Context(), "h") })
			// It may be refused, start and end, or run; the host must not
			// notice.
			if err := s.Engine.Start(t.Context(), "h"); err == nil {
				if conn, err := s.Engine.Connect(t.Context(), "h"); err == nil {
					c := agent.NewClient(conn)
					defer c.Close()
					enginetest.Shell(t, c, "echo x >/sandbox/x; echo y >/tmp/y")
				}
			}
			if err := s.Engine.Remove(t.Context(), "h"); err != nil {
				t.Error(err)
			}
			if entries, err := os.ReadDir(host); err != nil || len(entries) != 0 {
				t.Errorf("on the host: %v, %v", entries, err)
			}
		})
	}
}
