package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

var testConfig = v1.Config{
	Env: []string{"PATH=/bin", "A=b=c", "bad", "nul=\x00"}, WorkingDir: "srv/../work", User: "ada", Labels: map[string]string{"l": "v"},
}

var wantConfig = Config{
	Env: []string{"PATH=/bin", "A=b=c"}, Workdir: "/work", User: "ada", Labels: map[string]string{"l": "v"},
}

func twoLayers(t *testing.T) v1.Image {
	return makeImage(t, testConfig,
		makeTar(t, dir("d"), file("d/old", "old"), file("x", "x")),
		makeTar(t, file("d/.wh.old", ""), file("d/new", "new")))
}

const twoLayersListing = "d drwxr-xr-x 0:0\nd/new -rw-r--r-- 0:0 \"new\"\nx -rw-r--r-- 0:0 \"x\"\n"

func checkTwoLayers(t *testing.T, img Image, v v1.Image) {
	t.Helper()
	if got := listing(t, img.Rootfs); got != twoLayersListing {
		t.Errorf("got\n%s", got)
	}
	want, err := v.ConfigName()
	if err != nil || img.Digest != want.String() {
		t.Errorf("digest %s, want the configuration's, %s", img.Digest, want)
	}
	if diff := cmp.Diff(wantConfig, img.Config); diff != "" {
		t.Error(diff)
	}
	if img.Bytes != 4 {
		t.Errorf("%d bytes", img.Bytes)
	}
}

// serve is a registry on loopback, with a filter before it.
func serve(t *testing.T, filter func(w http.ResponseWriter, r *http.Request, next http.Handler)) string {
	t.Helper()
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filter == nil || r.Method != http.MethodGet {
			reg.ServeHTTP(w, r)
			return
		}
		filter(w, r, reg)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

func TestPull(t *testing.T) {
	needRoot(t)
	ref := serve(t, nil) + "/some/image:1"
	v := twoLayers(t)
	push(t, ref, v)
	s := openStore(t, t.TempDir(), Options{})
	var rec recorder
	img, err := s.Pull(t.Context(), ref, rec.progress)
	if err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, img, v)
	last := rec.events[len(rec.events)-1]
	if last.Total == 0 || last.Done != last.Total {
		t.Errorf("last event: %+v", last)
	}
	if got, err := s.Get(ref); err != nil || got.Digest != img.Digest {
		t.Errorf("not found by its name: %v", err)
	}
	rec = recorder{}
	again, err := s.Pull(t.Context(), ref, rec.progress)
	if err != nil || again.Digest != img.Digest || !strings.Contains(rec.text(), "up to date") {
		t.Errorf("second pull: %v\n%s", err, rec.text())
	}
	isEmpty(t, s.path("tmp"))
}

func TestPullPicksThePlatform(t *testing.T) {
	needRoot(t)
	ref := serve(t, nil) + "/multi"
	v := twoLayers(t)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: empty.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: v, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: platformArgs()["TARGETARCH"]}}})
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(r, index); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, t.TempDir(), Options{})
	img, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, img, v)

	cf, err := v.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.Architecture = "s390x"
	foreign, err := mutate.ConfigFile(v, cf)
	if err != nil {
		t.Fatal(err)
	}
	push(t, ref+":foreign", foreign)
	if _, err := s.Pull(t.Context(), ref+":foreign", nil); err == nil || !strings.Contains(err.Error(), "s390x") {
		t.Errorf("an image for another machine: %v", err)
	}
}

// A registry that answers something else than the digest says must not get it
// into the store.
func TestPullVerifies(t *testing.T) {
	needRoot(t)
	v := twoLayers(t)
	layers, err := v.Layers()
	if err != nil {
		t.Fatal(err)
	}
	target, err := layers[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := v.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	evil := gzipped(t, makeTar(t, file("d/evil", "evil")))
	// The same size, so that only the digest can tell.
	flip := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }
	for _, tt := range []struct {
		name   string
		digest v1.Hash
		change func(b []byte) []byte
	}{
		{"other layer", target, func([]byte) []byte { return evil }},
		{"changed layer", target, flip},
		{"cut layer", target, func(b []byte) []byte { return b[:len(b)-1] }},
		{"longer layer", target, func(b []byte) []byte { return append(bytes.Clone(b), 0) }},
		{"changed configuration", config, flip},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				body := rec.Body.Bytes()
				if strings.HasSuffix(r.URL.Path, "/blobs/"+tt.digest.String()) {
					body = tt.change(body)
				}
				for k, v := range rec.Header() {
					if k != "Content-Length" {
						w.Header()[k] = v
					}
				}
				w.WriteHeader(rec.Code)
				w.Write(body)
			})
			push(t, host+"/x", v)
			s := openStore(t, t.TempDir(), Options{})
			if img, err := s.Pull(t.Context(), host+"/x", nil); err == nil {
				t.Errorf("accepted:\n%s", listing(t, img.Rootfs))
			}
			if all, _ := s.List(); len(all) != 0 {
				t.Errorf("in the store: %v", all)
			}
			isEmpty(t, s.path("tmp"))
			isEmpty(t, s.path("rootfs"))
		})
	}
}

func TestPullBounds(t *testing.T) {
	needRoot(t)
	ref := serve(t, nil) + "/bomb"
	s := openStore(t, t.TempDir(), Options{MaxBytes: 1 << 20, MaxFiles: 1000})
	half := makeTar(t, file("zeros", strings.Repeat("\x00", 600<<10)))
	push(t, ref, makeImage(t, v1.Config{}, half, half))
	if _, err := s.Pull(t.Context(), ref, nil); !errors.Is(err, ErrTooBig) {
		t.Errorf("two halves of more than the bound: %v", err)
	}
	var layers [][]byte
	for range maxLayers + 1 {
		layers = append(layers, makeTar(t))
	}
	push(t, ref, makeImage(t, v1.Config{}, layers...))
	if _, err := s.Pull(t.Context(), ref, nil); !errors.Is(err, ErrTooBig) {
		t.Errorf("too many layers: %v", err)
	}
	isEmpty(t, s.path("tmp"))
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	status := func(code int) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) { w.WriteHeader(code) })
	}
	s := openStore(t, t.TempDir(), Options{})
	for _, tt := range []struct {
		host string
		want bool
	}{
		{closed, true}, {status(502), true}, {"registry.invalid", true},
		{serve(t, nil), false}, {status(401), false}, {status(403), false}, {status(429), false},
	} {
		_, err := s.Pull(t.Context(), tt.host+"/x", nil)
		if err == nil || unreachable(err) != tt.want {
			t.Errorf("%s: unreachable is %v for: %v", tt.host, !tt.want, err)
		}
	}
}

func TestLoad(t *testing.T) {
	needRoot(t)
	v := twoLayers(t)
	tag, err := name.NewTag("plot/tool:2")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		make  func(t *testing.T, dir string) string
		names []string
	}{
		{"docker archive", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "a.tar")
			if err := tarball.WriteToFile(path, tag, v); err != nil {
				t.Fatal(err)
			}
			return path
		}, []string{"plot/tool:2"}},
		{"OCI layout", func(t *testing.T, dir string) string {
			writeLayout(t, dir, v, map[string]string{"org.opencontainers.image.ref.name": "v7"})
			return dir
		}, []string{"oci-layout:v7"}},
		{"OCI archive, compressed", func(t *testing.T, dir string) string {
			writeLayout(t, dir, v, map[string]string{"io.containerd.image.name": "docker.io/library/tool:latest"})
			return packed(t, dir)
		}, []string{"tool"}},
		{"OCI archive without a name", func(t *testing.T, dir string) string {
			writeLayout(t, dir, v, nil)
			return packed(t, dir)
		}, []string{"my-tool-1.2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "oci-layout")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := tt.make(t, dir)
			s := openStore(t, t.TempDir(), Options{})
			imgs, err := s.Load(t.Context(), path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(imgs) != 1 {
				t.Fatalf("%d images", len(imgs))
			}
			checkTwoLayers(t, imgs[0], v)
			if diff := cmp.Diff(tt.names, imgs[0].Names); diff != "" {
				t.Error(diff)
			}
			isEmpty(t, s.path("tmp"))
		})
	}
}

func writeLayout(t *testing.T, dir string, v v1.Image, annotations map[string]string) {
	t.Helper()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(v, layout.WithAnnotations(annotations)); err != nil {
		t.Fatal(err)
	}
}

// packed makes an archive of a directory.
func packed(t *testing.T, from string) string {
	t.Helper()
	var entries []entry
	err := filepath.Walk(from, func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			rel, _ := filepath.Rel(from, path)
			entries = append(entries, file(rel, readFile(t, path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "My Tool-1.2.tar.gz")
	if err := os.WriteFile(path, gzipped(t, makeTar(t, entries...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadHostile(t *testing.T) {
	needRoot(t)
	v := twoLayers(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, makeTar(t, file("x", "secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	docker := func(config, layer string) []byte {
		m, err := json.Marshal([]map[string]any{{"Config": config, "RepoTags": []string{"x"}, "Layers": []string{layer}}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	good := string(makeTar(t, file("x", "x")))
	config, err := makeImage(t, v1.Config{}, []byte(good)).RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		entries []entry
	}{
		{"neither", []entry{file("x", "x")}},
		{"nothing", nil},
		{"a list of none", []entry{file("manifest.json", "[]")}},
		{"no JSON", []entry{file("manifest.json", "{")}},
		{"configuration outside", []entry{file("manifest.json", string(docker(secret, "l.tar"))), file("l.tar", good)}},
		{"layer outside", []entry{file("manifest.json", string(docker("c.json", "../../../.."+secret))), file("c.json", string(config))}},
		{"layer through a link", []entry{file("manifest.json", string(docker("c.json", "l.tar"))), file("c.json", string(config)), link("l.tar", secret)}},
		{"layer is a pipe", []entry{file("manifest.json", string(docker("c.json", "l.tar"))), file("c.json", string(config)), {h: pipeHeader("l.tar")}}},
		{"manifest is a pipe", []entry{{h: pipeHeader("manifest.json")}}},
		{"layer of another digest", []entry{file("manifest.json", string(docker("c.json", "l.tar"))), file("c.json", string(config)), file("l.tar", string(makeTar(t, file("x", "y"))))}},
		{"configuration of another digest", []entry{file("manifest.json", string(docker(strings.Repeat("a", 64)+".json", "l.tar"))), file(strings.Repeat("a", 64)+".json", string(config)), file("l.tar", good)}},
		{"bad name", []entry{file("manifest.json", strings.Replace(string(docker("c.json", "l.tar")), `["x"]`, `["../X"]`, 1)), file("c.json", string(config)), file("l.tar", good)}},
		{"more layers than told", []entry{file("manifest.json", `[{"Config":"c.json","Layers":["l.tar","l.tar"]}]`), file("c.json", string(config)), file("l.tar", good)}},
		{"digest as a path", []entry{file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:../../../../etc/passwd"}]}`)}},
		{"index within itself", []entry{file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":9999999999,"digest":"sha256:`+strings.Repeat("0", 64)+`"}]}`)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.tar")
			if err := os.WriteFile(path, makeTar(t, tt.entries...), 0o600); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, t.TempDir(), Options{})
			if imgs, err := s.Load(t.Context(), path, nil); err == nil {
				t.Errorf("loaded %v\n%s", imgs, listing(t, imgs[0].Rootfs))
			}
			isEmpty(t, s.path("tmp"))
			isEmpty(t, s.path("rootfs"))
		})
	}

	dir := t.TempDir()
	writeLayout(t, dir, v, nil)
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil || len(blobs) != 4 {
		t.Fatalf("blobs: %v, %v", blobs, err)
	}
	for _, blob := range blobs {
		whole := []byte(readFile(t, blob))
		changed := bytes.Clone(whole)
		changed[len(changed)/2] ^= 1
		for _, b := range [][]byte{changed, whole[:len(whole)-1], nil} {
			if err := os.WriteFile(blob, b, 0o600); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, t.TempDir(), Options{})
			if _, err := s.Load(t.Context(), dir, nil); err == nil {
				t.Errorf("loaded with a changed blob of %d bytes", len(b))
			}
		}
		if err := os.WriteFile(blob, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
