package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
)

const (
	// maxHashed bounds the files of which the hash is told, in bytes.
	maxHashed = 1 << 30
	// hashTime bounds what telling it may take.
	hashTime = 30 * time.Second
	// minShare is the shortest life of a link.
	minShare = time.Minute
)

// ShareRequest asks for a link to a file or directory.
type ShareRequest struct {
	FileRef
	// Expires is how long the link is good; 0 is the default.
	Expires time.Duration
	// Format packs a directory: "tar.gz", also if empty, or "zip".
	Format string
}

// Shared is a link to a file or directory.
type Shared struct {
	Name  string `json:"name" jsonschema:"what the download is called"`
	Path  string `json:"path"`
	Kind  string `json:"kind" jsonschema:"file, or dir for a directory that is packed on the way"`
	Bytes int64  `json:"bytes,omitempty" jsonschema:"size of a file"`
	MIME  string `json:"mime"`
	// SHA256 is the hash of a file's content now, "" of 1 GiB and more.
	SHA256    string    `json:"sha256,omitempty" jsonschema:"of the content now; absent from 1 GiB on"`
	URL       string    `json:"url"`
	ExpiresIn int64     `json:"expires_in" jsonschema:"seconds"`
	Expires   time.Time `json:"expires"`
	Notes     []string  `json:"notes,omitempty"`
}

// Share returns a link by which anybody can download a file, as it is then, or
// a directory, packed.
func (f *Files) Share(ctx context.Context, r ShareRequest) (*Shared, error) {
	if r.Expires != 0 && (r.Expires < minShare || r.Expires > artifact.MaxLinkTTL) {
		return nil, refuse("expires_in: want %g to %g seconds", minShare.Seconds(), artifact.MaxLinkTTL.Seconds())
	}
	if r.Format == "" {
		r.Format = string(agent.TarGz)
	}
	if r.Format != string(agent.TarGz) && r.Format != string(agent.Zip) {
		return nil, refuse("format: want tar.gz or zip")
	}
	var s *Shared
	err := f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) (err error) {
		if s, err = f.describe(ctx, ws, r.Format); err != nil {
			return err
		}
		suffix := ""
		if s.Kind == string(agent.KindDir) {
			suffix = "." + r.Format
		}
		if len(ws.path) > artifact.MaxLinkPath {
			return refuse("path: a link takes at most %d bytes", artifact.MaxLinkPath)
		}
		link, err := f.links.Share(ws.ID(), ws.path, suffix, r.Expires)
		if err != nil {
			return err
		}
		ttl := r.Expires
		if ttl == 0 {
			ttl = f.links.TTL()
		}
		s.Name, s.URL, s.Expires, s.ExpiresIn = path.Base(ws.path)+suffix, link.URL, link.Expires, int64(ttl.Seconds())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Unshare ends a link, to a file or for an upload, before its time.
func (f *Files) Unshare(ctx context.Context, url string) error {
	err := f.links.Revoke(ctx, url)
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		return refuse("url: is no link of this server, or was signed with another key")
	case errors.Is(err, artifact.ErrLinkEnded):
		return nil
	}
	return err
}

// describe says what a link will lead to.
func (f *Files) describe(ctx context.Context, ws opened, format string) (*Shared, error) {
	st, err := ws.c.Stat(ctx, ws.path)
	if err != nil {
		return nil, err
	}
	s := &Shared{Path: ws.path, Kind: string(st.Kind)}
	switch st.Kind {
	case agent.KindFile:
		return s, f.describeFile(ctx, ws, s, st.Size)
	case agent.KindDir:
		s.MIME = map[string]string{"tar.gz": "application/gzip", "zip": "application/zip"}[format]
		return s, nil
	case agent.KindLink:
		return nil, refuse("%s is a symbolic link that leads nowhere", show(ws.path))
	}
	return nil, refuse("%s is neither a file nor a directory", show(ws.path))
}

// describeFile reads a file of about that size for what can be promised of it:
// the sandbox's word is not enough.
func (f *Files) describeFile(ctx context.Context, ws opened, s *Shared, size int64) error {
	length := int64(-1)
	if size >= maxHashed {
		length = 8 << 10
	}
	ctx, cancel := context.WithTimeout(ctx, hashTime)
	defer cancel()
	body, st, err := ws.c.ReadRange(ctx, ws.path, 0, length)
	if err != nil {
		return err
	}
	defer body.Close()
	s.Bytes = st.Size
	head, err := io.ReadAll(io.LimitReader(body, 8<<10))
	if err != nil {
		return err
	}
	s.MIME = artifact.MediaType(head, ws.path)
	if st.Size >= maxHashed {
		return nil
	}
	sum := sha256.New()
	sum.Write(head)
	_, err = io.CopyBuffer(struct{ io.Writer }{sum}, io.LimitReader(body, maxHashed), make([]byte, 256<<10))
	switch {
	case err == nil:
		s.SHA256 = hex.EncodeToString(sum.Sum(nil))
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.Notes = append(s.Notes, fmt.Sprintf("no sha256, since reading the file took longer than %v", hashTime))
		return nil
	}
	return err
}
