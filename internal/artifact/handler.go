package artifact

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Prefix is where Handler is to be mounted.
const Prefix = "/sandbox-out/"

// A download may take downloadGrace and the time that its bytes need at
// slowestDownload, so that a reader who stands still does not hold a
// connection for ever.
const (
	downloadGrace   = 2 * time.Minute
	slowestDownload = 16 << 10 // bytes per second
)

// Handler serves the files below Prefix. Whoever has the URL may read; there
// is no listing, and every other path gets one and the same answer, so that
// nothing can be learned by asking.
func (s *Store) Handler() http.Handler {
	return http.HandlerFunc(s.serve)
}

func (s *Store) serve(w http.ResponseWriter, r *http.Request) {
	setCommon(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		plain(w, http.StatusMethodNotAllowed, "method not allowed")
		return
	}
	token, name, ok := splitPath(r.URL, Prefix)
	ok = ok && validToken(token)
	if !ok {
		plain(w, http.StatusNotFound, "not found")
		return
	}
	a, err := s.index.Artifact(r.Context(), token)
	now := s.now()
	switch {
	case errors.Is(err, ErrNotFound):
		plain(w, http.StatusNotFound, "not found")
		return
	case err != nil:
		s.log.Error("looking up an artifact", "err", err)
		plain(w, http.StatusInternalServerError, "internal error")
		return
	case subtle.ConstantTimeCompare([]byte(name), []byte(a.File)) != 1, !now.Before(a.Expires):
		plain(w, http.StatusNotFound, "not found")
		return
	}
	file, err := s.open(a)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // it may be deleted at this moment
			s.log.Error("opening an artifact", "path", a.Path, "run", a.Run, "err", diskError(err))
		}
		plain(w, http.StatusNotFound, "not found")
		return
	}
	defer file.Close()

	setDownload(w.Header(), a, now)
	// A recorder or a tunnel may know no deadlines; that is no reason to fail.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTime(a.Bytes)))
	http.ServeContent(w, r, "", a.Created, file)
}

// splitPath takes a URL's path apart as it was sent, so that each file has one
// address: an escaped slash is no slash, and a token is never escaped.
func splitPath(u *url.URL, prefix string) (token, name string, ok bool) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), prefix)
	if !ok {
		return "", "", false
	}
	token, escaped, ok := strings.Cut(rest, "/")
	if !ok || token == "" || escaped == "" || strings.Contains(escaped, "/") {
		return "", "", false
	}
	name, err := url.PathUnescape(escaped)
	return token, name, err == nil
}

// setCommon sets what every answer carries, a refusal too.
func setCommon(h http.Header) {
	h.Set("X-Robots-Tag", "noindex")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	// Pictures are embedded in chats.
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set("Cache-Control", "no-store")
}

func setDownload(h http.Header, a Artifact, now time.Time) {
	h.Set("Etag", `"`+a.SHA256+`"`)
	h.Set("Cache-Control", fmt.Sprintf("private, max-age=%d", int64(a.Expires.Sub(now)/time.Second)))
	setContent(h, a.MIME, a.File)
}

// setContent says what a file is, and what a browser may do with it.
func setContent(h http.Header, mime, name string) {
	if mime == "text/plain" {
		h.Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		h.Set("Content-Type", mime)
	}
	if inline(mime) {
		h.Set("Content-Disposition", disposition("inline", name))
	} else {
		h.Set("Content-Disposition", disposition("attachment", name))
	}
}

// disposition writes a header by RFC 6266: a name in ASCII for everyone and,
// where that loses something, the true one for those who know RFC 8187.
func disposition(kind, name string) string {
	ascii := strings.Map(func(r rune) rune {
		// Some clients decode a per cent sign here, so it is kept out too.
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
			return '_'
		}
		return r
	}, name)
	value := kind + `; filename="` + ascii + `"`
	if ascii != name {
		value += "; filename*=UTF-8''" + extValue(name)
	}
	return value
}

// extValue escapes all but the attr-char of RFC 8187.
func extValue(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// downloadTime is how long the slowest acceptable client takes for n bytes.
func downloadTime(n int64) time.Duration {
	seconds := min(n/slowestDownload, math.MaxInt32)
	return downloadGrace + time.Duration(seconds)*time.Second
}

// plain answers with a line of text.
func plain(w http.ResponseWriter, status int, text string) {
	text += "\n"
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that has gone needs no answer
}
