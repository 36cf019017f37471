package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A fresh machine behind a wall has neither a registry nor mmdebstrap. The
// demo installs the latter, by the script that stands here for the real one,
// and builds again.
func TestBuildImageInstallsMmdebstrap(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", dir)
	program(t, "belljar", `
if ! [ -e installed ]; then
    echo 'no registry answers; mmdebstrap is not installed; install it with: apt-get install -y mmdebstrap' >&2
    exit 1
fi`)
	program(t, "scripts/need", `[ "$1" = mmdebstrap:mmdebstrap ] && : >installed`)
	if err := buildImage(t.Context(), filepath.Join(dir, "belljar")); err != nil {
		t.Fatal(err)
	}
}

func TestBuildImageInstallsNothingForOtherFailures(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", dir)
	program(t, "belljar", `echo 'the disk is full' >&2; exit 1`)
	program(t, "scripts/need", `: >installed`)
	if err := buildImage(t.Context(), filepath.Join(dir, "belljar")); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat("installed"); err == nil {
		t.Error("something was installed")
	}
}

// program writes a shell script to a file below the working directory.
func program(t *testing.T, name, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestStartServerUsesTheOneThatRuns(t *testing.T) {
	t.Chdir(t.TempDir())
	program(t, "belljar", `
echo 'belljar: the state directory is in use by process 7 (it serves http://127.0.0.1:8815/mcp): stop it' >&2
exit 1`)
	s, err := startServer(t.Context(), "./belljar")
	if err != nil {
		t.Fatal(err)
	}
	if want := "http://127.0.0.1:8815/mcp"; s.url != want {
		t.Errorf("url %q, want %q", s.url, want)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
