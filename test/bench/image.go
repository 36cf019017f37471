package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// storeIndex is the part of an image store's index that matters here.
type storeIndex struct {
	Images map[string]json.RawMessage `json:"images"`
}

// image is an image of a server's.
type image struct {
	Digest string
	Names  []string
	Config struct{ Env []string }

	rootfs string
	entry  json.RawMessage // of the index
}

// findImage looks an image up in a state directory.
func findImage(state, name string) (image, error) {
	store := filepath.Join(state, "images")
	data, err := os.ReadFile(filepath.Join(store, "index.json"))
	if err != nil {
		return image{}, fmt.Errorf("no image is there (belljar image build): %w", err)
	}
	var index storeIndex
	if err := json.Unmarshal(data, &index); err != nil {
		return image{}, err
	}
	for digest, entry := range index.Images {
		img := image{entry: entry, rootfs: filepath.Join(store, "rootfs", strings.TrimPrefix(digest, "sha256:"))}
		if err := json.Unmarshal(entry, &img); err != nil {
			return image{}, err
		}
		if slices.Contains(img.Names, name) {
			return img, nil
		}
	}
	return image{}, fmt.Errorf("no image %q at %s (belljar image build)", name, store)
}

// link puts the image into another state directory, which has it alone then.
// Its files are linked: nobody writes to them.
func (img image) link(state string) error {
	store := filepath.Join(state, "images")
	if err := os.RemoveAll(store); err != nil {
		return err
	}
	roots := filepath.Join(store, "rootfs")
	if err := os.MkdirAll(roots, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-al", img.rootfs, roots).CombinedOutput(); err != nil {
		return fmt.Errorf("linking the image: %w: %s", err, out)
	}
	data, err := json.Marshal(storeIndex{Images: map[string]json.RawMessage{img.Digest: img.entry}})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(store, "index.json"), data, 0o600)
}
