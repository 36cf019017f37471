package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"belljar/internal/image"
	"belljar/internal/sandbox"
)

// Client calls the owner of a state directory. It is safe for concurrent use.
type Client struct {
	http *http.Client
}

// errEnded is for a server that was killed or stopped during a call.
var errEnded = errors.New("the server ended in the middle of the work; what it had not finished is lost")

// Dial connects to the socket. The error is that of dialling if nobody
// listens there.
func Dial(ctx context.Context, path string) (*Client, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	c := &Client{http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
	if _, err := c.Info(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Info describes the owner.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return call[Info](ctx, c, "GET", "/v1/info", nil)
}

// Runtimes lists the runtimes, as sandbox.Manager does.
func (c *Client) Runtimes(ctx context.Context) ([]sandbox.RuntimeInfo, error) {
	return call[[]sandbox.RuntimeInfo](ctx, c, "GET", "/v1/runtimes", nil)
}

// Images lists the images.
func (c *Client) Images(ctx context.Context) ([]image.Image, error) {
	return call[[]image.Image](ctx, c, "GET", "/v1/images", nil)
}

// RemoveImage removes an image or a name of it.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	_, err := call[struct{}](ctx, c, "DELETE", "/v1/images/"+url.PathEscape(ref), nil)
	return err
}

// Sweep removes what has expired and returns how many files that were.
func (c *Client) Sweep(ctx context.Context) (int, error) {
	return call[int](ctx, c, "POST", "/v1/gc", nil)
}

// Build builds an image. Paths must be absolute: the server opens them.
func (c *Client) Build(ctx context.Context, o image.BuildOptions, p image.Progress) (image.Image, error) {
	return follow[image.Event, image.Image](ctx, c, "/v1/images/build", o, p)
}

// Pull pulls an image from its registry.
func (c *Client) Pull(ctx context.Context, ref string, p image.Progress) (image.Image, error) {
	return follow[image.Event, image.Image](ctx, c, "/v1/images/pull", pullRequest{ref}, p)
}

// Load loads the images of an archive. The path must be absolute.
func (c *Client) Load(ctx context.Context, path string, p image.Progress) ([]image.Image, error) {
	return follow[image.Event, []image.Image](ctx, c, "/v1/images/load", loadRequest{path}, p)
}

// Artifact opens the file of an artifact URL of the owner's.
func (c *Client) Artifact(ctx context.Context, link string) (io.ReadCloser, error) {
	u, err := url.Parse(link)
	if err != nil {
		return nil, err
	}
	resp, err := c.do(ctx, "GET", u.EscapedPath(), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// follow makes a call that reports events before its result.
func follow[E, R any](ctx context.Context, c *Client, path string, body any, tell func(E)) (R, error) {
	var none R
	resp, err := c.do(ctx, "POST", path, body)
	if err != nil {
		return none, err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(bufio.NewReader(resp.Body))
	for {
		var e event[E, R]
		switch err := lines.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return none, errEnded
		case err != nil:
			return none, err
		case e.Failure != nil:
			return none, e.Failure.err()
		case e.Event != nil:
			tell(*e.Event)
		case e.Result != nil:
			return *e.Result, nil
		}
	}
}

func call[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var v T
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("reading the server's answer: %w", err)
	}
	return v, nil
}

// do makes a call and turns an answer that is not a success into its error.
func (c *Client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, method, path, bytes.NewReader(data))
}

// send is do with a body of bytes.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://belljar"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if urlErr := (*url.Error)(nil); errors.As(err, &urlErr) {
			err = urlErr.Err // its URL is made up
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil, errEnded
		}
		return nil, fmt.Errorf("calling the server: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	var f Failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&f); err != nil || f.Message == "" {
		return nil, fmt.Errorf("the server answered %s", resp.Status)
	}
	return nil, f.err()
}
