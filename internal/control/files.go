package control

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

	"belljar/internal/access"
	"belljar/internal/workspace"
)

// Files works on the files of workspaces; *workspace.Files does, and so does
// what Client.Files returns, whose subject is always the owner.
type Files interface {
	Read(context.Context, workspace.ReadRequest) (*workspace.Content, error)
	Write(context.Context, workspace.WriteRequest) (*workspace.Written, error)
	Edit(context.Context, workspace.EditRequest) (*workspace.Edited, error)
	List(context.Context, workspace.ListRequest) (*workspace.ListedFiles, error)
	Share(context.Context, workspace.ShareRequest) (*workspace.Shared, error)
	Unshare(ctx context.Context, url string) error
	UploadURL(context.Context, workspace.UploadRequest) (*workspace.UploadLink, error)
	CopyOut(ctx context.Context, ref workspace.FileRef) (io.ReadCloser, workspace.Copied, error)
	CopyIn(ctx context.Context, ref workspace.FileRef, name string, mode fs.FileMode, r io.Reader) (workspace.Copied, error)
}

// content is a workspace.Content with the pictures that its own JSON leaves
// out.
type content struct {
	*workspace.Content
	Shown []workspace.Picture `json:"shown,omitempty"`
}

// filePath is where files are streamed, of any size.
const filePath = "/v1/file"

// copiedHeader carries the JSON of a workspace.Copied beside a file's bytes.
const copiedHeader = "Belljar-Copied"

func (s *Server) mountFiles(mux *http.ServeMux) {
	mux.Handle("POST /v1/files/read", asked(func(ctx context.Context, q workspace.ReadRequest) (any, error) {
		q.Subject = access.Owner
		c, err := s.Files.Read(ctx, q)
		if err != nil {
			return nil, err
		}
		return content{c, c.Pictures}, nil
	}))
	mux.Handle("POST /v1/files/write", asked(func(ctx context.Context, q workspace.WriteRequest) (any, error) {
		q.Subject = access.Owner
		return s.Files.Write(ctx, q)
	}))
	mux.Handle("POST /v1/files/edit", asked(func(ctx context.Context, q workspace.EditRequest) (any, error) {
		q.Subject = access.Owner
		return s.Files.Edit(ctx, q)
	}))
	mux.Handle("POST /v1/files/list", asked(func(ctx context.Context, q workspace.ListRequest) (any, error) {
		q.Subject = access.Owner
		return s.Files.List(ctx, q)
	}))
	mux.Handle("POST /v1/files/share", asked(func(ctx context.Context, q workspace.ShareRequest) (any, error) {
		q.Subject = access.Owner
		return s.Files.Share(ctx, q)
	}))
	mux.Handle("POST /v1/files/unshare", asked(func(ctx context.Context, link string) (any, error) {
		return struct{}{}, s.Files.Unshare(ctx, link)
	}))
	mux.Handle("POST /v1/files/upload", asked(func(ctx context.Context, q workspace.UploadRequest) (any, error) {
		q.Subject = access.Owner
		return s.Files.UploadURL(ctx, q)
	}))
	mux.HandleFunc("GET "+filePath, s.copyOut)
}

func fileRef(r *http.Request) workspace.FileRef {
	query := r.URL.Query()
	return workspace.FileRef{Subject: access.Owner, Sandbox: query.Get("sandbox"), Path: query.Get("path")}
}

func (s *Server) copyOut(w http.ResponseWriter, r *http.Request) {
	from, c, err := s.Files.CopyOut(r.Context(), fileRef(r))
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer from.Close()
	header, err := json.Marshal(c)
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set(copiedHeader, string(header))
	w.Header().Set("Content-Length", strconv.FormatInt(c.Bytes, 10))
	if _, err := io.Copy(w, from); err != nil {
		panic(http.ErrAbortHandler) // the size is announced; a cut is all that is left to say
	}
}

func (s *Server) copyIn(r *http.Request) (any, error) {
	mode, err := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 9)
	if err != nil {
		return nil, err
	}
	return s.Files.CopyIn(r.Context(), fileRef(r), r.URL.Query().Get("name"), fs.FileMode(mode), r.Body)
}

// FilesClient is Files through the socket.
type FilesClient struct{ c *Client }

var _ Files = FilesClient{}

// Files returns what works on the files of workspaces.
func (c *Client) Files() FilesClient { return FilesClient{c} }

// Read implements Files.
func (f FilesClient) Read(ctx context.Context, r workspace.ReadRequest) (*workspace.Content, error) {
	got, err := call[content](ctx, f.c, "POST", "/v1/files/read", r)
	if err != nil {
		return nil, err
	}
	got.Content.Pictures = got.Shown
	return got.Content, nil
}

// Write implements Files.
func (f FilesClient) Write(ctx context.Context, r workspace.WriteRequest) (*workspace.Written, error) {
	return call[*workspace.Written](ctx, f.c, "POST", "/v1/files/write", r)
}

// Edit implements Files.
func (f FilesClient) Edit(ctx context.Context, r workspace.EditRequest) (*workspace.Edited, error) {
	return call[*workspace.Edited](ctx, f.c, "POST", "/v1/files/edit", r)
}

// List implements Files.
func (f FilesClient) List(ctx context.Context, r workspace.ListRequest) (*workspace.ListedFiles, error) {
	return call[*workspace.ListedFiles](ctx, f.c, "POST", "/v1/files/list", r)
}

// Share implements Files.
func (f FilesClient) Share(ctx context.Context, r workspace.ShareRequest) (*workspace.Shared, error) {
	return call[*workspace.Shared](ctx, f.c, "POST", "/v1/files/share", r)
}

// Unshare implements Files.
func (f FilesClient) Unshare(ctx context.Context, link string) error {
	_, err := call[struct{}](ctx, f.c, "POST", "/v1/files/unshare", link)
	return err
}

// UploadURL implements Files.
func (f FilesClient) UploadURL(ctx context.Context, r workspace.UploadRequest) (*workspace.UploadLink, error) {
	return call[*workspace.UploadLink](ctx, f.c, "POST", "/v1/files/upload", r)
}

func fileQuery(ref workspace.FileRef) url.Values {
	return url.Values{"sandbox": {ref.Sandbox}, "path": {ref.Path}}
}

// CopyOut implements Files.
func (f FilesClient) CopyOut(ctx context.Context, ref workspace.FileRef) (io.ReadCloser, workspace.Copied, error) {
	var c workspace.Copied
	resp, err := f.c.send(ctx, "GET", filePath+"?"+fileQuery(ref).Encode(), nil)
	if err != nil {
		return nil, c, err
	}
	if err := json.Unmarshal([]byte(resp.Header.Get(copiedHeader)), &c); err != nil {
		resp.Body.Close()
		return nil, c, err
	}
	return resp.Body, c, nil
}

// CopyIn implements Files.
func (f FilesClient) CopyIn(ctx context.Context, ref workspace.FileRef, name string, mode fs.FileMode, r io.Reader) (workspace.Copied, error) {
	var c workspace.Copied
	query := fileQuery(ref)
	query.Set("name", name)
	query.Set("mode", strconv.FormatUint(uint64(mode.Perm()), 8))
	resp, err := f.c.send(ctx, "PUT", filePath+"?"+query.Encode(), r)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	return c, json.NewDecoder(resp.Body).Decode(&c)
}
