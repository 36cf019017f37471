// Demo runs examples/plot.py the way an AI client would: it builds the image,
// starts the server, connects to it over HTTP, calls run_script, prints what
// came back, downloads the files and checks their hashes.
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
	"regexp"
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
	fmt.Printf("\nThe server listens at %s\n", s.url)
	return s.runScript(ctx, "examples/plot.py")
}

// buildImage builds the image that scripts run in; what is built already
// takes no time. Where no registry answers, the base comes from Debian's
// packages by mmdebstrap, which is installed only then.
func buildImage(ctx context.Context, belljar string) error {
	fmt.Println("Building the image `mini`:")
	said, err := build(ctx, belljar)
	if err != nil && strings.Contains(said, "install mmdebstrap") {
		need := exec.CommandContext(ctx, "scripts/need", "mmdebstrap:mmdebstrap", "mmdebstrap:debian-archive-keyring")
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

// server is a belljar that this program started.
type server struct {
	cmd *exec.Cmd
	url string
}

// listening finds the address in the server's log.
var listening = regexp.MustCompile(`url=(http://\S+/mcp)`)

func startServer(ctx context.Context, belljar string) (*server, error) {
	cmd := exec.CommandContext(ctx, belljar, "serve", "--port", "0")
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
	return nil, fmt.Errorf("the server did not start: %w\n%s", cmd.Wait(), said.String())
}

func (s *server) stop() error {
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

// download fetches each file through its link and compares the hash.
func (s *server) download(ctx context.Context, files []file) error {
	if len(files) == 0 {
		return errors.New("the script gave no files back")
	}
	for _, f := range files {
		fmt.Printf("\n%s  %d bytes\n  sha256 %s\n  %s\n", f.Name, f.Bytes, f.SHA256, f.URL)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return fmt.Errorf("downloading %s: %w", f.Name, err)
		}
		hash := sha256.New()
		n, err := io.Copy(hash, resp.Body)
		resp.Body.Close()
		if err != nil {
			return fmt.Errorf("downloading %s: %w", f.Name, err)
		}
		if got := fmt.Sprintf("%x", hash.Sum(nil)); n != f.Bytes || got != f.SHA256 {
			return fmt.Errorf("%s: downloaded %d bytes with sha256 %s", f.Name, n, got)
		}
		fmt.Println("  downloaded through its link, the hash is right")
	}
	return nil
}
