// Package artifact stages files for download under capability URLs: whoever
// has a file's URL may read it until it expires, and nobody can guess one.
//
// A file stands at DIR/<token>/<name>, so that a web server may serve the
// directory as it is; its metadata stands in an Index. One token per file: a
// leaked figure does not reveal its data.
package artifact

import (
	"context"
	"errors"
	"time"
)

// Artifact describes one staged file.
type Artifact struct {
	// Token is the capability: 256 random bits in base64url, 43 characters.
	// It never goes into a log.
	Token string
	// File is the name in the URL and on disk: the last element of Path,
	// made safe for both.
	File string
	// Path is what the script called it, relative to its output directory,
	// with slashes, as valid UTF-8.
	Path string
	// Bytes is the size, SHA256 the hash of the content in hex.
	Bytes  int64
	SHA256 string
	// MIME is the media type by content and name, such as "image/png".
	MIME string
	// Subject is whose file it is, Run the run that made it.
	Subject string
	Run     string
	// Created is in UTC, to the millisecond, and so is Expires.
	Created time.Time
	// Expires is when the file is no longer served and is deleted.
	Expires time.Time
}

// Errors that callers decide on.
var (
	// ErrNotFound is for a token that is unknown or expired.
	ErrNotFound = errors.New("no such artifact")
	// ErrTooLarge is for a file above the bound given for it.
	ErrTooLarge = errors.New("file is too large")
	// ErrFull is for a store whose total quota is used up.
	ErrFull = errors.New("the artifact store is full")
)

// Index keeps the metadata of artifacts durably. Methods are safe for
// concurrent use. The suite in indextest is this contract in executable form.
type Index interface {
	// AddArtifact fails if there is one with that token, which then stays.
	AddArtifact(ctx context.Context, a Artifact) error
	// Artifact returns ErrNotFound if there is none with that token,
	// expired ones included until they are deleted.
	Artifact(ctx context.Context, token string) (Artifact, error)
	// DeleteArtifact is no error if there is none.
	DeleteArtifact(ctx context.Context, token string) error
	// Artifacts returns all, oldest first.
	Artifacts(ctx context.Context) ([]Artifact, error)
	// ArtifactBytes returns the sum of all sizes.
	ArtifactBytes(ctx context.Context) (int64, error)
}
