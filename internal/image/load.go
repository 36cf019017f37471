package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	maxManifest = 8 << 20 // bytes of a manifest or index
	maxNesting  = 4       // indexes within indexes
)

// Load reads images from a docker archive, an OCI archive (.tar, perhaps
// compressed), or the directory of an OCI layout. They get the names that the
// archive gives them; one without any is named after the file.
func (s *Store) Load(ctx context.Context, path string, p Progress) ([]Image, error) {
	imgs, err := s.load(ctx, path, serial(p))
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", path, err)
	}
	return imgs, nil
}

func (s *Store) load(ctx context.Context, path string, p Progress) ([]Image, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	dir := path
	if !fi.IsDir() {
		// Layers may stand in any order in an archive; unpacking it once
		// gives access to all of them and costs disk instead of passes.
		if dir, err = s.newRoot("load-"); err != nil {
			return nil, err
		}
		defer removeAll(dir)
		if err := s.extract(ctx, path, fi.Size(), dir, p); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	sources, err := readSources(root, fileName(path))
	if err != nil {
		return nil, err
	}
	var imgs []Image
	for _, src := range sources {
		src.origin = "loaded from " + filepath.Base(path)
		img, err := s.add(ctx, src, "unpacking "+strings.Join(src.names, ", "), p)
		if err != nil {
			return imgs, err
		}
		imgs = append(imgs, img)
	}
	return imgs, nil
}

func (s *Store) extract(ctx context.Context, path string, size int64, dir string, p Progress) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	bar := newMeter(p, "reading "+filepath.Base(path), size)
	r, err := decompress(&countingReader{f, bar.count})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := applyTar(ctx, dir, r, s.budget()); err != nil {
		return fmt.Errorf("reading it as an archive: %w", err)
	}
	return nil
}

// fileName makes a name for an image out of its file's.
func fileName(path string) string {
	base := strings.ToLower(filepath.Base(filepath.Clean(path)))
	for _, ext := range []string{".gz", ".tgz", ".zst", ".tar"} {
		base = strings.TrimSuffix(base, ext)
	}
	base = strings.Trim(regexp.MustCompile(`[^a-z0-9._-]+`).ReplaceAllString(base, "-"), "-._")
	if len(base) < 2 { // too short for a repository
		return "image-" + base + "0"
	}
	return base
}

// readSources finds the images in an unpacked archive. The docker form goes
// first: docker writes both, and only there are names complete.
func readSources(root *os.Root, fallback string) ([]source, error) {
	data, err := readSmall(root, "manifest.json", maxManifest)
	if err == nil {
		return dockerSources(root, data, fallback)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	data, err = readSmall(root, "index.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("neither a docker archive (manifest.json) nor an OCI layout (index.json)")
	}
	if err != nil {
		return nil, err
	}
	return ociSources(root, data, fallback)
}

func dockerSources(root *os.Root, manifest []byte, fallback string) ([]source, error) {
	var entries []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(manifest, &entries); err != nil {
		return nil, fmt.Errorf("reading manifest.json: %w", err)
	}
	var sources []source
	for _, e := range entries {
		if len(e.Layers) > maxLayers {
			return nil, tooManyLayers(len(e.Layers))
		}
		config, err := readSmall(root, e.Config, maxConfig)
		if err != nil {
			return nil, err
		}
		if hex := strings.TrimSuffix(filepath.Base(e.Config), ".json"); fullDigest.MatchString("sha256:"+hex) && digestOf(config) != "sha256:"+hex {
			return nil, fmt.Errorf("digest mismatch: got %s, want sha256:%s", digestOf(config), hex)
		}
		src := source{config: config}
		for _, path := range e.Layers {
			l, err := fileLayer(root, path)
			if err != nil {
				return nil, err
			}
			src.layers = append(src.layers, l)
		}
		if src.names, err = archiveNames(e.RepoTags, fallback); err != nil {
			return nil, err
		}
		sources = append(sources, src)
	}
	if len(sources) == 0 {
		return nil, errors.New("archive holds no image")
	}
	return sources, nil
}

// fileLayer is a layer whose digest only the configuration gives.
func fileLayer(root *os.Root, path string) (layer, error) {
	f, fi, err := openRegular(root, path)
	if err != nil {
		return layer{}, err
	}
	f.Close()
	return layer{size: fi.Size(), open: func(context.Context) (io.ReadCloser, error) {
		f, _, err := openRegular(root, path)
		return f, err
	}}, nil
}

func ociSources(root *os.Root, data []byte, fallback string) ([]source, error) {
	var sources []source
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("reading index.json: %w", err)
	}
	for _, d := range index.Manifests {
		m, err := findManifest(root, d, 0)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue // for another platform
		}
		src, err := ociSource(root, m)
		if err != nil {
			return nil, err
		}
		var names []string
		if n := d.Annotations["io.containerd.image.name"]; n != "" {
			names = []string{n}
		} else if n := d.Annotations["org.opencontainers.image.ref.name"]; n != "" {
			if !strings.ContainsAny(n, ":/") { // a tag alone
				n = fallback + ":" + n
			}
			names = []string{n}
		}
		if src.names, err = archiveNames(names, fallback); err != nil {
			return nil, err
		}
		sources = append(sources, src)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("archive holds no image for linux/%s", runtime.GOARCH)
	}
	return sources, nil
}

// findManifest follows indexes to the manifest for this platform; nil if
// there is none.
func findManifest(root *os.Root, d v1.Descriptor, depth int) (*v1.Manifest, error) {
	if d.Platform != nil && (d.Platform.OS != "linux" || d.Platform.Architecture != runtime.GOARCH) {
		return nil, nil
	}
	if !d.MediaType.IsIndex() && !d.MediaType.IsImage() {
		return nil, nil
	}
	data, err := readBlob(root, d, maxManifest)
	if err != nil {
		return nil, err
	}
	if d.MediaType.IsImage() {
		m := new(v1.Manifest)
		return m, json.Unmarshal(data, m)
	}
	if depth == maxNesting {
		return nil, errors.New("archive nests its indexes too deeply")
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, err
	}
	for _, sub := range index.Manifests {
		if m, err := findManifest(root, sub, depth+1); m != nil || err != nil {
			return m, err
		}
	}
	return nil, nil
}

func ociSource(root *os.Root, m *v1.Manifest) (source, error) {
	if len(m.Layers) > maxLayers {
		return source{}, tooManyLayers(len(m.Layers))
	}
	config, err := readBlob(root, m.Config, maxConfig)
	if err != nil {
		return source{}, err
	}
	src := source{config: config}
	for _, d := range m.Layers {
		src.layers = append(src.layers, layer{size: d.Size, open: func(context.Context) (io.ReadCloser, error) {
			return openBlob(root, d)
		}})
	}
	return src, nil
}

// openBlob opens a blob of an OCI layout; the reader checks size and digest.
func openBlob(root *os.Root, d v1.Descriptor) (io.ReadCloser, error) {
	// The digest becomes a path.
	if !fullDigest.MatchString(d.Digest.String()) {
		return nil, fmt.Errorf("digest %q: want sha256", d.Digest)
	}
	f, fi, err := openRegular(root, filepath.Join("blobs", "sha256", d.Digest.Hex))
	if err != nil {
		return nil, err
	}
	if fi.Size() != d.Size {
		f.Close()
		return nil, fmt.Errorf("digest mismatch: %s is %d bytes, want %d", d.Digest, fi.Size(), d.Size)
	}
	return struct {
		io.Reader
		io.Closer
	}{newVerifier(f, d.Digest.String(), d.Size), f}, nil
}

func readBlob(root *os.Root, d v1.Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, fmt.Errorf("%s is %d bytes, at most %d", d.Digest, d.Size, limit)
	}
	r, err := openBlob(root, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func readSmall(root *os.Root, path string, limit int64) ([]byte, error) {
	f, fi, err := openRegular(root, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi.Size() > limit {
		return nil, fmt.Errorf("%s is %d bytes, at most %d", path, fi.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// openRegular opens a regular file inside root. Others could block the reader
// for ever.
func openRegular(root *os.Root, path string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// archiveNames are an image's names as an archive gives them.
func archiveNames(given []string, fallback string) ([]string, error) {
	if len(given) == 0 {
		given = []string{fallback}
	}
	var names []string
	for _, n := range given {
		r, err := parseName(n)
		if err != nil {
			return nil, err
		}
		if _, ok := r.(name.Tag); ok || len(given) == 1 {
			names = append(names, familiar(r))
		}
	}
	return names, nil
}
