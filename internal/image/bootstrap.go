package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

const (
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// bootstrapTimeout is for a whole base over a slow line.
	bootstrapTimeout = 30 * time.Minute
)

var (
	debianTag = regexp.MustCompile(`^([a-z]+|[0-9]+)(?:\.[0-9]+)?(?:-slim)?$`)
	suites    = map[string]string{
		"10": "buster", "11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky",
		"latest": "stable", "unstable": "sid",
	}
	suiteNames = []string{"buster", "bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "oldstable"}
)

// debianSuite is the suite of the Debian release that an image name stands
// for, if it does.
func debianSuite(r name.Reference) (string, bool) {
	tag, ok := r.(name.Tag)
	if !ok || r.Context().Name() != name.DefaultRegistry+"/library/debian" {
		return "", false
	}
	m := debianTag.FindStringSubmatch(tag.TagStr())
	if m == nil {
		return "", false
	}
	suite := m[1]
	if s, ok := suites[suite]; ok {
		suite = s
	}
	return suite, slices.Contains(suiteNames, suite)
}

// bootstrap makes the image of a Debian release from packages.
func (s *Store) bootstrap(ctx context.Context, r name.Reference, suite string, p Progress) (Image, error) {
	mirror := debianMirror(s.etc)
	tool, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return Image{}, errors.New("mmdebstrap, which could make it from Debian packages, is not installed; install it with: apt-get install -y mmdebstrap debian-archive-keyring")
	}
	dir, err := s.work("bootstrap-")
	if err != nil {
		return Image{}, err
	}
	defer removeAll(dir)
	from, archive := "Debian's own mirror", filepath.Join(dir, "out.tar")
	args := []string{"--variant=minbase", "--format=tar", suite, archive}
	if mirror != "" {
		from, args = mirror, append(args, mirror)
	}
	p(Event{Text: fmt.Sprintf("no registry answers; making %s with mmdebstrap from %s", familiar(r), from)})
	cmd := exec.Command(tool, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if err := runTool(ctx, cmd, p); err != nil {
		return Image{}, err
	}
	img := Image{
		Names:   []string{familiar(r)},
		Created: time.Now().UTC(),
		Source:  fmt.Sprintf("Debian %s, bootstrapped with mmdebstrap from %s", suite, from),
		Config:  Config{Env: []string{defaultPath}},
	}
	return s.addTar(ctx, img, archive, p)
}

// addTar stores a root filesystem that came as a plain archive, whose digest
// becomes the image's.
func (s *Store) addTar(ctx context.Context, img Image, path string, p Progress) (Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return Image{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Image{}, err
	}
	root, err := s.newRoot("unpack-")
	if err != nil {
		return Image{}, err
	}
	defer removeAll(root)
	bar, sum := newMeter(p, "unpacking "+img.Names[0], fi.Size()), sha256.New()
	r := io.TeeReader(&countingReader{f, bar.count}, sum)
	if err := applyTar(ctx, root, r, s.budget()); err != nil {
		return Image{}, err
	}
	bar.finish()
	img.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if img.Bytes, err = diskUsage(root); err != nil {
		return Image{}, err
	}
	return s.put(img, root)
}

// runTool runs a program that starts others, passing its output on, and ends
// all of them when ctx does. The program mounts file systems below its
// temporary directory; a mount namespace of its own makes sure that none of
// them outlives it, where deleting what it left would reach the host's files.
func runTool(ctx context.Context, cmd *exec.Cmd, p Progress) error {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	out := newLines(p, Event{})
	tail := &tailWriter{}
	cmd.Stdout = io.MultiWriter(out, tail)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.WaitDelay = 5 * time.Second // for a child that keeps the pipe

	// The death signal comes when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	group := -cmd.Process.Pid
	stop := context.AfterFunc(ctx, func() { syscall.Kill(group, syscall.SIGKILL) })
	err := cmd.Wait()
	stop()
	out.Close()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(tail.kept)))
	}
	return nil
}

// tailWriter keeps the last of what is written to it.
type tailWriter struct{ kept []byte }

func (t *tailWriter) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - 2048; over > 0 {
		t.kept = append([]byte(nil), t.kept[over:]...)
	}
	return len(p), nil
}
