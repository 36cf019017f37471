package image

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// offline is a network without any registry.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, &net.DNSError{Err: "no such host", Name: r.URL.Host, IsNotFound: true}
}

// answer is a registry that has one answer to everything.
type answer int

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}

// fakeTool puts a program called mmdebstrap before all others.
func fakeTool(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mmdebstrap"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func offlineStore(t *testing.T) *Store {
	t.Helper()
	s := openStore(t, t.TempDir(), Options{})
	s.transport = offline{}
	s.etc = t.TempDir()
	return s
}

func TestBootstrap(t *testing.T) {
	needRoot(t)
	s := offlineStore(t)
	base := filepath.Join(t.TempDir(), "base.tar")
	if err := os.WriteFile(base, makeTar(t, dir("etc"), file("etc/debian_version", "13\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	fakeTool(t, `echo "I: $*" >&2; cp `+base+` "$4"; echo "$TMPDIR" >"`+base+`.tmp"`)
	o := workspace(t, "FROM debian:trixie-slim\nCOPY x /x\n", map[string]string{"x": "x"})
	img, events := mustBuild(t, s, o, noRunner{t})
	if got := readFile(t, filepath.Join(img.Rootfs, "etc/debian_version")); got != "13\n" {
		t.Errorf("got %q", got)
	}
	for _, want := range []string{
		"no registry answers; making debian:trixie-slim with mmdebstrap from Debian's own mirror",
		"I: --variant=minbase --format=tar trixie " + s.path("tmp"),
	} {
		if !strings.Contains(events, want) {
			t.Errorf("no %q in\n%s", want, events)
		}
	}
	if want := "built from Containerfile on debian:trixie-slim (Debian trixie, bootstrapped with mmdebstrap from Debian's own mirror)"; img.Source != want {
		t.Errorf("source %q, want %q", img.Source, want)
	}
	if tmp := readFile(t, base+".tmp"); !strings.HasPrefix(tmp, s.path("tmp")) {
		t.Errorf("temporary files in %s", tmp)
	}
	isEmpty(t, s.path("tmp"))

	fakeTool(t, "exit 1")
	o.Name = "second"
	if _, err := s.Build(t.Context(), o, noRunner{t}, nil); err != nil {
		t.Errorf("the base was not kept: %v", err)
	}
}

func TestBootstrapFails(t *testing.T) {
	needRoot(t)
	s := offlineStore(t)
	fakeTool(t, "echo E: no such suite >&2; exit 7")
	for from, wants := range map[string][]string{
		"debian:trixie":   {"no registry answers", "no such host", "exit status 7", "E: no such suite"},
		"ubuntu:24.04":    {"no registry answers", "only Debian's"},
		"ghcr.io/x/y":     {"no registry answers", "only Debian's"},
		"debian:nonsense": {"no registry answers", "only Debian's"},
	} {
		_, err := s.Build(t.Context(), workspace(t, "FROM "+from+"\n", nil), noRunner{t}, nil)
		if err == nil {
			t.Fatalf("%s: built", from)
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in: %v", from, want, err)
			}
		}
	}
	t.Setenv("PATH", t.TempDir())
	_, err := s.Build(t.Context(), workspace(t, "FROM debian:13\n", nil), noRunner{t}, nil)
	if err == nil || !strings.Contains(err.Error(), "apt-get install -y mmdebstrap") {
		t.Errorf("without the tool: %v", err)
	}
	isEmpty(t, s.path("tmp"))
}

// An answer that there is no such image, or that it is not for us, is none to
// be got around.
func TestNoBootstrapAfterAnAnswer(t *testing.T) {
	s := offlineStore(t)
	fakeTool(t, "exit 1")
	for _, code := range []int{http.StatusNotFound, http.StatusUnauthorized, http.StatusTooManyRequests} {
		s.transport = answer(code)
		_, err := s.Build(t.Context(), workspace(t, "FROM debian:trixie\n", nil), noRunner{t}, nil)
		if err == nil || strings.Contains(err.Error(), "mmdebstrap") {
			t.Errorf("%d: %v", code, err)
		}
	}
}

func TestCancelledBootstrapLeavesNoProcess(t *testing.T) {
	needRoot(t)
	s := offlineStore(t)
	pids := filepath.Join(t.TempDir(), "pids")
	fakeTool(t, `sleep 1000 & echo $! >`+pids+`; echo started; wait`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.Build(ctx, workspace(t, "FROM debian:trixie\n", nil), noRunner{t}, func(e Event) {
		if e.Output && e.Text == "started" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	pid := strings.TrimSpace(readFile(t, pids))
	// Its parent is gone, so it is for another to reap; a zombie will do.
	for deadline := time.Now().Add(10 * time.Second); ; {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s is left: %s", pid, stat)
		}
	}
	isEmpty(t, s.path("tmp"))
}

func TestDebianSuite(t *testing.T) {
	for ref, want := range map[string]string{
		"debian:trixie": "trixie", "debian:trixie-slim": "trixie", "debian:13": "trixie", "debian:13-slim": "trixie", "debian:13.1": "trixie",
		"debian:bookworm-slim": "bookworm", "debian:12": "bookworm", "docker.io/library/debian:11-slim": "bullseye",
		"debian": "stable", "debian:stable-slim": "stable", "debian:sid": "sid", "debian:unstable": "sid", "debian:testing": "testing",
		"debian:trixie-20250101-slim": "", "debian:99": "", "debian:nonsense": "", "ubuntu:trixie": "", "ghcr.io/library/debian:trixie": "", "x/debian:trixie": "",
	} {
		r, err := parseName(ref)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := debianSuite(r)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v, want %q", ref, got, ok, want)
		}
	}
}

func TestDebianMirror(t *testing.T) {
	const debian = "ID=debian\nVERSION_CODENAME=bookworm\n"
	third := "Types: deb\nURIs: https://download.docker.com/linux/debian\nSuites: bookworm\nComponents: stable\n\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"deb822", map[string]string{"os-release": debian, "apt/sources.list.d/a.sources": third,
			"apt/sources.list.d/debian.sources": "# ours\nTypes: deb deb-src\nURIs:\n http://mirror.example/debian/\nSuites: bookworm bookworm-updates\nComponents: main\n\nTypes: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n"},
			"http://mirror.example/debian"},
		{"one line", map[string]string{"os-release": debian, "apt/sources.list": "# deb http://old.example/debian bookworm main\ndeb http://mirror.example/debian-security bookworm-security main\ndeb-src http://src.example/debian bookworm main\ndeb [arch=amd64 signed-by=/x y] https://mirror.example/debian bookworm main contrib\n"},
			"https://mirror.example/debian"},
		{"disabled", map[string]string{"os-release": debian, "apt/sources.list.d/debian.sources": "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n"},
			""},
		{"list of mirrors", map[string]string{"os-release": debian, "apt/mirrors/debian.list": "https://mirror.example/debian\tpriority:1\n",
			"apt/sources.list.d/debian.sources": "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: bookworm\nComponents: main\n"},
			"https://mirror.example/debian"},
		{"nothing of use", map[string]string{"os-release": debian, "apt/sources.list": "deb cdrom:[Debian]/ bookworm main\nnonsense\n", "apt/sources.list.d/a.sources": third}, ""},
		{"Ubuntu", map[string]string{"os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n", "apt/sources.list": "deb http://mirror.example/debian noble main\n"}, ""},
		{"no system at all", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			etc := t.TempDir()
			for name, content := range tt.files {
				path := filepath.Join(etc, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := debianMirror(etc); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
