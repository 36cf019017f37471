package native

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"belljar/internal/engine"
)

// Files of a sandbox's directory.
const (
	recordFile = "sandbox.json"
	recordPart = ".part" // after its name, for the one that is to replace it
	layerFile  = "layer.ext4"
	shareDir   = "share"
)

// record is what is kept of a sandbox on disk.
type record struct {
	Spec    engine.Spec `json:"spec"`
	Digest  string      `json:"digest"`
	Created time.Time   `json:"created"`
	// Slot is its range of ids. A durable one has none while it is stopped.
	Slot int `json:"slot,omitempty"`
	// Rebased is whether it was given an image since it ran last, so that what
	// it has written beside /sandbox goes.
	Rebased bool `json:"rebased,omitempty"`
	// Started is whether it ever ran, PID its process 1 while it runs and
	// Birth when that one started, which tells it from a later process with
	// the same number.
	Started bool   `json:"started"`
	PID     int    `json:"pid,omitempty"`
	Birth   uint64 `json:"birth,omitempty"`
}

// save writes the record, unless the sandbox has no directory (yet, or any
// more).
func (b *box) save() error {
	b.mu.Lock()
	data, err := json.Marshal(b.record)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	path := filepath.Join(b.e.sandboxDir(b.record.Spec.ID), recordFile)
	if b.durable() {
		err = replaceFile(path, data)
	} else {
		err = quickReplace(path, data)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// replaceFile gives a file new content, which a power cut leaves whole: the old
// or the new.
func replaceFile(path string, data []byte) error {
	if err := os.WriteFile(path+recordPart, data, 0o600); err != nil {
		return err
	}
	if err := syncFile(path + recordPart); err != nil {
		return err
	}
	if err := os.Rename(path+recordPart, path); err != nil {
		return err
	}
	return syncFile(filepath.Dir(path))
}

// quickReplace is replaceFile without waiting for the disk.
func quickReplace(path string, data []byte) error {
	if err := os.WriteFile(path+recordPart, data, 0o600); err != nil {
		return err
	}
	// A rename over the old one has ext4 write the new one to the disk at once,
	// lest a power cut leave neither. Here that costs every run a write, and a
	// record need not outlive one.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(path+recordPart, path)
}

// readRecord reads the record of a sandbox that an earlier process left.
func (e *Engine) readRecord(id string) (record, error) {
	var r record
	path := filepath.Join(e.sandboxDir(id), recordFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		data, err = os.ReadFile(path + recordPart) // it was to take its place
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Spec.ID != id || r.Slot == 0 && !r.Spec.Durable {
		return r, errors.New("its record is of another sandbox")
	}
	return r, nil
}
