package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"belljar/internal/agent"
	"belljar/internal/artifact"
	"belljar/internal/engine"
	"belljar/internal/lang"
)

// hostileEngine has sandboxes in name only: the agent of each is a handler
// that answers as it likes. All of it is in memory, for tests in a bubble.
type hostileEngine struct {
	engine.Engine // none; what is not below is not called
	agent         http.HandlerFunc
	answers       sync.WaitGroup // that are under way
	stopped       bool
	removed       bool
}

func (h *hostileEngine) Create(context.Context, engine.Spec) error { return nil }
func (h *hostileEngine) Start(context.Context, string) error       { return nil }
func (h *hostileEngine) Claim(context.Context, string, map[string]string, time.Time) error {
	return nil
}
func (h *hostileEngine) Stop(context.Context, string) error   { h.stopped = true; return nil }
func (h *hostileEngine) Remove(context.Context, string) error { h.removed = true; return nil }
func (h *hostileEngine) Inspect(context.Context, string) (engine.Receipt, error) {
	return engine.Receipt{}, nil
}

func (h *hostileEngine) Connect(context.Context, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	if h.agent == nil {
		return ours, nil // nobody reads at the other end
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.answers.Add(1)
		defer h.answers.Done()
		h.agent(w, r)
	})}
	go server.Serve(&oneListener{conn: theirs})
	return ours, nil
}

// oneListener accepts one connection, and then is closed.
type oneListener struct{ conn net.Conn }

func (l *oneListener) Accept() (net.Conn, error) {
	c := l.conn
	if l.conn = nil; c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return &net.UnixAddr{} }

// againstHostile runs a script of 30 s against an agent, on a clock of its
// own, and returns how long it took.
func againstHostile(t *testing.T, agent http.HandlerFunc, check func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration)) {
	table, err := lang.Load()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := &hostileEngine{agent: agent}
		m, err := New(Options{Engine: h, Store: nowhere{}, Table: table, ServerID: "s", Image: "mini", Limits: testLimits})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		r := bash("true")
		r.Timeout = 30 * time.Second
		res, err := m.Run(t.Context(), r)
		took := time.Since(begun)
		if err := m.Close(t.Context()); err != nil || !h.removed {
			t.Errorf("removed: %v, %v", h.removed, err)
		}
		check(t, h, res, err, took)
		synctest.Wait()  // until none begins any more
		h.answers.Wait() // a bubble must be left empty
	})
}

// nowhere is a store that keeps nothing, and takes no time.
type nowhere struct{}

func (nowhere) Stage(ctx context.Context, f artifact.File, r io.Reader) (artifact.Artifact, error) {
	n, err := io.Copy(io.Discard, r)
	return artifact.Artifact{File: f.Path, Bytes: n, MIME: "text/plain"}, errors.Join(err, ctx.Err())
}

func (nowhere) URL(a artifact.Artifact) string { return "http://host/" + a.File }

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func TestAgentThatNeverAnswers(t *testing.T) {
	againstHostile(t, nil, func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration) {
		if err == nil || took > setupTime {
			t.Errorf("after %v: %+v, %v", took, res, err)
		}
	})
}

// Fault 4: the agent says for ever that the script runs.
func TestAgentThatNeverEnds(t *testing.T) {
	agent := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Second):
			}
			answer(w, agent.JobStatus{ID: jobID, State: agent.JobRunning})
			return
		}
		answer(w, struct{}{})
	}
	againstHostile(t, agent, func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration) {
		if err != nil {
			t.Fatal(err)
		}
		if !res.TimedOut || res.Success || res.ReturnCode != 124 || !strings.Contains(res.Error, "did not answer within 10 s of its time limit of 30 s") {
			t.Errorf("result: %+v", res)
		}
		if took != 30*time.Second+answerTime || !h.stopped {
			t.Errorf("took %v, stopped %v", took, h.stopped)
		}
	})
}

// The job ends as it should, and then every file trickles.
func TestAgentThatTrickles(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != "GET":
			answer(w, struct{}{})
		case strings.Contains(r.URL.Path, "/jobs/"):
			answer(w, agent.JobStatus{ID: jobID, State: agent.JobExited})
		default:
			for r.Context().Err() == nil {
				time.Sleep(time.Second)
				w.Write([]byte(" "))
				w.(http.Flusher).Flush()
			}
		}
	}
	againstHostile(t, handler, func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration) {
		if err != nil {
			t.Fatal(err)
		}
		if !res.Success || took > collectTime+time.Second {
			t.Errorf("after %v: %+v", took, res)
		}
		wantNote(t, res, "output files are lost")
	})
}

// Of many files the last are never sent: those that were can be had.
func TestAgentThatStopsAnswering(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != "GET":
			answer(w, struct{}{})
		case strings.Contains(r.URL.Path, "/jobs/"):
			answer(w, agent.JobStatus{ID: jobID, State: agent.JobExited})
		case strings.HasSuffix(r.URL.Path, "/list"):
			for i := range 400 {
				answer(w, map[string]any{"file": agent.FileInfo{Path: fmt.Appendf(nil, "%03d", i), Size: 1}})
			}
			answer(w, map[string]any{"end": struct{}{}})
			answer(w, map[string]any{"end": struct{}{}})
		case r.FormValue("path") >= outputDir+"/350":
			<-r.Context().Done()
		default:
			w.Header().Set("Belljar-File", `{"size":1}`)
			w.Header().Set("Content-Length", "1")
			w.Write([]byte{0})
		}
	}
	againstHostile(t, handler, func(t *testing.T, h *hostileEngine, res *Result, err error, took time.Duration) {
		if err != nil {
			t.Fatal(err)
		}
		if took > collectTime+time.Second || !slices.Contains(names(res), indexName) {
			t.Errorf("after %v: %q", took, names(res))
		}
		wantNote(t, res, "fetching the output took longer than 60 s", ": 350, ", "and 45 more")
		wantNote(t, res, "of 350 output files are not listed here; all are listed in output_files.json")
	})
}
