package artifact

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
)

const (
	tokenBytes = 32
	tokenChars = 43
	// redactRun is the length of a run of token characters that Redact takes
	// for a token, whole or mangled.
	redactRun = 32
)

func newToken() string {
	var b [tokenBytes]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// validToken reports whether s is a token in its one spelling.
func validToken(s string) bool {
	if len(s) != tokenChars {
		return false
	}
	_, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && !strings.ContainsAny(s, "\r\n") // the decoder skips these
}

func tokenChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// Redact makes a URL path fit for a log: "…" stands in place of a token, an
// artifact's or a link's. That is what follows "sandbox-out" and the like in
// the path, well formed or not, and anything long enough to be a token
// elsewhere. It works on any text.
func Redact(path string) string {
	var b strings.Builder
	afterPrefix := false
	for i, seg := range strings.Split(path, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		switch {
		case afterPrefix && seg != "":
			b.WriteString("…")
			afterPrefix = false
		default:
			b.WriteString(redactRuns(seg))
			for _, prefix := range []string{Prefix, SharePrefix, UploadPrefix} {
				afterPrefix = afterPrefix || strings.EqualFold(seg, strings.Trim(prefix, "/"))
			}
		}
	}
	return b.String()
}

func redactRuns(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		n := 0
		for i+n < len(s) && tokenChar(s[i+n]) {
			n++
		}
		switch {
		case n >= redactRun:
			b.WriteString("…")
		case n > 0:
			b.WriteString(s[i : i+n])
		default:
			n = 1
			b.WriteByte(s[i])
		}
		i += n
	}
	return b.String()
}
