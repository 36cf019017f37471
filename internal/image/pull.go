package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	maxLayers = 256     // docker makes 127 at most
	maxConfig = 4 << 20 // bytes of an image's configuration
	// dialTimeout is short: with no registry in reach a build goes on by
	// other means, and somebody is waiting.
	dialTimeout   = 3 * time.Second
	answerTimeout = 20 * time.Second // for the headers of an answer
	stallTimeout  = time.Minute      // for more of a layer
)

func newTransport() http.RoundTripper {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 2 * dialTimeout
	t.ResponseHeaderTimeout = answerTimeout
	return t
}

var errStalled = fmt.Errorf("the registry sent nothing for %s", stallTimeout)

// source is an image that is not unpacked yet.
type source struct {
	config []byte // JSON; its digest is the image's
	layers []layer
	names  []string
	origin string // for Image.Source
}

// Pull fetches an image for linux and this machine's architecture from the
// registry that ref names, Docker Hub if it names none, with the credentials
// of ~/.docker/config.json. An image that is here already is only named.
func (s *Store) Pull(ctx context.Context, ref string, p Progress) (Image, error) {
	p = serial(p)
	r, err := parseName(ref)
	if err != nil {
		return Image{}, err
	}
	img, err := s.pull(ctx, r, p)
	if err != nil {
		return Image{}, fmt.Errorf("pulling %s: %w", familiar(r), err)
	}
	return img, nil
}

func (s *Store) pull(ctx context.Context, r name.Reference, p Progress) (Image, error) {
	p(Event{Text: "resolving " + familiar(r)})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	img, err := remote.Image(r,
		remote.WithContext(ctx),
		remote.WithTransport(s.transport),
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Second / 2, Factor: 2, Steps: 2}))
	if err != nil {
		return Image{}, err
	}
	src, err := remoteSource(img, func() { cancel(errStalled) })
	if err != nil {
		return Image{}, err
	}
	src.names = []string{familiar(r)}
	src.origin = "pulled from " + r.Context().RegistryStr()
	stored, err := s.add(ctx, src, "pulling "+familiar(r), p)
	if err != nil && context.Cause(ctx) == errStalled {
		err = errStalled
	}
	return stored, err
}

// remoteSource reads manifest and configuration. The readers of its layers
// call stalled, which must end their requests, when nothing comes.
func remoteSource(img v1.Image, stalled func()) (source, error) {
	m, err := img.Manifest()
	if err != nil {
		return source{}, err
	}
	if m.Config.Size > maxConfig {
		return source{}, fmt.Errorf("configuration of %d bytes: at most %d", m.Config.Size, maxConfig)
	}
	src := source{}
	if src.config, err = img.RawConfigFile(); err != nil {
		return source{}, err
	}
	if got := digestOf(src.config); got != m.Config.Digest.String() {
		return source{}, fmt.Errorf("digest mismatch: got %s, want %s", got, m.Config.Digest)
	}
	// The manifest is the registry's word; it is not what bounds the layers.
	if len(m.Layers) > maxLayers {
		return source{}, tooManyLayers(len(m.Layers))
	}
	layers, err := img.Layers()
	if err != nil {
		return source{}, err
	}
	for i, l := range layers {
		src.layers = append(src.layers, layer{size: m.Layers[i].Size, open: func(context.Context) (io.ReadCloser, error) {
			rc, err := l.Compressed() // checks the digest by itself
			if err != nil {
				return nil, err
			}
			return newStallReader(rc, stalled), nil
		}})
	}
	return src, nil
}

func tooManyLayers(n int) error {
	return fmt.Errorf("%w: %d layers, at most %d", ErrTooBig, n, maxLayers)
}

// add unpacks an image and makes it visible. Each layer must have the digest
// that the configuration gives it, and the configuration's is the image's, so
// the image's digest vouches for all of its content.
func (s *Store) add(ctx context.Context, src source, text string, p Progress) (Image, error) {
	img, layers, err := describe(src)
	if err != nil {
		return Image{}, err
	}
	stored, err := s.tag(img.Digest, img.Names)
	if err == nil {
		p(Event{Text: strings.Join(img.Names, ", ") + " is up to date"})
	}
	if !errors.Is(err, ErrNotFound) {
		return stored, err
	}
	root, err := s.newRoot("unpack-")
	if err != nil {
		return Image{}, err
	}
	defer removeAll(root)

	var total int64
	for _, l := range layers {
		total += l.size
	}
	bar, b := newMeter(p, text, total), s.budget()
	for i, l := range layers {
		if err := l.unpack(ctx, root, b, bar.count); err != nil {
			return Image{}, fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
	}
	bar.finish()
	if img.Bytes, err = diskUsage(root); err != nil {
		return Image{}, err
	}
	return s.put(img, root)
}

// describe reads an image's configuration and gives the layers their digests.
func describe(src source) (Image, []layer, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(src.config, &c); err != nil {
		return Image{}, nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return Image{}, nil, fmt.Errorf("image is for %s/%s, this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(src.layers) > maxLayers {
		return Image{}, nil, tooManyLayers(len(src.layers))
	}
	if len(c.RootFS.DiffIDs) != len(src.layers) {
		return Image{}, nil, fmt.Errorf("image has %d layers, its configuration tells of %d", len(src.layers), len(c.RootFS.DiffIDs))
	}
	layers := slices.Clone(src.layers)
	for i, id := range c.RootFS.DiffIDs {
		layers[i].diffID = id.String()
	}
	return Image{
		Digest:  digestOf(src.config),
		Names:   src.names,
		Created: time.Now().UTC(),
		Source:  src.origin,
		Config:  configOf(c.Config),
	}, layers, nil
}

// configOf takes over what Belljar uses, if it is such as a process can have.
func configOf(c v1.Config) Config {
	out := Config{User: c.User, Labels: c.Labels}
	for _, kv := range c.Env {
		if k, _, ok := strings.Cut(kv, "="); ok && k != "" && !strings.Contains(kv, "\x00") {
			out.Env = append(out.Env, kv)
		}
	}
	if c.WorkingDir != "" {
		out.Workdir = path.Join("/", c.WorkingDir)
	}
	return out
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// unreachable is whether err says that no registry answered, rather than what
// one answered. An answer of a gateway is none of the registry's.
func unreachable(err error) bool {
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network)
}

// stallReader ends a download of which nothing comes any more.
type stallReader struct {
	io.ReadCloser
	timer *time.Timer
}

func newStallReader(r io.ReadCloser, stalled func()) *stallReader {
	return &stallReader{r, time.AfterFunc(stallTimeout, stalled)}
}

func (s *stallReader) Read(p []byte) (int, error) {
	// Not running between reads: unpacking may take its time.
	s.timer.Reset(stallTimeout)
	defer s.timer.Stop()
	return s.ReadCloser.Read(p)
}

func (s *stallReader) Close() error {
	s.timer.Stop()
	return s.ReadCloser.Close()
}
