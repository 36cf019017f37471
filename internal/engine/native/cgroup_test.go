package native

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/engine"
)

// TestReceipt reads limits back from control files as the kernel writes them,
// of the version that this host lacks as well.
func TestReceipt(t *testing.T) {
	asked := engine.Limits{Memory: 64 << 20, CPUs: 0.5, PIDs: 128}
	const (
		counted  = "swap and tmpfs pages (/tmp, /dev/shm) count in it"
		swaps    = "tmpfs pages (/tmp, /dev/shm) count in it; swap is not limited here"
		notHeld  = "the kernel does not hold this limit here"
		v2Events = "low 0\nhigh 0\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n"
	)
	held := engine.Receipt{
		Memory: engine.Limit{Value: 64 << 20, Enforced: true, Note: counted},
		CPUs:   engine.Limit{Value: 0.5, Enforced: true},
		PIDs:   engine.Limit{Value: 128, Enforced: true},
	}
	heldButSwap := held
	heldButSwap.Memory.Note = swaps
	none := engine.Receipt{
		Memory: engine.Limit{Value: 64 << 20, Note: notHeld},
		CPUs:   engine.Limit{Value: 0.5, Note: notHeld},
		PIDs:   engine.Limit{Value: 128, Note: notHeld},
	}
	for _, test := range []struct {
		name  string
		v1    bool
		files map[string]string
		want  engine.Receipt
		kills int64
	}{
		{"v2", false, map[string]string{
			"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "128",
			"cpu.max": "50000 100000", "memory.events": v2Events,
		}, held, 3},
		{"v2 without swap accounting", false, map[string]string{
			"memory.max": "67108864", "pids.max": "128", "cpu.max": "50000 100000",
		}, heldButSwap, 0},
		{"v2 without limits", false, map[string]string{
			"memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000",
		}, none, 0},
		{"v2 without controllers", false, nil, none, 0},
		{"v1", true, map[string]string{
			"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864", "pids.max": "128",
			"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		}, held, 3},
		{"v1 without limits", true, map[string]string{
			"memory.limit_in_bytes": "9223372036854771712", "memory.memsw.limit_in_bytes": "9223372036854771712",
			"pids.max": "max", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000",
		}, none, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c, m := cgroups{unified: dir}, membership{v2: dir}
			if test.v1 {
				c = cgroups{legacy: map[string]cgroupMount{"memory": {}, "cpu": {}, "pids": {}}}
				m = membership{dir: map[string]string{"memory": dir, "cpu": dir, "pids": dir}}
			}
			if d := cmp.Diff(test.want, c.receipt(m, asked)); d != "" {
				t.Errorf("receipt (-want +got):\n%s", d)
			}
			if got := c.oomKills(m); got != test.kills {
				t.Errorf("%d kills for want of memory, want %d", got, test.kills)
			}
		})
	}
}

// TestVacate makes a group, as a container's topmost one is, with a process in
// it.
func TestVacate(t *testing.T) {
	needRoot(t)
	host, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if host.unified == "" {
		t.Skip("needs a version 2 hierarchy, with or without controllers")
	}
	top, err := os.MkdirTemp(host.unified, "belljar-test-")
	if err != nil {
		t.Fatal(err)
	}
	inside := cgroups{unified: top}
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sleep.Process.Kill()
		sleep.Wait()
		if err := inside.end("/"); err != nil {
			t.Error(err)
		}
	})
	pid := strconv.Itoa(sleep.Process.Pid)
	if err := os.WriteFile(filepath.Join(top, "cgroup.procs"), []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is idempotent
		if err := inside.vacate(); err != nil {
			t.Fatal(err)
		}
		if above, below := readWord(top, "cgroup.procs"), readWord(filepath.Join(top, "init"), "cgroup.procs"); above != "" || below != pid {
			t.Errorf("processes in the group: %q, below: %q, want %s below", above, below, pid)
		}
	}
}
