package test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// recipes are the images that tests ask for, and the Containerfiles that make
// them.
var recipes = map[string]string{
	"mini":           "images/Containerfile.mini",
	"science":        "images/Containerfile.science",
	"workbench":      "images/Containerfile.workbench",
	"julia-bullseye": "images/Containerfile.julia-bullseye",
	"node":           "examples/runtimes/Containerfile.node",
}

// made are functions that return an image store that holds the image of a
// name, building it if no earlier run of the tests has. Tests do not change
// it: they have copies.
var made = func() map[string]func() (string, error) {
	m := map[string]func() (string, error){}
	for name := range recipes {
		m[name] = sync.OnceValues(func() (string, error) { return cachedImage(name) })
	}
	return m
}()

func cachedImage(name string) (string, error) {
	key, err := imageKey(name)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cacheDir, 0o711); err != nil {
		return "", err
	}
	dir := filepath.Join(cacheDir, name+"-"+key)
	// Tests of other packages, and other trees with the same image, wait for
	// the first that builds it.
	lock, err := lockFile(dir+".lock", unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	images := filepath.Join(dir, "images")
	if _, err := os.Stat(images); err == nil {
		now := time.Now()
		return images, os.Chtimes(dir, now, now)
	}
	if err := forgetImages(); err != nil {
		return "", err
	}
	// A build that is killed must not count, so the name comes last.
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := buildImage(part, name); err != nil {
		return "", err
	}
	return images, os.Rename(part, dir)
}

// imageKey names what an image and its store are made from. The builder is
// part of it for the image that is built in a minute; for the others, only
// what says how a store looks.
func imageKey(name string) (string, error) {
	sources := []string{"../internal/image/image.go", "../internal/image/index.go"}
	if name == "mini" {
		sources = slices.DeleteFunc(glob("../internal/image/*.go"), func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	}
	sum := sha256.New()
	for _, f := range append(sources, filepath.Join("..", recipes[name])) {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", f, len(data), data)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16]), nil
}

// buildImage builds an image in a state directory of its own.
func buildImage(state, name string) error {
	path, err := built()
	if err != nil {
		return err
	}
	n := &narrator{what: "building the image " + name, begun: time.Now()}
	defer n.alive()()
	cmd := exec.Command(path, "image", "build", "-f", recipes[name], name)
	cmd.Dir = ".."
	cmd.Env = environ("BELLJAR_STATE_DIR=" + state)
	cmd.Stdout, cmd.Stderr = n, n
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building the image %s: %w", name, err)
	}
	return nil
}

// narrator passes on what a build says, each line with how long it has taken;
// test/report shows these lines as they come.
type narrator struct {
	what  string
	begun time.Time

	mu   sync.Mutex
	part []byte // of a line that has no end yet
}

func (n *narrator) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.part = append(n.part, p...)
	for {
		line, rest, ok := bytes.Cut(n.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		n.say(string(line))
		n.part = rest
	}
}

func (n *narrator) say(line string) {
	fmt.Fprintf(os.Stderr, "%s, %v: %s\n", n.what, time.Since(n.begun).Round(time.Second), line)
}

// alive says every half minute that the build goes on, until stop is called.
func (n *narrator) alive() (stop func()) {
	tick, done := time.NewTicker(30*time.Second), make(chan struct{})
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n.mu.Lock()
				n.say("still at it")
				n.mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// forgetImages removes cached images that no run of the tests has used for a
// week.
func forgetImages() error {
	for _, images := range glob(filepath.Join(cacheDir, "*/images")) {
		dir := filepath.Dir(images)
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if time.Since(info.ModTime()) > 7*24*time.Hour {
			if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".lock")); err != nil {
				return err
			}
		}
	}
	return nil
}

// storeIndex is what an image store's index.json holds.
type storeIndex struct {
	Images map[string]json.RawMessage `json:"images"`
	Builds map[string]json.RawMessage `json:"builds"`
}

// copyImages makes a store of images out of the cached ones. Files are linked;
// what the images were built from and in which steps stays behind.
func copyImages(store string, names []string) error {
	index := storeIndex{Images: map[string]json.RawMessage{}, Builds: map[string]json.RawMessage{}}
	roots := filepath.Join(store, "rootfs")
	if err := os.MkdirAll(roots, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		from, err := made[name]()
		if err != nil {
			return err
		}
		digest, entry, err := findImage(from, name)
		if err != nil {
			return err
		}
		index.Images[digest] = entry
		root := filepath.Join(from, "rootfs", strings.TrimPrefix(digest, "sha256:"))
		if out, err := exec.Command("cp", "-al", root, roots).CombinedOutput(); err != nil {
			return fmt.Errorf("copying the image %s: %w: %s", name, err, out)
		}
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(store, "index.json"), data, 0o600)
}

// findImage returns a store's entry of the image of that name.
func findImage(store, name string) (digest string, entry json.RawMessage, err error) {
	data, err := os.ReadFile(filepath.Join(store, "index.json"))
	if err != nil {
		return "", nil, err
	}
	var index storeIndex
	if err := json.Unmarshal(data, &index); err != nil {
		return "", nil, err
	}
	for digest, entry := range index.Images {
		var img struct{ Names []string }
		if err := json.Unmarshal(entry, &img); err != nil {
			return "", nil, err
		}
		if slices.Contains(img.Names, name) {
			return digest, entry, nil
		}
	}
	return "", nil, fmt.Errorf("%s holds no image %s", store, name)
}
