package artifact

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Anybody who has a link can have its workspace started. So that nobody can
// keep a host busy with that, there are this many starts: at once, and then
// one each interval.
const (
	startsBurst    = 20
	startsEvery    = 3 * time.Second
	startsBurstOne = 4 // of one workspace
	startsEveryOne = 30 * time.Second

	// openTime bounds how long a request waits for its workspace.
	openTime = time.Minute
	// busyRetry is what a client is told to wait when too many others are
	// being served.
	busyRetry = 10 * time.Second
)

// refusal is an answer that is not what was asked for.
type refusal struct {
	status int
	text   string
	retry  time.Duration
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) answer(w http.ResponseWriter) {
	if r.retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((r.retry+time.Second-1)/time.Second), 10))
	}
	plain(w, r.status, r.text)
}

// The answers to a link that was good once differ from the one to what never
// was: only who has the link gets them.
var (
	errNotFound = &refusal{status: http.StatusNotFound, text: "not found"}
	errInternal = &refusal{status: http.StatusInternalServerError, text: "internal error"}
	errExpired  = &refusal{status: http.StatusGone, text: "this link has expired"}
	errGone     = &refusal{status: http.StatusGone, text: "the file that this link led to is no longer there"}
	errBusy     = &refusal{status: http.StatusServiceUnavailable, text: "too many transfers at this time; try again in a few seconds", retry: busyRetry}
	errAsleep   = &refusal{status: http.StatusServiceUnavailable, text: "the sandbox cannot be reached at this time; try again in a minute", retry: time.Minute}
	errBroken   = &refusal{status: http.StatusBadGateway, text: "the sandbox could not read the file"}
)

// granted returns what the link of a request grants.
func (l *Links) granted(r *http.Request, p purpose, prefix string) (grant, string, error) {
	token, name, ok := splitPath(r.URL, prefix)
	if !ok {
		return grant{}, "", errNotFound
	}
	g, ok := l.open(p, token)
	if !ok {
		return grant{}, "", errNotFound
	}
	if !l.now().Before(g.expires) {
		return grant{}, "", errExpired
	}
	ended, err := l.store.LinkEnded(r.Context(), g.key())
	switch {
	case err != nil:
		l.log.Error("looking up a link", "link", g.key(), "err", err)
		return grant{}, "", errInternal
	case ended && p == upload:
		return grant{}, "", errUsed
	case ended:
		return grant{}, "", &refusal{status: http.StatusGone, text: "this link was revoked"}
	}
	return g, name, nil
}

// sameName compares names in constant time, as all of a link.
func sameName(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// enter opens the workspace of a link for one transfer. Leave is to be called
// at its end.
func (l *Links) enter(ctx context.Context, g grant) (ws Workspace, leave func(), err error) {
	if !l.transfers.begin(g.sandbox) {
		return nil, nil, errBusy
	}
	defer func() {
		if err != nil {
			l.transfers.end(g.sandbox)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if !l.workspaces.Running(g.sandbox) {
		// One at a time, so that those who come meanwhile find it running and
		// use up no start.
		turn, err := l.starts.turn(ctx, g.sandbox)
		if err != nil {
			return nil, nil, errAsleep
		}
		defer turn()
		if !l.workspaces.Running(g.sandbox) {
			if wait := l.starts.take(g.sandbox, time.Now()); wait > 0 {
				return nil, nil, &refusal{http.StatusServiceUnavailable, "the sandbox was started too often; try again later", wait}
			}
		}
	}
	ws, err = l.workspaces.Open(ctx, g.sandbox)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil, errGone
	case err != nil:
		l.log.Error("opening a workspace for a link", "sandbox", g.sandbox, "err", err)
		return nil, nil, errAsleep
	}
	return ws, func() { ws.Close(); l.transfers.end(g.sandbox) }, nil
}

// transfers counts what is being served.
type transfers struct {
	max int

	mu  sync.Mutex
	all int
	of  map[string]int // by sandbox
}

func (t *transfers) begin(sandbox string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= t.max || t.of[sandbox] >= (t.max+1)/2 {
		return false
	}
	if t.of == nil {
		t.of = map[string]int{}
	}
	t.all++
	t.of[sandbox]++
	return true
}

func (t *transfers) end(sandbox string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.of[sandbox]--; t.of[sandbox] == 0 {
		delete(t.of, sandbox)
	}
}

// starts bounds how often links start workspaces.
type starts struct {
	mu  sync.Mutex
	all *rate.Limiter
	of  map[string]*starter // by sandbox, only those that a good link named
}

type starter struct {
	limit *rate.Limiter
	turn  chan struct{} // holds a token while somebody starts it
	users int
}

func (s *starts) init() {
	s.all = rate.NewLimiter(rate.Every(startsEvery), startsBurst)
	s.of = map[string]*starter{}
}

// turn waits until nobody else starts the sandbox.
func (s *starts) turn(ctx context.Context, sandbox string) (done func(), err error) {
	s.mu.Lock()
	one := s.of[sandbox]
	if one == nil {
		s.tidy()
		one = &starter{limit: rate.NewLimiter(rate.Every(startsEveryOne), startsBurstOne), turn: make(chan struct{}, 1)}
		s.of[sandbox] = one
	}
	one.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		one.users--
		s.mu.Unlock()
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("waiting for the start of a sandbox: %w", ctx.Err())
	}
}

// tidy forgets those of which nothing has to be remembered.
func (s *starts) tidy() {
	if len(s.of) < 1000 {
		return
	}
	maps.DeleteFunc(s.of, func(_ string, one *starter) bool {
		return one.users == 0 && one.limit.Tokens() >= startsBurstOne
	})
}

// take uses up a start, or says how long to wait for one.
func (s *starts) take(sandbox string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.of[sandbox].limit.ReserveN(now, 1)
	if wait := one.DelayFrom(now); wait > 0 {
		one.CancelAt(now)
		return wait
	}
	all := s.all.ReserveN(now, 1)
	wait := all.DelayFrom(now)
	if wait > 0 {
		all.CancelAt(now)
		one.CancelAt(now)
	}
	return wait
}
