package test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// installPackages returns the directory that packages of the npm registry are
// installed in, among them the Node.js to run them with. name is of what is
// installed, with its version.
func installPackages(t *testing.T, name string, packages ...string) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm, to install " + name)
	}
	if err := os.MkdirAll(cacheDir, 0o711); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cacheDir, name)
	lock, err := lockFile(dir+".lock", unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir
	}
	part := dir + ".part" // an installation that is killed must not count
	if err := os.RemoveAll(part); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		t.Fatal(err)
	}
	npm := exec.CommandContext(t.Context(), "npm", append([]string{"install", "--prefix", part, "--no-save", "--no-package-lock", "--no-audit", "--no-fund"}, packages...)...)
	npm.Dir = part
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("installing %s: %v\n%s", name, err, out)
	}
	if err := os.Rename(part, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nodeCommand is a program of the packages that are installed in dir.
func nodeCommand(t *testing.T, dir, program string, arguments ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules/.bin", program), arguments...)
	cmd.Dir = t.TempDir()
	cmd.Env = environ("HOME="+t.TempDir(), "PATH="+filepath.Join(dir, "node_modules/node/bin")+":"+os.Getenv("PATH"))
	return cmd
}
