// Demo runs examples/plot.py the way an AI client would: it builds the image,
// starts the server, connects to it over HTTP, calls run_script, prints what
// came back, downloads the files, checks their hashes and saves them.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demo BELLJAR")
		os.Exit(2)
	}
	if err := demo(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, belljar string) (err error) {
	if err := buildImage(ctx, belljar); err != nil {
		return err
	}
	s, err := startServer(ctx, belljar)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if s.cmd == nil {
		fmt.Printf("\nA server runs already, at %s\n", s.url)
	} else {
		fmt.Printf("\nThe server listens at %s\n", s.url)
	}
	return s.runScript(ctx, "examples/plot.py")
}

// buildImage builds the image that scripts run in; what is built already
// takes no time. Where no registry answers, the base comes from Debian's
// packages by mmdebstrap, which is installed only then.
func buildImage(ctx context.Context, belljar string) error {
	fmt.Println("Building the image `mini`:")
	said, err := build(ctx, belljar)
	if _, missing := exec.LookPath("mmdebstrap"); err != nil && missing != nil && strings.Contains(said, "mmdebstrap") {
		need := exec.CommandContext(ctx, "scripts/need", "mmdebstrap:mmdebstrap",
			"/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring")
		need.Stdout, need.Stderr = os.Stdout, os.Stderr
		if err := need.Run(); err != nil {
			return fmt.Errorf("installing mmdebstrap: %w", err)
		}
		_, err = build(ctx, belljar)
	}
	if err != nil {
		return fmt.Errorf("building the image: %w", err)
	}
	return nil
}

func build(ctx context.Context, belljar string) (said string, err error) {
	var kept bytes.Buffer
	cmd := exec.CommandContext(ctx, belljar, "image", "build", "-f", "images/Containerfile.mini", "mini")
	cmd.Stdout, cmd.Stderr = os.Stdout, io.MultiWriter(os.Stderr, &kept)
	err = cmd.Run()
	return kept.String(), err
}

// server is a belljar that this program started, or, with no cmd, found.
type server struct {
	cmd *exec.Cmd
	url string
}

// The server's log says where it listens, or that another one does.
var (
	listening = regexp.MustCompile(`url=(http://\S+/mcp)`)
	runsThere = regexp.MustCompile(`it serves (http://\S+/mcp)`)
)

func startServer(ctx context.Context, belljar string) (*server, error) {
	cmd := exec.CommandContext(ctx, belljar, "serve", "--port", "0")
	cmd.Env = append(os.Environ(), "SANDBOX_IMAGE=mini")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var said strings.Builder
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			go io.Copy(io.Discard, log) // a full pipe would stop the server
			return &server{cmd: cmd, url: m[1]}, nil
		}
	}
	ended := cmd.Wait()
	if m := runsThere.FindStringSubmatch(said.String()); m != nil {
		return &server{url: m[1]}, nil
	}
	return nil, fmt.Errorf("the server did not start: %w\n%s", ended, said.String())
}

func (s *server) stop() error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	return nil
}

// output is the part of run_script's structured result that is shown here.
type output struct {
	Success    bool   `json:"success"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	Error      string `json:"error"`
	DurationMS int64  `json:"duration_ms"`
	Files      []file `json:"output_files"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	URL    string `json:"url"`
}

func (s *server) runScript(ctx context.Context, path string) error {
	script, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "belljar-demo", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.url}, nil)
	if err != nil {
		return fmt.Errorf("connecting over MCP: %w", err)
	}
	defer session.Close()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{
		Name:      "run_script",
		Arguments: map[string]any{"runtime": "python", "script": string(script)},
	})
	if err != nil {
		return fmt.Errorf("calling run_script: %w", err)
	}
	if result.IsError {
		text, _ := json.Marshal(result.Content)
		return fmt.Errorf("run_script refused: %s", text)
	}
	var out output
	data, err := json.Marshal(result.StructuredContent)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return fmt.Errorf("reading run_script's result: %w", err)
	}
	fmt.Printf("\n%s ran in %d ms and printed:\n%s%s", path, out.DurationMS, out.Stdout, out.Stderr)
	if !out.Success {
		return fmt.Errorf("the script failed: %s", out.Error)
	}
	return s.download(ctx, out.Files)
}

// saved is where the files go, as `belljar run` has it.
const saved = "output"

// download fetches each file through its link, compares the hash, and saves
// the file, since the links end with the server.
func (s *server) download(ctx context.Context, files []file) error {
	if len(files) == 0 {
		return errors.New("the script gave no files back")
	}
	for _, f := range files {
		fmt.Printf("\n%s  %d bytes\n  sha256 %s\n  %s\n", f.Name, f.Bytes, f.SHA256, f.URL)
		data, err := fetch(ctx, f.URL)
		if err != nil {
			return fmt.Errorf("downloading %s: %w", f.Name, err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); int64(len(data)) != f.Bytes || got != f.SHA256 {
			return fmt.Errorf("%s: downloaded %d bytes with sha256 %s", f.Name, len(data), got)
		}
		path := filepath.Join(saved, filepath.Base(f.Name))
		if err := save(path, data); err != nil {
			return err
		}
		fmt.Printf("  downloaded through its link, the hash is right; saved as %s\n", path)
	}
	return nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// save writes a file for the one who called sudo, if somebody did.
func save(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	if err != nil {
		return nil
	}
	gid, err := strconv.Atoi(os.Getenv("SUDO_GID"))
	if err != nil {
		return nil
	}
	return errors.Join(os.Chown(filepath.Dir(path), uid, gid), os.Chown(path, uid, gid))
}
