package test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path"
	"strings"
	"testing"
)

// files calls a tool for files, and returns its text and its structured result.
func (s *server) files(t *testing.T, name string, arguments args) (string, map[string]any) {
	t.Helper()
	var structured map[string]any
	res := s.tool(t, name, arguments, &structured)
	return texts(res.Content), structured
}

// fetchLink asks for a link, and returns the status and the body.
func fetchLink(t *testing.T, method, url string, body io.Reader, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// TestWorkspaceFiles writes, changes, shows and shares files in a workspace of
// the native engine, where a command sees the same files; a link outlives a
// crash of the server and a stop of the workspace, and a change of the key ends
// it.
func TestWorkspaceFiles(t *testing.T) {
	s := startServer(t, "SANDBOX_API_KEY=first")
	s.files(t, "write_file", args{"path": "dir/greet.sh", "content": "#!/bin/sh\necho hello\n", "mode": "755"})
	s.files(t, "edit_file", args{"path": "dir/greet.sh", "old": "hello", "new": "good morning"})
	if out, _ := s.files(t, "execute", args{"command": "dir/greet.sh; stat -c '%a %U' dir/greet.sh; echo from inside >dir/note"}); !strings.Contains(out, "good morning\n755 root\n") {
		t.Errorf("inside: %s", out)
	}
	if out, _ := s.files(t, "read_file", args{"path": "dir/note"}); !strings.Contains(out, "     1\tfrom inside\n") {
		t.Errorf("read_file: %s", out)
	}
	if out, _ := s.files(t, "read_file", args{"path": "/proc/self/status"}); !strings.Contains(out, "\tName:") {
		t.Errorf("read_file of /proc: %s", out)
	}
	if out, _ := s.files(t, "list_files", args{"glob": "**/*"}); !strings.Contains(out, "dir/greet.sh") || !strings.Contains(out, "dir/note") {
		t.Errorf("list_files: %s", out)
	}

	s.files(t, "execute", args{"command": "seq 1000000 >data.txt; ln -s data.txt link; ln -s /etc/shadow dir/shadow; mkfifo dir/fifo"})
	_, shared := s.files(t, "share_file", args{"path": "link"})
	url := shared["url"].(string)
	whole := func(what string, status int) string {
		t.Helper()
		got, body := fetchLink(t, "GET", url, nil, nil)
		if got != status {
			t.Errorf("%s: status %d, want %d: %.200s", what, got, status, body)
		}
		return body
	}
	if body := whole("a link", 200); !strings.HasPrefix(body, "1\n2\n3\n") || len(body) != 6888896 {
		t.Errorf("%d bytes", len(body))
	}
	s.kill(t)
	s.restart(t)
	url = s.base() + url[strings.Index(url, "/sandbox-share/"):]
	if status, body := fetchLink(t, "GET", url, nil, http.Header{"Range": {"bytes=2-5"}}); status != 206 || body != "2\n3\n" {
		t.Errorf("after a crash: %d %q", status, body)
	}
	_, archive := s.files(t, "share_file", args{"path": "dir", "format": "tar.gz"})
	_, packed := fetchLink(t, "GET", archive["url"].(string), nil, nil)
	list := exec.CommandContext(t.Context(), "tar", "-tzf", "-")
	list.Stdin = strings.NewReader(packed)
	if out, err := list.CombinedOutput(); err != nil || string(out) != "dir/greet.sh\ndir/note\n" {
		t.Errorf("the archive holds %q, %v", out, err)
	}
	s.files(t, "execute", args{"command": "rm link; echo new >link"})
	if body := whole("a changed file", 200); body != "new\n" {
		t.Errorf("a changed file serves %.100q", body)
	}
	s.files(t, "execute", args{"command": "rm link"})
	whole("a deleted file", 410)
	s.files(t, "execute", args{"command": "echo again >link"})
	whole("a file that is there again", 200)

	if token := path.Base(path.Dir(url)); strings.Contains(s.log.String(), token[:40]) || !strings.Contains(s.log.String(), "path=/sandbox-share/…/link") {
		t.Error("the log has a link's token, or no request for it")
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.env = []string{"SANDBOX_API_KEY=second"}
	s.restart(t)
	url = s.base() + url[strings.Index(url, "/sandbox-share/"):]
	whole("with another key", 404)
}

// TestUploadLink puts a file into a workspace with curl, once, in constant
// memory of the sandbox.
func TestUploadLink(t *testing.T) {
	s := startServer(t, "BELLJAR_WORKSPACE_MEMORY=256MiB")
	_, link := s.files(t, "upload_url", args{"path": "in/big.bin", "max_bytes": 300 << 20})
	size := int64(300 << 20)
	curl := exec.CommandContext(t.Context(), "curl", "-sS", "-T", "-", link["url"].(string))
	curl.Stdin = io.LimitReader(zeroes{}, size)
	out, err := curl.CombinedOutput()
	if want := fmt.Sprintf("stored %d bytes as \"/sandbox/in/big.bin\"\n", size); err != nil || string(out) != want {
		t.Fatalf("curl: %q, %v", out, err)
	}
	if out, _ := s.files(t, "execute", args{"command": "stat -c %s in/big.bin; ls -A in"}); !strings.Contains(out, fmt.Sprintf("%d\nbig.bin\n", size)) {
		t.Errorf("inside: %s", out)
	}
	if status, body := fetchLink(t, "PUT", link["url"].(string), bytes.NewReader([]byte("x")), nil); status != 410 {
		t.Errorf("a second time: %d %s", status, body)
	}
	_, link = s.files(t, "upload_url", args{"path": "in/small", "max_bytes": 10})
	if status, body := fetchLink(t, "PUT", link["url"].(string), strings.NewReader("12345678901"), nil); status != 413 {
		t.Errorf("too large: %d %s", status, body)
	}
	if out, _ := s.files(t, "execute", args{"command": "ls -A in"}); !strings.Contains(out, "\nbig.bin\n") || strings.Contains(out, ".belljar") {
		t.Errorf("left behind: %s", out)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }
