package test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestBench runs the benchmark as short as can be, without docker and podman,
// and looks for a figure of each kind in its report.
func TestBench(t *testing.T) {
	state := newState(t)
	bench := filepath.Join(t.TempDir(), "bench")
	if out, err := exec.Command("go", "build", "-o", bench, "./bench").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bench, "-image", "mini", "-only", "print", "-rounds", "1",
		"-load", "200ms", "-rest", "0", "-idle", "3", "-without", "docker,podman", belljar(t))
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	var report, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, &progress
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for what, pattern := range map[string]string{
		"a threshold":         `\| print: time over that of the bare interpreter +\| at most 0\.8 +\| [\d.]+ +\| (yes|no) `,
		"the absent":          `(?m)^Absent: docker \(left out as asked\)`,
		"a warm time":         `\| Belljar, warm +\| +[\d.]+ \| +[\d.]+ \| +[\d.]+ \| `,
		"a cold time":         `\| Belljar, cold +\| +[\d.]+ \| +[\d.]+ \| +[\d.]+ \| `,
		"a bare time":         `\| bare interpreter +\| +[\d.]+ \| +[\d.]+ \| +1\.00 \| `,
		"the runtime's time":  `\| OCI runtime by hand +\| +[\d.]+ \| +[\d.]+ \| +[\d.]+ \| `,
		"a command's time":    "\\| `execute` in a workspace that runs +\\| +[1-9][\\d.]* \\| ",
		"idle workspaces":     `Memory of each of 4 idle workspaces, in MiB: [1-9]`,
		"throughput":          `\| Belljar, warm +\|( +[1-9][\d.]* \|){3}\n`,
		"a sandbox's memory":  `\| python light +\| +1 \| +[1-9][\d.]* \| `,
		"a server's memory":   `\| Belljar, cold +\|( +[1-9][\d.]* \|){2}\n`,
		"what it was made on": `\| OCI runtime +\| (crun|runc) `,
	} {
		if !regexp.MustCompile(pattern).Match(report.Bytes()) {
			t.Errorf("%s is missing", what)
		}
	}
	if t.Failed() {
		t.Log(report.String())
	}
	if left := glob(state + "-bench"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
