package mcpserver

import (
	"context"
	"encoding/json"

	"belljar/internal/access"
	"belljar/internal/workspace"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// FilesBackend works on the files of workspaces. Its errors are as Backend's.
type FilesBackend interface {
	Read(context.Context, workspace.ReadRequest) (*workspace.Content, error)
	Write(context.Context, workspace.WriteRequest) (*workspace.Written, error)
	Edit(context.Context, workspace.EditRequest) (*workspace.Edited, error)
	List(context.Context, workspace.ListRequest) (*workspace.ListedFiles, error)
	Share(context.Context, workspace.ShareRequest) (*workspace.Shared, error)
	Unshare(ctx context.Context, url string) error
	UploadURL(context.Context, workspace.UploadRequest) (*workspace.UploadLink, error)
}

// addFileTools adds the tools for files; o.Files carries them out.
func addFileTools(s *mcp.Server, o Options) {
	addReadFile(s, o)
	addWriteFile(s, o)
	addEditFile(s, o)
	addListFiles(s, o)
	addUploadURL(s, o)
}

// addLinkTools adds the tools for links; o.Files carries them out.
func addLinkTools(s *mcp.Server, o Options) {
	addShareFile(s, o)
	addRevokeLink(s, o)
}

// fileArgs are the arguments that name a file.
type fileArgs struct {
	Path    string `json:"path" jsonschema:"absolute, or below /sandbox"`
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name of the sandbox; the default one if absent"`
}

// arguments are those of a file, for readArguments.
func (a *fileArgs) arguments() []argument {
	return []argument{{"path", "a string", &a.Path}, {"sandbox", "a string", &a.Sandbox}}
}

func (a *fileArgs) ref() workspace.FileRef {
	// Until there is sign-in, every caller is the owner.
	return workspace.FileRef{Subject: access.Owner, Sandbox: a.Sandbox, Path: a.Path}
}

// addFileTool adds a tool whose call reads its arguments and carries itself
// out, for as long as somebody waits for the answer.
func addFileTool(s *mcp.Server, o Options, t *mcp.Tool, call func(context.Context, json.RawMessage) (*mcp.CallToolResult, error)) {
	addTool(s, o, t, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := whileAnswerable(ctx)
		defer cancel()
		return call(ctx, req.Params.Arguments)
	})
}

// inputFor derives a closed schema of arguments.
func inputFor[T any]() *jsonschema.Schema {
	s := schemaFor[T]()
	s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	return s
}

// atLeast bounds a number of a schema from below.
func atLeast(s *jsonschema.Schema, property string, least float64) {
	s.Properties[property].Minimum = &least
}
