package web

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeepAlive(t *testing.T) {
	for _, test := range []struct {
		name, kind string
		every      time.Duration
		want       string
	}{
		// An event after 12 s, another 4 s later, the end after 6 s more.
		{"events", "text/event-stream", 5 * time.Second, ":\n\n:\n\ndata: a\n\ndata: b\n\n:\n\n"},
		{"json", "application/json", 5 * time.Second, "data: a\n\ndata: b\n\n"},
		{"off", "text/event-stream", 0, "data: a\n\ndata: b\n\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := KeepAlive(test.every)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", test.kind)
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
				h.ServeHTTP(w, httptest.NewRequest("POST", "/mcp", nil))
				time.Sleep(time.Minute) // nothing may follow the end
				if got := w.Body.String(); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
}
