package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// index is what a Store knows of itself, kept in one file.
type index struct {
	// Images are the images by digest.
	Images map[string]*Image `json:"images"`
	// Builds are the cached steps by the name of the image that was built.
	Builds map[string]build `json:"builds"`
}

// build is what is kept of the builds of one name: the steps of the newest
// that succeeded and of one that was tried after it. All other layers are
// deleted; a retry after a failed step thus resumes there, and the cache never
// outgrows two builds a name.
type build struct {
	Done  []cached `json:"done,omitempty"`
	Tried []cached `json:"tried,omitempty"`
}

// cached is the outcome of a build step.
type cached struct {
	// Key is the digest of all that the outcome depends on.
	Key string `json:"key"`
	// Layer is the name of its directory.
	Layer string `json:"layer"`
	// Missing is what the step had to leave out.
	Missing []Missing `json:"missing,omitempty"`
}

// damaged says what to do about an index that cannot be read.
const damaged = "move the images directory away and build or pull the images again"

func readIndex(path string) (index, error) {
	var x index
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return x, err
	}
	if err == nil {
		if err := json.Unmarshal(data, &x); err != nil {
			return x, fmt.Errorf("reading %s: %w (%s)", path, err, damaged)
		}
	}
	if x.Images == nil {
		x.Images = map[string]*Image{}
	}
	if x.Builds == nil {
		x.Builds = map[string]build{}
	}
	for digest, img := range x.Images {
		if img == nil || !fullDigest.MatchString(digest) || img.Digest != digest {
			return x, fmt.Errorf("reading %s: entry %q is damaged (%s)", path, digest, damaged)
		}
	}
	return x, nil
}

// write replaces the file by rename, so that a reader sees the old or the new
// index whenever the process dies.
func (x index) write(path string) error {
	data, err := json.MarshalIndent(x, "", "\t")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Join(filepath.Dir(path), "tmp"), "index-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// clone copies all that Store's changes touch.
func (x index) clone() index {
	c := index{Images: map[string]*Image{}, Builds: maps.Clone(x.Builds)}
	for digest, img := range x.Images {
		i := *img
		i.Names = slices.Clone(img.Names)
		c.Images[digest] = &i
	}
	return c
}

func (x index) named(name string) *Image {
	for _, img := range x.Images {
		if slices.Contains(img.Names, name) {
			return img
		}
	}
	return nil
}

// tag points names at an image, away from whichever had them.
func (x index) tag(digest string, names []string) {
	for _, n := range names {
		if old := x.named(n); old != nil {
			old.Names = slices.DeleteFunc(slices.Clone(old.Names), func(o string) bool { return o == n })
		}
		img := x.Images[digest]
		img.Names = append(img.Names, n)
		slices.Sort(img.Names)
	}
}

// outcome finds the outcome of a step in any build, a complete one first.
func (x index) outcome(key string) (found cached, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(x.Builds)) {
		for _, c := range slices.Concat(x.Builds[name].Done, x.Builds[name].Tried) {
			if c.Key != key {
				continue
			}
			if len(c.Missing) == 0 {
				return c, true
			}
			if !ok {
				found, ok = c, true
			}
		}
	}
	return found, ok
}

// layers is the set of all layers.
func (x index) layers() map[string]bool {
	set := map[string]bool{}
	for _, b := range x.Builds {
		for _, c := range slices.Concat(b.Done, b.Tried) {
			set[c.Layer] = true
		}
	}
	return set
}

// dropLayers forgets the steps whose layer keep refuses.
func (x index) dropLayers(keep func(id string) bool) {
	drop := func(c cached) bool { return !keep(c.Layer) }
	for name, b := range x.Builds {
		x.Builds[name] = build{Done: slices.DeleteFunc(b.Done, drop), Tried: slices.DeleteFunc(b.Tried, drop)}
	}
}
