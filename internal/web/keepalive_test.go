package web

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody takes a while to arrive.
type slowBody struct{ io.Reader }

func (b slowBody) Read(p []byte) (int, error) {
	time.Sleep(20 * time.Second)
	return b.Reader.Read(p)
}

func TestKeepAlive(t *testing.T) {
	for _, test := range []struct {
		name, accept string
		every        time.Duration
		want         string
	}{
		// Nothing while the request arrives. Then an event after 12 s, another
		// 4 s later, the end after 6 s more.
		{"events", "application/json, text/event-stream", 5 * time.Second, ":\n\n:\n\ndata: a\n\ndata: b\n\n:\n\n"},
		{"not accepted", "application/json", 5 * time.Second, "data: a\n\ndata: b\n\n"},
		{"off", "text/event-stream", 0, "data: a\n\ndata: b\n\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := KeepAlive(test.every)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", "text/event-stream")
					time.Sleep(12 * time.Second)
					io.WriteString(w, "data: a\n\n")
					time.Sleep(4 * time.Second)
					io.WriteString(w, "data: b\n\n")
					if err := http.NewResponseController(w).Flush(); err != nil {
						t.Error(err)
					}
					time.Sleep(6 * time.Second)
				}))
				w := httptest.NewRecorder()
				r := httptest.NewRequest("POST", "/mcp", slowBody{strings.NewReader("{}")})
				r.Header.Set("Accept", test.accept)
				h.ServeHTTP(w, r)
				time.Sleep(time.Minute) // nothing may follow the end
				if got := w.Body.String(); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
				if got := w.Result().Header.Get("Content-Type"); got != "text/event-stream" {
					t.Errorf("type %q", got)
				}
			})
		})
	}
}

// TestKeepAliveLeavesRefusals wants a handler's own status and headers where
// it answers without an event.
func TestKeepAliveLeavesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := KeepAlive(5 * time.Second)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute) // before the request was read
			w.Header().Set("Allow", "POST")
			w.WriteHeader(http.StatusMethodNotAllowed)
		}))
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/mcp", nil)
		r.Header.Set("Accept", "text/event-stream")
		h.ServeHTTP(w, r)
		if w.Code != http.StatusMethodNotAllowed || w.Result().Header.Get("Allow") != "POST" || w.Body.Len() != 0 {
			t.Errorf("got %d, %v, %q", w.Code, w.Result().Header, w.Body)
		}
	})
}
