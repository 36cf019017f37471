package workspace

import (
	"context"
	"errors"
	"strings"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
)

// UploadRequest asks for a link by which a file can be put to a path.
type UploadRequest struct {
	FileRef
	// MaxBytes bounds the file; 0 is as much as the server takes.
	MaxBytes int64
}

// UploadLink is a link by which one file can be put to one path, once.
type UploadLink struct {
	Path      string    `json:"path"`
	URL       string    `json:"url"`
	Command   string    `json:"command" jsonschema:"how to use it, with FILE in the place of a file's name"`
	MaxBytes  int64     `json:"max_bytes"`
	ExpiresIn int64     `json:"expires_in" jsonschema:"seconds"`
	Expires   time.Time `json:"expires"`
	// Replaces is whether there is a file now.
	Replaces bool `json:"replaces,omitempty" jsonschema:"whether a file is there now, which will be replaced"`
}

// UploadURL returns a link for an upload.
func (f *Files) UploadURL(ctx context.Context, r UploadRequest) (*UploadLink, error) {
	most := f.maxUpload
	switch {
	case r.MaxBytes < 0 || r.MaxBytes > most:
		return nil, refuse("max_bytes: want 1 to %d", most)
	case r.MaxBytes > 0:
		most = r.MaxBytes
	}
	if strings.HasSuffix(r.Path, "/") {
		return nil, refuse("path: %s names a directory; want the path that the file is to have", show(r.Path))
	}
	var u *UploadLink
	err := f.with(ctx, r.FileRef, func(ctx context.Context, ws opened) error {
		if len(ws.path) > artifact.MaxLinkPath {
			return refuse("path: a link takes at most %d bytes", artifact.MaxLinkPath)
		}
		st, err := ws.c.Stat(ctx, ws.path)
		switch {
		case errors.Is(err, agent.ErrNoFile):
		case err != nil:
			return err
		case st.Kind == agent.KindDir:
			return refuse("%s is a directory; want the path that the file is to have, such as %s/data.csv", show(ws.path), show(ws.path))
		case st.Kind == agent.KindOther:
			return refuse("%s is no regular file, and cannot be replaced by one", show(ws.path))
		}
		link, err := f.links.Upload(ws.ID(), ws.path, most)
		if err != nil {
			return err
		}
		u = &UploadLink{
			Path: ws.path, URL: link.URL, Command: "curl -T FILE '" + link.URL + "'", MaxBytes: most,
			ExpiresIn: int64(artifact.UploadTTL.Seconds()), Expires: link.Expires, Replaces: st.Kind == agent.KindFile,
		}
		return nil
	})
	return u, err
}
