package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Client speaks to the agent of one sandbox over one connection. Its methods
// are safe for concurrent use and share the connection. Nothing is retried:
// after the connection broke, a new Client on a new connection goes on, since
// jobs do not depend on it.
type Client struct {
	raw  net.Conn
	dead context.CancelFunc // ends the set-up of the connection

	ready chan struct{} // closed when conn or err is set
	conn  *http.ClientConn
	err   error

	mu   sync.Mutex
	keep map[string]int // the Keep of the jobs started here
}

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 16 << 10

// NewClient takes ownership of conn (one HTTP/2 connection, agent is the HTTP/2 server on it).
func NewClient(conn net.Conn) *Client {
	enlarge(conn)
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{raw: conn, dead: cancel, ready: make(chan struct{}), keep: map[string]int{}}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocols:              &protocols,
		DisableCompression:     true, // an answer must not grow by unpacking
		MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:             256 << 10,
			MaxReceiveBufferPerStream:    1 << 20,
			MaxDecoderHeaderTableSize:    4 << 10,
			StrictMaxConcurrentRequests:  true,
			WriteByteTimeout:             30 * time.Second,
			SendPingTimeout:              30 * time.Second,
			PingTimeout:                  15 * time.Second,
			PermitProhibitedCipherSuites: false,
		},
	}
	// Setting up writes to the connection, and the other end may not read.
	go func() {
		defer close(c.ready)
		c.conn, c.err = transport.NewClientConn(ctx, "http", "agent:80")
	}()
	return c
}

// enlarge lets the writing end run ahead, so that a busy machine has to switch
// less often between the two. The kernel grants what it grants.
func enlarge(conn net.Conn) {
	if u, ok := conn.(interface{ SetWriteBuffer(int) error }); ok {
		u.SetWriteBuffer(1 << 20)
	}
}

// Close closes the connection. Requests under way fail; jobs go on.
func (c *Client) Close() error {
	c.dead()
	err := c.raw.Close()
	<-c.ready
	if c.conn != nil {
		c.conn.Close()
	}
	return err
}

// Health asks the agent how it is. It is also the way to know that the other
// end speaks a version of the API that this client does.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var h Health
	if err := c.call(ctx, "GET", "health", nil, nil, maxHeader, &h); err != nil {
		return Health{}, fmt.Errorf("asking the agent's health: %w", err)
	}
	if h.Version != Version && h.Version != Version-1 || h.Jobs < 0 || h.Zombies < 0 {
		return Health{}, nonsense("health %+v", h)
	}
	return h, nil
}

// StartJob starts a job and returns when it was accepted. It is idempotent:
// a job of the same id that exists, in whatever state, is left as it is. That
// its command could not be started shows in its status.
func (c *Client) StartJob(ctx context.Context, spec JobSpec) error {
	_, err := c.RunJob(ctx, spec, 0)
	return err
}

// RunJob is StartJob with an answer that waits up to grace for the job's end. It
// returns the job's status by then, or the zero one if there is no grace.
func (c *Client) RunJob(ctx context.Context, spec JobSpec, grace time.Duration) (JobStatus, error) {
	fail := func(err error) (JobStatus, error) {
		return JobStatus{}, fmt.Errorf("starting job %s: %w", spec.ID, err)
	}
	if err := spec.check(); err != nil {
		return JobStatus{}, err
	}
	body, err := json.Marshal(spec)
	if err != nil {
		return fail(err)
	}
	c.mu.Lock()
	c.keep[spec.ID] = spec.Keep
	c.mu.Unlock()
	var query url.Values
	if grace > 0 {
		query = url.Values{"grace": {grace.String()}}
	}
	var st JobStatus
	res, err := c.do(ctx, "PUT", "jobs/"+spec.ID, query, bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	data, err := readBounded(res.Body, statusLimit(spec.Keep))
	if err != nil {
		return fail(err)
	}
	if grace <= 0 || len(data) == 0 { // or the agent knows none
		return st, nil
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return fail(nonsense("%s", printable(err.Error())))
	}
	st.Error = printable(st.Error)
	return st, st.check(spec.ID, spec.Keep)
}

// statusLimit bounds a job's status, in bytes of JSON: two streams of head and
// tail in base64, and the rest with two paths.
func statusLimit(keep int) int64 { return int64(4*(keep+2)/3*4 + 32<<10) }

// Job returns a job's status as it is now, or ErrNoJob.
func (c *Client) Job(ctx context.Context, id string) (JobStatus, error) {
	st, err := c.job(ctx, id, nil)
	if err != nil {
		return JobStatus{}, fmt.Errorf("asking for job %s: %w", id, err)
	}
	return st, nil
}

// WaitJob returns a job's status once it has exited, or an error when ctx
// ends or the connection breaks; the wait can then be taken up by another
// call. ErrNoJob if there is none.
func (c *Client) WaitJob(ctx context.Context, id string) (JobStatus, error) {
	return c.wait(ctx, id, waitExit, func(s JobState) bool { return s == JobExited })
}

// WaitGate is WaitJob for a job with a gate: it returns as soon as the command
// waits there, or has exited.
func (c *Client) WaitGate(ctx context.Context, id string) (JobStatus, error) {
	return c.wait(ctx, id, waitGate, func(s JobState) bool { return s != JobRunning })
}

// OpenGate lets a command that waits at its gate go on, with a time limit. It
// fails with ErrGate if the command does not wait there, no longer lives, or
// has printed something since WaitGate returned; then it has seen nothing of
// what it was to work on.
func (c *Client) OpenGate(ctx context.Context, id string, timeout time.Duration) error {
	if err := checkJobID(id); err != nil {
		return err
	}
	query := url.Values{"timeout": {timeout.String()}}
	if err := c.call(ctx, "POST", "jobs/"+id+"/open", query, nil, maxHeader, nil); err != nil {
		return fmt.Errorf("opening the gate of job %s: %w", id, err)
	}
	return nil
}

func (c *Client) wait(ctx context.Context, id, what string, enough func(JobState) bool) (JobStatus, error) {
	for {
		asked := time.Now()
		st, err := c.job(ctx, id, url.Values{"wait": {what}})
		if err != nil {
			return JobStatus{}, fmt.Errorf("waiting for job %s: %w", id, err)
		}
		if enough(st.State) {
			return st, nil
		}
		// Asking again at once would let a hostile end keep us busy.
		if time.Since(asked) < longPoll/2 {
			return JobStatus{}, fmt.Errorf("waiting for job %s: %w", id, nonsense("the wait ended early"))
		}
	}
}

func (c *Client) job(ctx context.Context, id string, query url.Values) (JobStatus, error) {
	if err := checkJobID(id); err != nil {
		return JobStatus{}, err
	}
	c.mu.Lock()
	keep, known := c.keep[id]
	c.mu.Unlock()
	if !known {
		keep = MaxKeep
	}
	var st JobStatus
	if err := c.call(ctx, "GET", "jobs/"+id, query, nil, statusLimit(keep), &st); err != nil {
		return JobStatus{}, err
	}
	st.Error = printable(st.Error)
	return st, st.check(id, keep)
}

// SignalJob sends a signal to the process group of a running job's command.
// SIGKILL is more: it ends everything the job started, also what has left the
// group or outlived the command, and returns when nothing is left of it.
func (c *Client) SignalJob(ctx context.Context, id string, sig syscall.Signal) error {
	if err := checkJobID(id); err != nil {
		return err
	}
	query := url.Values{"signal": {strconv.Itoa(int(sig))}}
	if err := c.call(ctx, "POST", "jobs/"+id+"/signal", query, nil, maxHeader, nil); err != nil {
		return fmt.Errorf("signalling job %s: %w", id, err)
	}
	return nil
}

// WriteInput writes to the standard input of a job that was started with one,
// and closes it behind the data if it is the last. It returns how much the
// command's pipe took within ten seconds: what a command does not read fills it.
// ErrNoInput if the job reads none.
func (c *Client) WriteInput(ctx context.Context, id string, data []byte, last bool) (int64, error) {
	if err := checkJobID(id); err != nil {
		return 0, err
	}
	if len(data) > maxInput {
		return 0, fmt.Errorf("writing to job %s: %d bytes at once: want at most %d", id, len(data), maxInput)
	}
	var taken inputTaken
	query := url.Values{"close": {strconv.FormatBool(last)}}
	if err := c.call(ctx, "POST", "jobs/"+id+"/input", query, bytes.NewReader(data), maxHeader, &taken); err != nil {
		return 0, fmt.Errorf("writing to job %s: %w", id, err)
	}
	if taken.Bytes < 0 || taken.Bytes > int64(len(data)) {
		return 0, nonsense("%d of %d bytes taken", taken.Bytes, len(data))
	}
	return taken.Bytes, nil
}

// Output returns what a job has printed after a cursor, at most max bytes of
// each stream, which is at most MaxChunk. With wait it returns once there is
// something, or the job has exited, or ctx or half a minute is over. ErrNoJob
// if there is none.
func (c *Client) Output(ctx context.Context, id string, since Cursor, max int, wait bool) (Output, error) {
	if err := checkJobID(id); err != nil {
		return Output{}, err
	}
	query := url.Values{
		"stdout": {strconv.FormatInt(since.Stdout, 10)}, "stderr": {strconv.FormatInt(since.Stderr, 10)},
		"max": {strconv.Itoa(max)},
	}
	if wait {
		query.Set("wait", waitNews)
	}
	var out Output
	limit := int64(2*((max+2)/3*4) + maxHeader)
	if err := c.call(ctx, "GET", "jobs/"+id+"/output", query, nil, limit, &out); err != nil {
		return Output{}, fmt.Errorf("reading the output of job %s: %w", id, err)
	}
	return out, out.check(since, max)
}

// WriteFile writes what r holds to path, an absolute one, with the permission
// bits of mode. Missing parents are made with mode 0755. The file appears at
// once when all is written, in the place of whatever had its name before.
func (c *Client) WriteFile(ctx context.Context, path string, mode fs.FileMode, r io.Reader) error {
	query := url.Values{"path": {path}, "mode": {strconv.FormatUint(uint64(mode.Perm()), 8)}}
	if err := c.call(ctx, "PUT", "file", query, r, maxHeader, nil); err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return nil
}

// WriteFiles writes files in one request, in their order. If it fails, those
// before the one that it names are written.
func (c *Client) WriteFiles(ctx context.Context, files ...NewFile) error {
	lines := make([]fileLine, len(files))
	parts := make([]io.Reader, 1, len(files)+1)
	for i, f := range files {
		lines[i] = fileLine{Path: f.Path, Mode: f.Mode.Perm(), Size: int64(len(f.Data)), InPlace: f.InPlace, ModTime: f.ModTime}
		parts = append(parts, bytes.NewReader(f.Data))
	}
	head, err := json.Marshal(lines)
	if err != nil {
		return fmt.Errorf("writing files: %w", err)
	}
	parts[0] = bytes.NewReader(head)
	if err := c.call(ctx, "PUT", "files", nil, io.MultiReader(parts...), maxHeader, nil); err != nil {
		return fmt.Errorf("writing files: %w", err)
	}
	return nil
}

// ReadFile opens a regular file for reading. The reader yields exactly the
// announced size or an error; the caller closes it, and it ends with ctx. A
// last element that is a symbolic link is refused, ErrNoFile if there is
// nothing.
func (c *Client) ReadFile(ctx context.Context, path string) (io.ReadCloser, FileInfo, error) {
	fail := func(err error) (io.ReadCloser, FileInfo, error) {
		return nil, FileInfo{}, fmt.Errorf("reading %q: %w", path, err)
	}
	res, err := c.do(ctx, "GET", "file", url.Values{"path": {path}}, nil)
	if err != nil {
		return fail(err)
	}
	var info FileInfo
	err = json.Unmarshal([]byte(res.Header.Get(fileHeader)), &info)
	if err != nil || info.Size < 0 || info.Size != res.ContentLength || info.Mode > 0o777 {
		res.Body.Close()
		return fail(nonsense("file header %q", res.Header.Get(fileHeader)))
	}
	info.Path = []byte(path)
	return res.Body, info, nil
}

// List reports the regular files below a directory: the first max of them in
// the order of their paths. Symbolic links are not followed. ErrNoFile if
// there is no directory.
func (c *Client) List(ctx context.Context, dir string, max int) (Listing, error) {
	all, err := c.ListTrees(ctx, Tree{Dir: dir, Max: max})
	if err != nil {
		return Listing{}, err
	}
	return all[0], all[0].Err
}

// ListTrees is List for several directories, in one request. A directory that
// cannot be listed does not keep the others back: its Listing has Err, which
// is ErrNoFile if it does not exist.
func (c *Client) ListTrees(ctx context.Context, trees ...Tree) ([]Listing, error) {
	fail := func(err error) ([]Listing, error) {
		return nil, fmt.Errorf("listing %q: %w", trees[0].Dir, err)
	}
	res, err := c.do(ctx, "GET", "list", treeQuery(trees), nil)
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	all, err := readListings(res.Body, trees)
	if err != nil {
		return fail(err)
	}
	return all, nil
}

// Preview returns a picture as image/png or image/jpeg, downscaled to at most
// maxEdge pixels on its longer side and maxBytes bytes. ErrNotPicture if the
// file is none that can be decoded. The bytes were made inside the sandbox:
// only their size and their format's signature are checked.
func (c *Client) Preview(ctx context.Context, path string, maxEdge int, maxBytes int64) (mime string, data []byte, err error) {
	query := url.Values{"path": {path}, "edge": {strconv.Itoa(maxEdge)}, "bytes": {strconv.FormatInt(maxBytes, 10)}}
	res, err := c.do(ctx, "GET", "preview", query, nil)
	if err != nil {
		return "", nil, fmt.Errorf("previewing %q: %w", path, err)
	}
	defer res.Body.Close()
	data, err = readBounded(res.Body, maxBytes)
	if err != nil {
		return "", nil, fmt.Errorf("previewing %q: %w", path, err)
	}
	mime = pictureType(data)
	if mime == "" || mime != res.Header.Get("Content-Type") {
		return "", nil, fmt.Errorf("previewing %q: %w", path, nonsense("preview is no picture"))
	}
	return mime, data, nil
}

// call makes a request and decodes the JSON answer, of at most limit bytes,
// into answer if that is not nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, body io.Reader, limit int64, answer any) error {
	res, err := c.do(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := readBounded(res.Body, limit)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return nonsense("%s", printable(err.Error()))
	}
	return nil
}

// do makes a request and returns the answer if it is a success, the caller
// to close its body.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.err != nil {
		return nil, c.err
	}
	u := fmt.Sprintf("http://agent/v%d/%s?%s", Version, path, query.Encode())
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	res, err := c.conn.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var r refusal
	data, err := readBounded(res.Body, maxHeader)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &r); err != nil || r.Code == "" {
		return nil, nonsense("status %d", res.StatusCode)
	}
	return nil, r.err()
}
