package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// smallBody is up to which size a body counts as nothing.
	smallBody = 1 << 20
	// budgetTime is how long a request waits for its turn.
	budgetTime = 20 * time.Second
)

// Budget bounds the bodies of requests that are served at the same time, in
// bytes: decoding one takes several times its size in memory. A request that
// does not get its turn in 20 s is answered 503, with when to try again.
// Bodies of less than 1 MiB are free; one of unknown size counts as the
// largest that the server takes.
func (s *Server) Budget(total int64) Middleware {
	room := semaphore.NewWeighted(total)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			size := r.ContentLength
			if size < 0 {
				size = s.maxBody
			}
			if size = min(size, total); size < smallBody {
				next.ServeHTTP(w, r)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), budgetTime)
			defer cancel()
			if room.Acquire(ctx, size) != nil {
				w.Header().Set("Retry-After", fmt.Sprint(int(budgetTime.Seconds())))
				plain(w, http.StatusServiceUnavailable, fmt.Sprintf("the server is busy with other large requests; try again in %v, or send smaller input files", budgetTime))
				return
			}
			defer room.Release(size)
			next.ServeHTTP(w, r)
		})
	}
}
