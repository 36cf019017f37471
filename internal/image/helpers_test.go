package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the process that overlayRunner starts.
func TestMain(m *testing.M) {
	if os.Getenv(stepVar) != "" {
		fmt.Fprintln(os.Stderr, "step:", enterStep())
		os.Exit(125)
	}
	os.Exit(m.Run())
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners, devices and mounts")
	}
}

func openStore(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// file is an entry of a test archive; a regular file unless h says otherwise.
func file(name, content string) entry {
	return entry{tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(content))}, content}
}

func dir(name string) entry {
	return entry{tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir}, ""}
}

func link(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Mode: 0o777, Typeflag: tar.TypeSymlink}, ""}
}

func hardlink(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Mode: 0o644, Typeflag: tar.TypeLink}, ""}
}

type entry struct {
	h       tar.Header
	content string
}

func makeTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.h.ModTime.IsZero() {
			e.h.ModTime = time.Unix(1_700_000_000, 0)
		}
		if err := w.WriteHeader(&e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// makeImage is an image as a registry or an archive has it.
func makeImage(t testing.TB, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		tl, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, tl); err != nil {
			t.Fatal(err)
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.Config, cf.OS, cf.Architecture = config, "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// addImage puts an image of one layer into the store.
func addImage(t testing.TB, s *Store, name string, entries ...entry) Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "base.tar")
	if err := os.WriteFile(path, makeTar(t, entries...), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := s.addTar(t.Context(), Image{Names: []string{name}, Created: time.Now(), Source: "test"}, path, serial(nil))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// listing describes a tree: a line per file.
func listing(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(root, path)
		fmt.Fprintf(&b, "%s %s %d:%d", rel, fi.Mode(), st.Uid, st.Gid)
		if fi.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			fmt.Fprintf(&b, " -> %s", target)
		}
		if fi.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// isEmpty checks that no work in progress is left.
func isEmpty(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
	}
}

// recorder keeps the events of a Progress.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) progress(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, e := range r.events {
		fmt.Fprintln(&b, e.Text)
	}
	return b.String()
}

// shellBase is the smallest base that a RUN can run in: the host's shell and
// a few programs, with the libraries they need.
func shellBase(t testing.TB) []entry {
	t.Helper()
	needRoot(t)
	entries := []entry{
		dir("bin"), dir("tmp"), dir("etc"), dir("proc"), dir("dev"), dir("root"),
		file("etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\n"),
		file("etc/group", "root:x:0:\nadas:x:1001:\nstaff:x:50:ada\n"),
	}
	entries[1].h.Mode = 0o1777
	seen := map[string]bool{}
	add := func(host, name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		e := file(strings.TrimPrefix(name, "/"), readFile(t, host))
		e.h.Mode = 0o755
		entries = append(entries, e)
	}
	for _, prog := range []string{"sh", "cat", "rm", "mkdir", "id", "ln", "mktemp", "env", "touch", "sleep"} {
		path, err := exec.LookPath(prog)
		if err != nil {
			t.Fatal(err)
		}
		add(path, "/bin/"+prog)
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				add(f, f)
			}
		}
	}
	return entries
}

// overlayRunner runs steps for real: in a mount namespace, on an overlay of
// the step's directories, in a root directory of its own. It counts them.
type overlayRunner struct {
	mu    sync.Mutex
	steps []Step
}

const stepVar = "BELLJAR_TEST_STEP"

func (r *overlayRunner) RunStep(ctx context.Context, s Step) error {
	r.mu.Lock()
	r.steps = append(r.steps, s)
	r.mu.Unlock()
	work := filepath.Join(filepath.Dir(s.Upper), filepath.Base(s.Upper)+"-work")
	for _, d := range []string{work, work + "/work", work + "/root"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	defer os.RemoveAll(work)
	uid, gid, err := view(s.Lower).owner(s.User)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{
		strings.Join(s.Lower, ":"), s.Upper, work, s.Dir, strconv.Itoa(uid), strconv.Itoa(gid),
	}, s.Argv...)...)
	cmd.Env = append(s.Env, stepVar+"=1")
	cmd.Stdout, cmd.Stderr = s.Output, s.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return &ExitError{exit.ExitCode()}
	}
	return err
}

// enterStep becomes the step's command; it returns only if that fails.
func enterStep() error {
	a := os.Args[1:]
	root := a[2] + "/root"
	if err := unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s/work,redirect_dir=off,metacopy=off", a[0], a[1], a[2])); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	if err := unix.Mount("proc", root+"/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	if err := unix.Mount("/dev", root+"/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	if _, err := os.Lstat(root + "/etc/resolv.conf"); err == nil {
		if err := unix.Mount("/etc/resolv.conf", root+"/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("resolv.conf: %w", err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir(a[3]); err != nil {
		return err
	}
	uid, _ := strconv.Atoi(a[4])
	gid, _ := strconv.Atoi(a[5])
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return err
	}
	os.Unsetenv(stepVar)
	path, err := exec.LookPath(a[6])
	if err != nil {
		return err
	}
	return syscall.Exec(path, a[6:], os.Environ())
}

func pipeHeader(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeFifo, Mode: 0o644}
}
