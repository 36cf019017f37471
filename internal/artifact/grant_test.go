package artifact

import (
	"strings"
	"testing"
	"time"
)

// FuzzGrant: what is sealed is opened as it was, for its purpose alone, and
// nothing else is opened.
func FuzzGrant(f *testing.F) {
	l, err := NewLinks(LinkOptions{Secret: []byte(strings.Repeat("s", secretBytes))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("ws-1", "/sandbox/a", int64(1), int64(7), "AAAA")
	f.Add("", "/", int64(-1), int64(-1), l.seal(upload, grant{path: "/x"}))
	f.Fuzz(func(t *testing.T, sandbox, path string, ms, most int64, token string) {
		if _, ok := l.open(download, token); ok {
			t.Errorf("%q is opened", token)
		}
		if len(sandbox) > 255 || len(path) > MaxLinkPath {
			return
		}
		g := grant{id: [linkIDBytes]byte{1, 2, 3}, expires: time.UnixMilli(ms).UTC(), maxBytes: most, sandbox: sandbox, path: path}
		sealed := l.seal(download, g)
		if got, ok := l.open(download, sealed); !ok || got != g {
			t.Errorf("%+v becomes %+v, %v", g, got, ok)
		}
		if _, ok := l.open(upload, sealed); ok {
			t.Error("a link for a download is one for an upload")
		}
	})
}
