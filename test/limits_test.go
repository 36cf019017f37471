package test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFault22LimitsAreTheKernels: what a result says of its limits is what
// stands in the cgroup of the sandbox while it runs, seen from the host.
func TestFault22LimitsAreTheKernels(t *testing.T) {
	s := startServer(t, "BELLJAR_MEMORY=300MiB", "BELLJAR_CPUS=0.5", "BELLJAR_PIDS=77",
		"BELLJAR_TMP=20MiB", "BELLJAR_DISK=64MiB", "BELLJAR_INODES=4096")
	kernel := make(chan map[string]float64)
	results := make(chan *result, 1)
	go func() {
		defer close(results)
		// It goes on until its limits have been read.
		r, err := s.tryRun(t.Context(), "bash", `df -B1 --output=size / /tmp | tail -2; df --output=itotal / | tail -1
echo ready > /tmp/ready; : sandbox-of-fault-22; sleep 987654`, args{"timeout": 8})
		if err != nil {
			t.Error(err)
			return
		}
		results <- r
	}()
	go func() {
		defer close(kernel)
		if !eventually(func() bool { return len(sleepers(s.state)) == 1 }) {
			t.Error("the script did not start")
			return
		}
		kernel <- cgroupLimits(t, sleepers(s.state)[0].pid)
	}()
	real, r := <-kernel, <-results
	if real == nil || r == nil {
		t.FailNow()
	}
	var disk, tmp, inodes float64
	if n, err := fmt.Sscan(r.Stdout, &disk, &tmp, &inodes); n != 3 {
		t.Fatalf("%v: %s", err, r)
	}
	real["disk"], real["tmp"], real["inodes"] = disk, tmp, inodes
	asked := map[string]float64{"memory": 300 << 20, "cpus": 0.5, "pids": 77, "tmp": 20 << 20, "disk": 64 << 20, "inodes": 4096}
	for name, want := range asked {
		limit, _ := r.Limits[name].(map[string]any)
		if limit["enforced"] != true {
			t.Errorf("%s is not enforced: %v", name, limit)
		}
		value, _ := limit["value"].(float64)
		// df takes off what the filesystem itself needs; statfs's own count,
		// which the receipt has, is that of df.
		if value != real[name] {
			t.Errorf("%s: the result says %v, the kernel %v", name, value, real[name])
		}
		if exact := name != "disk" && name != "inodes"; exact && value != want || value > want*1.01 || value < want*0.8 {
			t.Errorf("%s is %v, asked for was %v", name, value, want)
		}
	}
	if r.Limits["network"] != "the internet, without private addresses" {
		t.Errorf("network: %v", r.Limits["network"])
	}
}

// cgroupLimits reads the limits of a process from its cgroups.
func cgroupLimits(t *testing.T, pid int) map[string]float64 {
	dirs := map[string]string{} // by controller, "" for version 2
	for line := range strings.Lines(read(fmt.Sprintf("/proc/%d/cgroup", pid))) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for name := range strings.SplitSeq(f[1], ",") {
			dirs[name] = filepath.Join("/sys/fs/cgroup", f[1], f[2])
		}
	}
	// The agent may be in a group of its own below the sandbox's.
	value := func(dir, name string) float64 {
		t.Helper()
		for ; len(dir) > len("/sys/fs/cgroup/"); dir = filepath.Dir(dir) {
			text := strings.Fields(read(filepath.Join(dir, name)))
			if len(text) == 0 || text[0] == "max" || text[0] == "-1" {
				continue
			}
			v, err := strconv.ParseFloat(text[0], 64)
			if err != nil {
				t.Error(err)
			}
			if len(text) == 2 { // cpu.max: "quota period"
				period, _ := strconv.ParseFloat(text[1], 64)
				v /= period
			}
			return v
		}
		t.Errorf("no %s", name)
		return 0
	}
	if memory, v1 := dirs["memory"]; v1 {
		return map[string]float64{
			"memory": value(memory, "memory.limit_in_bytes"),
			"cpus":   value(dirs["cpu"], "cpu.cfs_quota_us") / value(dirs["cpu"], "cpu.cfs_period_us"),
			"pids":   value(dirs["pids"], "pids.max"),
		}
	}
	return map[string]float64{
		"memory": value(dirs[""], "memory.max"), "cpus": value(dirs[""], "cpu.max"), "pids": value(dirs[""], "pids.max"),
	}
}

// TestFault23DiskFill: a full disk is an error that the script gets, not a
// kill, in every place that it may write to; and the host's disk gives no
// more than the limit.
func TestFault23DiskFill(t *testing.T) {
	s := startServer(t, "BELLJAR_DISK=128MiB", "BELLJAR_TMP=48MiB", "BELLJAR_MEMORY=512MiB", "BELLJAR_POOL_MEMORY=0")
	for _, dir := range []string{"/", "/sandbox", "/sandbox/output", "/var/tmp", "/tmp"} {
		t.Run("in "+dir, func(t *testing.T) {
			before := diskUsed(t, s.state)
			r := s.succeed(t, "python", fmt.Sprintf(`
import errno, os
f, written = open(os.path.join(%q, "fill"), "wb", buffering=0), 0
try:
    while True: written += f.write(b"x"*(1<<20))
except OSError as e:
    print(errno.errorcode[e.errno], written >> 20)
# The sandbox still works: small things go elsewhere.
where = "/dev/shm/ok" if %[1]q == "/tmp" else "/tmp/ok"
open(where, "w").write("fine"); print(open(where).read())
os.unlink(f.name)
open("/sandbox/output/after.txt", "w").write("there is room again")`, dir))
			var code, fine string
			var mib int
			if _, err := fmt.Sscan(r.Stdout, &code, &mib, &fine); err != nil || code != "ENOSPC" || fine != "fine" {
				t.Errorf("%v: %s", err, r)
			}
			limit := 128
			if dir == "/tmp" {
				limit = 48
			}
			if mib > limit || mib < limit*3/4 {
				t.Errorf("%d MiB were written, the limit is %d", mib, limit)
			}
			if f := r.file(t, "after.txt"); f.data(t) != "there is room again" {
				t.Errorf("%+v", f)
			}
			if grown := diskUsed(t, s.state) - before; grown > 140<<20 {
				t.Errorf("the host's disk gave %d MiB", grown>>20)
			}
			s.settled(t)
			if grown := diskUsed(t, s.state) - before; grown > 4<<20 {
				t.Errorf("%d MiB are not given back", grown>>20)
			}
		})
	}
}

// TestFault23InodeFill: the same for the number of files.
func TestFault23InodeFill(t *testing.T) {
	s := startServer(t, "BELLJAR_DISK=128MiB", "BELLJAR_INODES=2048", "BELLJAR_MEMORY=128MiB", "BELLJAR_POOL_MEMORY=0")
	for _, dir := range []string{"/", "/sandbox", "/var/tmp"} {
		r := s.succeed(t, "python", fmt.Sprintf(`
import errno, os
d, n = os.path.join(%q, "many"), 0
os.mkdir(d)
try:
    while True:
        os.close(os.open(f"{d}/{n}", os.O_CREAT))
        n += 1
except OSError as e:
    print(errno.errorcode[e.errno], n)
for i in range(10): os.unlink(f"{d}/{i}")
open("/sandbox/output/after.txt", "w").write("there is room again")`, dir))
		var code string
		var n int
		if _, err := fmt.Sscan(r.Stdout, &code, &n); err != nil || code != "ENOSPC" || n > 4096 || n < 1500 {
			t.Errorf("%s: %v: %s", dir, err, r)
		}
		if f := r.file(t, "after.txt"); f.data(t) != "there is room again" {
			t.Errorf("%+v", f)
		}
	}
	// /tmp is memory, which is what bounds its files.
	r := s.run(t, "python", `
import os
n = 0
try:
    while n < 10_000_000:
        os.close(os.open(f"/tmp/{n}", os.O_CREAT)); n += 1
except OSError as e: print(e.strerror, n)`, args{"timeout": 60})
	if !strings.HasPrefix(r.Stdout, "No space left on device") && !strings.Contains(r.Error, "memory") {
		t.Errorf("files in /tmp: %s", r)
	}
	s.settled(t)
}

// TestFault23HostNearlyFull: while the host's disk cannot hold another
// sandbox, there is none, and the refusal says so.
func TestFault23HostNearlyFull(t *testing.T) {
	needRoot(t)
	var host unix.Statfs_t
	if err := unix.Statfs(cacheDir, &host); err != nil {
		t.Fatal(err)
	}
	// A sandbox as large as what is free is more than there is room for.
	free := int64(host.Bavail) * host.Bsize
	s := startServer(t, fmt.Sprintf("BELLJAR_DISK=%dMiB", free>>20), "BELLJAR_POOL_MEMORY=0")
	text := s.refused(t, "bash", "echo ran")
	for _, want := range []string{"short of room", "MiB free", "nothing was run"} {
		if !strings.Contains(text, want) {
			t.Errorf("refused with %q, which lacks %q", text, want)
		}
	}
	s.settled(t)
}

// TestFault24ForkBomb: it stays in its sandbox, others still run meanwhile,
// and nothing of it is left.
func TestFault24ForkBomb(t *testing.T) {
	s := startServer(t)
	bombed := make(chan *result, 1)
	go func() {
		defer close(bombed)
		r, err := s.tryRun(t.Context(), "bash", "echo armed; bomb() { bomb | bomb & }; bomb; sleep 1000", args{"timeout": 10})
		if err != nil {
			t.Error(err)
			return
		}
		bombed <- r
	}()
	most := 0
	if !eventually(func() bool { most = max(most, len(inside(s.state))); return most > 300 }) {
		t.Errorf("the bomb made %d processes, which is none", most)
	}
	if r := s.succeed(t, "bash", "echo meanwhile"); r.Stdout != "meanwhile\n" {
		t.Errorf("%s", r)
	}
	most = max(most, len(inside(s.state)))
	r := <-bombed
	if r == nil {
		t.FailNow()
	}
	if most > 530 { // of the bomb and of the other sandbox
		t.Errorf("%d processes were alive", most)
	}
	if r.Success || !strings.HasPrefix(r.Stdout, "armed\n") {
		t.Errorf("%s", r)
	}
	s.settled(t)
}

// TestMemoryBomb: the sandbox's memory ends, the script is killed, and the
// result says so in words. Files in memory count too.
func TestMemoryBomb(t *testing.T) {
	s := startServer(t, "BELLJAR_MEMORY=256MiB")
	for name, script := range map[string]string{
		// A worker that is killed leaves the others waiting until the timeout.
		"hang": "import os, time\nif os.fork() == 0: x = bytearray(b'x'*(300<<20))\ntime.sleep(100)",
		"heap": "hog = []\nwhile True: hog.append(bytearray(8 << 20))",
		"shm":  "f = open('/dev/shm/hog', 'wb')\nwhile True: f.write(b'x'*(1<<20))",
		"tmp":  "f = open('/tmp/hog', 'wb')\nwhile True: f.write(b'x'*(1<<20))",
		"many": "import os, time\nfor i in range(50):\n    if os.fork() == 0: break\nx = bytearray(b'x'*(64<<20)); time.sleep(2); os.wait(); os._exit(1)",
	} {
		timeout := 60
		if name == "hang" {
			timeout = 4
		}
		r := s.run(t, "python", "print('begun', flush=True)\n"+script, args{"timeout": timeout})
		if r.Success || r.TimedOut != (name == "hang") {
			t.Errorf("%s: %s", name, r)
		}
		// A tmpfs may be smaller than the memory; then it is full first.
		if !strings.Contains(r.Error, "killed for want of memory: the limit is 256 MiB") && !strings.Contains(r.Stderr, "No space left") {
			t.Errorf("%s: the result does not say why: %s", name, r)
		}
	}
	if r := s.succeed(t, "bash", "echo after"); r.Stdout != "after\n" {
		t.Errorf("%s", r)
	}
	s.settled(t)
}

// TestStrictLimits: an operator who asks for strictness gets runs where the
// kernel holds all limits, as it does wherever these tests pass.
func TestStrictLimits(t *testing.T) {
	s := startServer(t, "BELLJAR_STRICT_LIMITS=1")
	s.succeed(t, "bash", "true")
}

// TestBusyServerWaits: above the concurrency, runs wait for their turn.
func TestBusyServerWaits(t *testing.T) {
	s := startServer(t, "BELLJAR_CONCURRENCY=1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.tryRun(ctx, "bash", "sleep 987654", args{"timeout": 300})
	if !eventually(func() bool { return len(sleepers(s.state)) == 1 }) {
		t.Fatal("the script did not start")
	}
	waiting := make(chan *result, 1)
	go func() {
		defer close(waiting)
		if r, err := s.tryRun(t.Context(), "bash", "echo my turn"); err != nil {
			t.Error(err)
		} else {
			waiting <- r
		}
	}()
	if n := len(s.sandboxes(t)); n != 1 {
		t.Errorf("%d sandboxes at a time", n)
	}
	cancel() // the first one's client
	if r := <-waiting; r == nil || r.Stdout != "my turn\n" {
		t.Errorf("%s", r)
	}
}
