package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"belljar/internal/job"
	"belljar/internal/sandbox"
)

// endless is a runner whose runs end with their context alone.
type endless struct {
	Backend
	begun chan struct{}
}

func (e endless) Run(ctx context.Context, _ sandbox.Request, _ job.Wait) (job.Reply, error) {
	close(e.begun)
	<-ctx.Done()
	return job.Reply{}, ctx.Err()
}

// noImages is for tests that ask for none.
type noImages struct{ Images }

// A server that is to end does so, whatever the calls under way do.
func TestServeEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	runner := endless{begun: make(chan struct{})}
	s := &Server{
		Info: func() Info { return Info{} }, Backend: runner, Images: noImages{},
		Artifacts: http.NotFoundHandler(), ArtifactPrefix: "/files/",
		Grace: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()

	client, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() {
		_, err := client.Run(t.Context(), sandbox.Request{}, job.Wait{})
		ran <- err
	}()
	<-runner.begun
	// One that never sends the body it has announced.
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")); err != nil {
		t.Fatal(err)
	}

	stop()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the server goes on")
	}
	if err := <-ran; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call's error: %v", err)
	}
}
