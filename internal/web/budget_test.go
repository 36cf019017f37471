package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxBody: 10 << 20})
		var inside, most atomic.Int64
		hold := 5 * time.Second
		h := s.Budget(12 << 20)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := inside.Add(1)
			most.Store(max(most.Load(), n))
			time.Sleep(hold)
			inside.Add(-1)
		}))
		send := func(length int64) <-chan int {
			r := httptest.NewRequest("POST", "/mcp", strings.NewReader("x"))
			r.ContentLength = length
			status := make(chan int, 1)
			go func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "20" {
					t.Errorf("no word of when to try again: %v", w.Header())
				}
				status <- w.Code
			}()
			synctest.Wait()
			return status
		}
		// Two of 6 MiB fit, a third has to wait and gets its turn; an unknown
		// size counts as the largest; small ones are never kept waiting.
		var all []<-chan int
		for _, length := range []int64{6 << 20, 6 << 20, 6 << 20, -1, 0, 1 << 19} {
			all = append(all, send(length))
		}
		if got := inside.Load(); got != 4 {
			t.Errorf("%d inside, want two large and two small", got)
		}
		for i, status := range all {
			if got := <-status; got != http.StatusOK {
				t.Errorf("request %d: %d", i, got)
			}
		}
		if most.Load() > 4 {
			t.Errorf("%d at a time", most.Load())
		}
		// One that would wait too long hears of it.
		hold = time.Minute
		first, second := send(10<<20), send(10<<20)
		if got := <-second; got != http.StatusServiceUnavailable {
			t.Errorf("second: %d, want 503", got)
		}
		if got := <-first; got != http.StatusOK {
			t.Errorf("first: %d", got)
		}
	})
}
