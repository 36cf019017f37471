package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestExpire has the age of a file as little as the file system can tell apart,
// since nobody can set when a file was changed last.
func TestExpire(t *testing.T) {
	sb := newSandbox(t)
	outside := filepath.Join(sb.root, "outside")
	for _, path := range []string{"old/deep/file", "mixed/old", "plain"} {
		if err := sb.WriteFile(testContext(t), Workdir+"/"+path, 0o644, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, sb.file("link")); err != nil {
		t.Fatal(err)
	}
	const age = time.Second
	begun := time.Now()
	await(t, "files to be old", func() bool { return time.Since(begun) > age })
	// New in an old directory, and new although it says it is old.
	for _, path := range []string{"mixed/new", "unpacked"} {
		if err := sb.WriteFile(testContext(t), Workdir+"/"+path, 0o644, nil); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Unix(1, 0)
	if err := os.Chtimes(sb.file("unpacked"), long, long); err != nil {
		t.Fatal(err)
	}
	if gone, err := sb.Expire(testContext(t), Workdir, time.Hour); err != nil || len(gone.Names) != 0 {
		t.Errorf("after an hour: %v, %v", gone, err)
	}
	gone, err := sb.Expire(testContext(t), Workdir, age)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"link", "old", "plain"}, gone.Names); d != "" {
		t.Errorf("deleted (-want +got):\n%s", d)
	}
	for path, want := range map[string]bool{"old": false, "mixed/old": true, "mixed/new": true, "unpacked": true, "../outside": true} {
		if _, err := os.Lstat(sb.file(path)); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", path, err == nil, want)
		}
	}
	if _, err := sb.Expire(testContext(t), "/nowhere", age); !errors.Is(err, ErrNoFile) {
		t.Errorf("no directory: %v", err)
	}
}
