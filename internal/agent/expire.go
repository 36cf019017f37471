package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Expired is what Client.Expire has deleted.
type Expired struct {
	// Names are those of entries of the directory, at most maxExpired.
	Names []string `json:"names,omitempty"`
	// More is how many others there were.
	More int `json:"more,omitempty"`
}

// maxExpired bounds Expired.Names, and maxExpiredName each of them in bytes.
const (
	maxExpired     = 200
	maxExpiredName = 255
)

// errFresh ends a walk that has found what it looks for.
var errFresh = errors.New("changed since")

// changedSince is whether anything at path, or below, was changed after a time:
// its content, or what the file system keeps of it, which a file that was moved
// or unpacked here shows although its content is old. Symbolic links are not
// followed.
func changedSince(path string, since time.Time) bool {
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return errFresh // what cannot be looked at is not deleted
		}
		info, err := d.Info()
		if err != nil {
			return errFresh
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.ModTime().After(since) || time.Unix(st.Ctim.Unix()).After(since) {
			return errFresh
		}
		return nil
	})
	return err != nil
}

// expire deletes the entries of a directory in which nothing has changed since.
func expire(ctx context.Context, dir string, since time.Time) (Expired, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Expired{}, fileError(err)
	}
	var gone Expired
	for _, e := range entries {
		if ctx.Err() != nil {
			return gone, ctx.Err()
		}
		path := filepath.Join(dir, e.Name())
		if changedSince(path, since) || os.RemoveAll(path) != nil {
			continue
		}
		if len(gone.Names) < maxExpired {
			gone.Names = append(gone.Names, printable(e.Name()))
		} else {
			gone.More++
		}
	}
	return gone, nil
}

func (s *Server) serveExpire(w http.ResponseWriter, r *http.Request) error {
	age, err := time.ParseDuration(r.FormValue("age"))
	if err != nil || age <= 0 {
		return fmt.Errorf("age %q", r.FormValue("age"))
	}
	gone, err := expire(r.Context(), s.path(r.FormValue("path")), time.Now().Add(-age))
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(gone)
}

// Expire deletes the entries of a directory in which, and below which, nothing
// has changed for as long as age. Symbolic links are not followed. ErrNoFile if
// there is no directory.
func (c *Client) Expire(ctx context.Context, dir string, age time.Duration) (Expired, error) {
	var gone Expired
	query := url.Values{"path": {dir}, "age": {age.String()}}
	limit := int64(maxExpired*(6*maxExpiredName+8) + maxHeader)
	if err := c.call(ctx, "POST", "expire", query, nil, limit, &gone); err != nil {
		return Expired{}, fmt.Errorf("deleting what is old in %q: %w", dir, err)
	}
	if len(gone.Names) > maxExpired || gone.More < 0 {
		return Expired{}, nonsense("%d names and %d more", len(gone.Names), gone.More)
	}
	for i, name := range gone.Names {
		if len(name) > 4*maxExpiredName || strings.ContainsRune(name, '/') {
			return Expired{}, nonsense("name %.100q", name)
		}
		gone.Names[i] = printable(name)
	}
	return gone, nil
}
