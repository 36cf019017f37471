package test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The eras of the protocol, by a version of each.
const (
	modern = "2026-07-28"
	legacy = "2025-11-25"
)

// result is what run_script returns. It is declared here anew: this is what
// clients rely on.
type result struct {
	Success    bool           `json:"success"`
	ReturnCode int            `json:"returncode"`
	TimedOut   bool           `json:"timed_out"`
	Stdout     string         `json:"stdout"`
	Stderr     string         `json:"stderr"`
	Files      []file         `json:"output_files"`
	Notes      []string       `json:"notes"`
	DurationMS int64          `json:"duration_ms"`
	Limits     map[string]any `json:"limits"`
	Error      string         `json:"error"`
	Denied     []string       `json:"network_denied"`

	content []mcp.Content
}

type file struct {
	Name      string  `json:"name"`
	Bytes     int64   `json:"bytes"`
	SHA256    string  `json:"sha256"`
	MIME      string  `json:"mime"`
	URL       string  `json:"url"`
	ExpiresIn int64   `json:"expires_in"`
	Text      *string `json:"text"`
}

// args are more arguments of run_script.
type args map[string]any

// inputs makes the argument input_files.
func inputs(files map[string]string) args {
	encoded := map[string]string{}
	for name, data := range files {
		encoded[name] = base64.StdEncoding.EncodeToString([]byte(data))
	}
	return args{"input_files": encoded}
}

// run runs a script that Belljar must be able to run, however it ends.
func (s *server) run(t testing.TB, runtime, script string, more ...args) *result {
	t.Helper()
	r, err := s.tryRun(t.Context(), runtime, script, more...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// succeed runs a script that must end well.
func (s *server) succeed(t testing.TB, runtime, script string, more ...args) *result {
	t.Helper()
	r := s.run(t, runtime, script, more...)
	if !r.Success || r.ReturnCode != 0 || r.TimedOut || r.Error != "" {
		t.Fatalf("the script failed: %s", r)
	}
	return r
}

// refused returns the words in which a run is refused.
func (s *server) refused(t testing.TB, runtime, script string, more ...args) string {
	t.Helper()
	res, err := s.call(t.Context(), modern, "run_script", runArguments(runtime, script, more))
	if err != nil {
		t.Fatal(err)
	}
	if !res.IsError {
		t.Fatalf("it was not refused: %s", texts(res.Content))
	}
	return texts(res.Content)
}

// tryRun runs a script. An error says that there is no result.
func (s *server) tryRun(ctx context.Context, runtime, script string, more ...args) (*result, error) {
	res, err := s.call(ctx, modern, "run_script", runArguments(runtime, script, more))
	if err != nil {
		return nil, err
	}
	r, err := readResult(res)
	if err == nil {
		s.note(r)
	}
	return r, err
}

func runArguments(runtime, script string, more []args) args {
	all := args{"runtime": runtime, "script": script}
	for _, m := range more {
		for name, value := range m {
			all[name] = value
		}
	}
	return all
}

// call calls a tool over HTTP as a client of that protocol version.
func (s *server) call(ctx context.Context, version, tool string, arguments any) (*mcp.CallToolResult, error) {
	session, err := connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.url, MaxRetries: -1}, version)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	return session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
}

func connect(ctx context.Context, transport mcp.Transport, version string) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "belljar-test", Version: "1"}, nil)
	return client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
}

func readResult(res *mcp.CallToolResult) (*result, error) {
	if res.IsError {
		return nil, fmt.Errorf("run_script refused: %s", texts(res.Content))
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return nil, err
	}
	r := &result{content: res.Content}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the structured content: %w", err)
	}
	return r, nil
}

// note remembers the tokens of a result's links.
func (s *server) note(r *result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range r.Files {
		if f.URL != "" {
			s.tokens = append(s.tokens, f.token())
		}
	}
}

func (r *result) String() string {
	short := *r
	short.Stdout, short.Stderr = tail(r.Stdout, 2000), tail(r.Stderr, 2000)
	data, _ := json.MarshalIndent(short, "", "  ")
	return string(data)
}

// text returns the result's text for models.
func (r *result) text() string { return texts(r.content) }

func texts(content []mcp.Content) string {
	var all []string
	for _, c := range content {
		if c, ok := c.(*mcp.TextContent); ok {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\n")
}

// images returns the result's image blocks.
func (r *result) images() []*mcp.ImageContent {
	var all []*mcp.ImageContent
	for _, c := range r.content {
		if c, ok := c.(*mcp.ImageContent); ok {
			all = append(all, c)
		}
	}
	return all
}

// links returns the result's links by the names of their files.
func (r *result) links() map[string]*mcp.ResourceLink {
	all := map[string]*mcp.ResourceLink{}
	for _, c := range r.content {
		if c, ok := c.(*mcp.ResourceLink); ok {
			all[c.Name] = c
		}
	}
	return all
}

// file returns the output file of a name.
func (r *result) file(t testing.TB, name string) file {
	t.Helper()
	i := slices.IndexFunc(r.Files, func(f file) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no output file %q: %s", name, r)
	}
	return r.Files[i]
}

// all returns the output files, also those that a long result lists in a file.
func (r *result) all(t testing.TB) []file {
	t.Helper()
	if !strings.Contains(strings.Join(r.Notes, "\n"), "all are listed in output_files.json") {
		return r.Files
	}
	var all []file
	if err := json.Unmarshal(download(t, r.file(t, "output_files.json")), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// names returns the names of the output files.
func (r *result) names() []string {
	names := make([]string, len(r.Files))
	for i, f := range r.Files {
		names[i] = f.Name
	}
	return names
}

// token returns the secret part of a file's link.
func (f file) token() string {
	u, err := url.Parse(f.URL)
	if err != nil {
		return f.URL
	}
	return strings.Split(strings.TrimPrefix(u.EscapedPath(), "/sandbox-out/"), "/")[0]
}

// get fetches a URL.
func get(t testing.TB, url string) (*http.Response, []byte) {
	t.Helper()
	return do(t, http.MethodGet, url, nil)
}

// do sends a request without a body and reads all of the answer.
func do(t testing.TB, method, url string, header http.Header) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
		req.Host = header.Get("Host")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// download fetches an output file through its link, and checks its length
// and hash.
func download(t testing.TB, f file) []byte {
	t.Helper()
	if f.URL == "" {
		t.Fatalf("%s has no link", f.Name)
	}
	res, body := get(t, f.URL)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("downloading %s: %s %s", f.Name, res.Status, body)
	}
	if sum := sha256.Sum256(body); int64(len(body)) != f.Bytes || fmt.Sprintf("%x", sum) != f.SHA256 {
		t.Fatalf("downloading %s: %d bytes with hash %x, the result says %d and %s", f.Name, len(body), sum, f.Bytes, f.SHA256)
	}
	return body
}

// data returns what a file holds, from the result or through its link.
func (f file) data(t testing.TB) string {
	t.Helper()
	if f.Text != nil {
		return *f.Text
	}
	return string(download(t, f))
}

// hash returns the SHA-256 of a text in hexadecimal.
func hash(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// path returns the path of a file's link, which holds after the server has
// come back on another port.
func (f file) path(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.EscapedPath()
}
