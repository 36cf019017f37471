package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"belljar/internal/control"
)

// errOwned says that another process owns the state directory.
var errOwned = errors.New("the state directory is in use")

// lockState takes the state directory for this process, until the file is
// closed. Everything of it but the names of its parts is for its owner; the
// directory itself lets others pass, to the socket and to output files.
func lockState(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the state directory (run as root, or set BELLJAR_STATE_DIR): %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the state directory (run as root, or set BELLJAR_STATE_DIR): %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, errOwned
	}
	return f, nil
}

// startWait is how long a command waits for an owner that has the lock and
// does not answer, since it is just starting or ending.
const startWait = 30 * time.Second

// withOwner calls f with a client of the state directory's owner: of the
// server that runs, or of this process, which becomes the owner meanwhile.
func withOwner(ctx context.Context, cfg *Config, log *slog.Logger, f func(*control.Client) error) error {
	deadline := time.Now().Add(startWait)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if client, err := control.Dial(ctx, cfg.socket()); err == nil {
			return f(client)
		} else if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("%s: run as root, or as a member of the socket's group: %w", cfg.socket(), os.ErrPermission)
		}
		lock, err := lockState(cfg.StateDir)
		if err == nil {
			return asOwner(ctx, cfg, log, lock, f)
		}
		if !errors.Is(err, errOwned) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a process has locked %s and does not answer on %s", cfg.StateDir, cfg.socket())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// asOwner opens the product in this process and calls f with a client of it.
func asOwner(ctx context.Context, cfg *Config, log *slog.Logger, lock *os.File, f func(*control.Client) error) (err error) {
	a, err := open(ctx, cfg, log, lock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	return a.serveLocal(ctx, func(ctx context.Context) error {
		client, err := control.Dial(ctx, cfg.socket())
		if err != nil {
			return err
		}
		return f(client)
	})
}
