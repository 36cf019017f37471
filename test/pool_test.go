package test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stuck is a table with a runtime whose command does not come to its gate.
const stuck = `
[[runtime]]
name = "stuck"
title = "Stuck"
extension = "sh"
argv = ["sh", "-c", '[ -z "$BELLJAR_GATE" ] || exec sleep 987655; exec sh {script}']
version = ["true"]
warm = true
`

// stuckIn returns the processes of that command in sandboxes of a server.
func stuckIn(state string) []process {
	return slices.DeleteFunc(processes(), func(p process) bool {
		return !ours(state, p.user) || !strings.Contains(p.command, "sleep 987655")
	})
}

// withStuck starts a server that is about to make a sandbox for the runtime
// stuck, and has made one for Bash.
func withStuck(t *testing.T) *server {
	t.Helper()
	table := filepath.Join(t.TempDir(), "stuck.toml")
	if err := os.WriteFile(table, []byte(stuck), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "BELLJAR_RUNTIMES="+table)
	if !eventually(func() bool { return s.waiting(t, "bash") && len(stuckIn(s.state)) > 0 }) {
		t.Fatal("no sandbox is being made")
	}
	return s
}

// TestStopWhileThePoolIsFilled: the server ends soon, whatever it makes.
func TestStopWhileThePoolIsFilled(t *testing.T) {
	s := withStuck(t)
	begun := time.Now()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if left := leftovers(s.state, 0); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestFault07CrashLeavesNothingOfThePool: sandboxes that waited, and one that
// was being made, are gone after the next start, and new ones wait.
func TestFault07CrashLeavesNothingOfThePool(t *testing.T) {
	s := withStuck(t)
	s.kill(t)
	before := glob(filepath.Join(s.state, "native/sandboxes/*"))
	if len(before) < 2 || len(stuckIn(s.state)) == 0 {
		t.Errorf("the crash left %q and %v, so this test shows little", before, stuckIn(s.state))
	}
	s.restart(t)
	if !eventually(func() bool { return s.waiting(t, "bash") }) {
		t.Error("no sandbox waits for a script")
	}
	now := glob(filepath.Join(s.state, "native/sandboxes/*"))
	for _, dir := range before {
		if slices.Contains(now, dir) {
			t.Errorf("still there: %s", dir)
		}
	}
	if r := s.succeed(t, "bash", "echo again"); r.Stdout != "again\n" {
		t.Errorf("%s", r)
	}
}

// TestRemoveAnImageThatIsInThePool: an image that only sandboxes without a
// script stand on can be removed.
func TestRemoveAnImageThatIsInThePool(t *testing.T) {
	s := startServer(t)
	if !eventually(func() bool { return s.waiting(t, "bash") }) {
		t.Fatal("no sandbox waits for a script")
	}
	if out, errs, code := output(t, s.state, "", "image", "rm", "mini"); code != 0 {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	if roots := glob(filepath.Join(s.state, "images/rootfs/*")); len(roots) > 0 {
		t.Errorf("on disk: %q", roots)
	}
	if text := s.refused(t, "bash", "echo ran"); !strings.Contains(text, "not there yet") {
		t.Errorf("refused with %q", text)
	}
}

// TestMetricsAreForThisMachine: what the server has to do is nobody else's
// business.
func TestMetricsAreForThisMachine(t *testing.T) {
	s := sharedServer(t)
	for _, header := range []http.Header{
		{"Host": {"evil.example"}}, {"Origin": {"https://evil.example"}}, {"X-Forwarded-For": {"127.0.0.1"}},
	} {
		if res, body := do(t, http.MethodGet, s.base()+"/metrics", header); res.StatusCode != http.StatusForbidden || strings.Contains(string(body), "belljar_pool") {
			t.Errorf("with %v: %s", header, res.Status)
		}
	}
	// Its size does not grow with what callers send.
	before, _ := get(t, s.base()+"/metrics")
	for range 3 {
		s.refused(t, "no-such-runtime", "echo")
	}
	s.succeed(t, "bash", "true")
	res, body := get(t, s.base()+"/metrics")
	if before.StatusCode != http.StatusOK || res.StatusCode != http.StatusOK || len(body) > 64<<10 || strings.Contains(string(body), "no-such-runtime") {
		t.Errorf("%s, %d bytes", res.Status, len(body))
	}
}
