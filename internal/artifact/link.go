package artifact

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Where the handlers of Links are to be mounted.
const (
	SharePrefix  = "/sandbox-share/"
	UploadPrefix = "/sandbox-upload/"
)

// Bounds of links.
const (
	DefaultLinkTTL = 7 * 24 * time.Hour
	MaxLinkTTL     = 365 * 24 * time.Hour
	// UploadTTL is how long a link for an upload is good.
	UploadTTL = time.Hour
	// MaxLinkPath bounds a path that is in a link, in bytes: some programs
	// take no longer URL than 8 KiB.
	MaxLinkPath = 2048
)

// LinkStore remembers durably what a signed link cannot say itself: that it is
// over, since it was revoked or used. Methods are safe for concurrent use. The
// suite in indextest is this contract in executable form.
type LinkStore interface {
	// EndLink records that a link is over, until it would have expired
	// anyway. It fails with ErrLinkEnded if that is recorded already.
	EndLink(ctx context.Context, id string, expires time.Time) error
	// LinkEnded reports whether that is recorded.
	LinkEnded(ctx context.Context, id string) (bool, error)
	// ReopenLink takes EndLink back; no error if there is nothing to take.
	ReopenLink(ctx context.Context, id string) error
	// ForgetLinks deletes the records of links that expired before now, and
	// returns how many.
	ForgetLinks(ctx context.Context, now time.Time) (int, error)
}

// ErrLinkEnded is for a link that was revoked or used already.
var ErrLinkEnded = errors.New("the link is over")

// LinkOptions configure Links.
type LinkOptions struct {
	Store      LinkStore  // required
	Workspaces Workspaces // required
	// Secret is the server's, as LinkSecret returns it.
	Secret []byte
	// Key is the subject's; with another one, no link of before is good. It
	// may be empty: the secret alone then signs.
	Key string
	// BaseURL is what URLs start with, see Options.BaseURL.
	BaseURL string
	// TTL is how long a link to a file is good; DefaultLinkTTL if zero.
	TTL time.Duration
	// MaxTransfers bounds the downloads and uploads at a time, 64 if zero;
	// into one workspace there are half as many.
	MaxTransfers int
	Log          *slog.Logger     // nothing is logged if nil
	Now          func() time.Time // the clock; time.Now if nil
}

// Links signs links into workspaces and serves them. A link is a capability:
// whoever has it may read one path, or write one file there once, until it
// expires. It names the workspace by its immutable identifier and carries a
// MAC, so that nothing is stored for it until it is over.
//
// Methods are safe for concurrent use.
type Links struct {
	store      LinkStore
	workspaces Workspaces
	keys       map[purpose][]byte
	base       atomic.Pointer[string]
	ttl        time.Duration
	log        *slog.Logger
	now        func() time.Time
	transfers  transfers
	starts     starts
}

// purpose keeps a link for one thing from being good for another.
type purpose string

const (
	download purpose = "download"
	upload   purpose = "upload"
)

// NewLinks returns links signed with keys that are derived by HKDF (RFC 5869)
// from the secret, one per purpose, with the subject's key in the derivation's
// info. Without the secret, a link tells nothing of the key, however short
// that is.
func NewLinks(o LinkOptions) (*Links, error) {
	if len(o.Secret) != secretBytes {
		return nil, fmt.Errorf("the secret for links has %d bytes: want %d", len(o.Secret), secretBytes)
	}
	if o.TTL < 0 || o.TTL > MaxLinkTTL || o.MaxTransfers < 0 {
		return nil, fmt.Errorf("links cannot live for %v (at most %v) or be used %d times at once", o.TTL, MaxLinkTTL, o.MaxTransfers)
	}
	l := &Links{store: o.Store, workspaces: o.Workspaces, keys: map[purpose][]byte{}, ttl: o.TTL, log: o.Log, now: o.Now}
	for _, p := range []purpose{download, upload} {
		key, err := hkdf.Key(sha256.New, o.Secret, nil, "belljar link v1 "+string(p)+"\x00"+o.Key, sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("deriving the key of links: %w", err)
		}
		l.keys[p] = key
	}
	if l.ttl == 0 {
		l.ttl = DefaultLinkTTL
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.now == nil {
		l.now = time.Now
	}
	if o.MaxTransfers == 0 {
		o.MaxTransfers = 64
	}
	l.transfers.max = o.MaxTransfers
	l.starts.init()
	l.SetBaseURL(o.BaseURL)
	return l, nil
}

// SetBaseURL changes what URLs start with from now on.
func (l *Links) SetBaseURL(base string) {
	base = strings.TrimRight(base, "/")
	l.base.Store(&base)
}

// Link is a signed link. Its URL never goes into a log.
type Link struct {
	URL     string
	Expires time.Time
	// MaxBytes bounds an upload.
	MaxBytes int64
}

// TTL is how long a link to a file is good if nothing else is asked for.
func (l *Links) TTL() time.Duration { return l.ttl }

// Share returns a link to what is at a path of a workspace when the link is
// used. A directory is packed in the format of suffix, ".tar.gz" or ".zip",
// which is "" for a file. A TTL of zero is the default.
func (l *Links) Share(sandbox, path, suffix string, ttl time.Duration) (Link, error) {
	if ttl == 0 {
		ttl = l.ttl
	}
	if ttl < 0 || ttl > MaxLinkTTL {
		return Link{}, fmt.Errorf("a link cannot live for %v", ttl)
	}
	return l.link(download, SharePrefix, suffix, grant{sandbox: sandbox, path: path, expires: l.now().Add(ttl)})
}

// Upload returns a link by which one file of at most maxBytes can be written
// to a path of a workspace, once.
func (l *Links) Upload(sandbox, path string, maxBytes int64) (Link, error) {
	if maxBytes < 0 {
		return Link{}, fmt.Errorf("a file cannot have %d bytes", maxBytes)
	}
	return l.link(upload, UploadPrefix, "", grant{sandbox: sandbox, path: path, expires: l.now().Add(UploadTTL), maxBytes: maxBytes})
}

func (l *Links) link(p purpose, prefix, suffix string, c grant) (Link, error) {
	if !strings.HasPrefix(c.path, "/") || len(c.path) > MaxLinkPath || strings.IndexByte(c.path, 0) >= 0 || len(c.sandbox) > 255 {
		return Link{}, fmt.Errorf("no link can be made to %.100q in %.100q", c.path, c.sandbox)
	}
	rand.Read(c.id[:]) // never fails
	c.expires = c.expires.Truncate(time.Millisecond).UTC()
	return Link{
		URL:      *l.base.Load() + prefix + l.seal(p, c) + "/" + url.PathEscape(fileName(c.path)+suffix),
		Expires:  c.expires,
		MaxBytes: c.maxBytes,
	}, nil
}

// Revoke ends the link of a URL, or of the path of one. It fails with
// ErrNotFound if that is no link of ours, ErrLinkEnded if it is over already.
func (l *Links) Revoke(ctx context.Context, link string) error {
	u, err := url.Parse(link)
	if err != nil {
		return ErrNotFound
	}
	for p, prefix := range map[purpose]string{download: SharePrefix, upload: UploadPrefix} {
		_, rest, _ := strings.Cut(u.EscapedPath(), prefix)
		token, _, _ := strings.Cut(rest, "/")
		if c, ok := l.open(p, token); ok {
			return l.store.EndLink(ctx, c.key(), c.expires)
		}
	}
	return ErrNotFound
}

// Sweep forgets what is known of links that have expired.
func (l *Links) Sweep(ctx context.Context) (int, error) { return l.store.ForgetLinks(ctx, l.now()) }

// linksEvery is the time between two sweeps of Run. A link that is forgotten
// later costs a row.
const linksEvery = time.Hour

// Run sweeps every hour until ctx ends.
func (l *Links) Run(ctx context.Context) {
	tick := time.NewTicker(linksEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := l.Sweep(ctx); err != nil && ctx.Err() == nil {
			l.log.Error("forgetting links that have expired failed; it is tried again in an hour", "err", err)
		}
	}
}

// grant is what a link says.
type grant struct {
	id       [linkIDBytes]byte
	expires  time.Time // to the millisecond
	maxBytes int64
	sandbox  string // at most 255 bytes
	path     string
}

// key names a link in the store.
func (c grant) key() string { return hex.EncodeToString(c.id[:]) }

const (
	linkVersion  = 1
	linkIDBytes  = 12
	linkFixed    = 1 + linkIDBytes + 8 + 8 + 1 // up to the name of the sandbox
	maxLinkToken = (linkFixed + 255 + MaxLinkPath + sha256.Size) * 4 / 3
)

// seal makes a link's token: what it says, and the MAC of that, in base64url.
func (l *Links) seal(p purpose, c grant) string {
	b := append([]byte{linkVersion}, c.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.expires.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(c.maxBytes))
	b = append(b, byte(len(c.sandbox)))
	b = append(b, c.sandbox...)
	b = append(b, c.path...)
	return base64.RawURLEncoding.EncodeToString(append(b, l.mac(p, b)...))
}

func (l *Links) mac(p purpose, b []byte) []byte {
	m := hmac.New(sha256.New, l.keys[p])
	m.Write(b)
	return m.Sum(nil)
}

// open returns what a token says if it was sealed here for that purpose. There
// is one spelling of each.
func (l *Links) open(p purpose, token string) (grant, bool) {
	if len(token) > maxLinkToken+1 || strings.ContainsAny(token, "\r\n") { // the decoder skips these
		return grant{}, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) < linkFixed+sha256.Size {
		return grant{}, false
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !hmac.Equal(mac, l.mac(p, b)) {
		return grant{}, false
	}
	// From here on, it is our own word.
	if b[0] != linkVersion {
		return grant{}, false
	}
	c := grant{id: [linkIDBytes]byte(b[1 : 1+linkIDBytes])}
	rest := b[1+linkIDBytes:]
	c.expires = time.UnixMilli(int64(binary.BigEndian.Uint64(rest))).UTC()
	c.maxBytes = int64(binary.BigEndian.Uint64(rest[8:]))
	n := int(rest[16])
	if rest = rest[17:]; len(rest) < n {
		return grant{}, false
	}
	c.sandbox, c.path = string(rest[:n]), string(rest[n:])
	return c, true
}
