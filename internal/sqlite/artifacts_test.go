package sqlite

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"belljar/internal/artifact"
)

// stageIn names the directory in which this program, run again by TestKill,
// stages files until it is killed.
const stageIn = "BELLJAR_TEST_STAGE_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(stageIn); dir != "" {
		fmt.Fprintln(os.Stderr, stageForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func openArtifacts(ctx context.Context, dir string) (*DB, *artifact.Store, error) {
	db, err := Open(ctx, filepath.Join(dir, "belljar.db"))
	if err != nil {
		return nil, nil, err
	}
	store, err := artifact.Open(ctx, db, artifact.Options{Dir: filepath.Join(dir, "out")})
	return db, store, err
}

// stageForever prints the URL and the hash of each file once it is staged. It
// deletes every third, so that the kill meets deletions too.
func stageForever(dir string) error {
	_, store, err := openArtifacts(context.Background(), dir)
	if err != nil {
		return err
	}
	errs := make(chan error)
	for worker := range 4 {
		go func() {
			for i := 0; ; i++ {
				content := strings.Repeat(fmt.Sprintf("%d of %d\n", i, worker), 1000)
				a, err := store.Stage(context.Background(), artifact.File{Path: "f.txt", MaxBytes: 1 << 20}, strings.NewReader(content))
				if err != nil {
					errs <- err
					return
				}
				if i%3 == 2 {
					if err := store.Delete(context.Background(), a.Token); err != nil {
						errs <- err
						return
					}
					continue
				}
				fmt.Println(store.URL(a), a.SHA256)
			}
		}()
	}
	return <-errs
}

// TestKill kills a process that stages files, again and again. Whatever was
// promised before still downloads; of the rest, no trace is left.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	promised := map[string]string{} // URL to SHA256
	for round := range 5 {
		for url, sum := range stageAndKill(t, dir, 20+7*round) {
			promised[url] = sum
		}
		db, store, err := openArtifacts(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		for url, sum := range promised {
			w := httptest.NewRecorder()
			store.Handler().ServeHTTP(w, httptest.NewRequest("GET", url, nil))
			if got := fmt.Sprintf("%x", sha256.Sum256(w.Body.Bytes())); w.Code != 200 || got != sum {
				t.Errorf("round %d: a promised file answers %d, sha256 %s", round, w.Code, got)
			}
		}
		rows, err := db.Artifacts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		dirs, err := os.ReadDir(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		temporary, err := os.ReadDir(filepath.Join(dir, "out", ".staging"))
		if err != nil {
			t.Fatal(err)
		}
		tokens := len(dirs) - 1 // all but .staging
		// A process may die between its commit and its promise.
		if len(rows) < len(promised) || tokens != len(rows) || len(temporary) != 0 {
			t.Errorf("round %d: %d promised, %d rows, %d directories, %d temporary files", round, len(promised), len(rows), tokens, len(temporary))
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stageAndKill returns what a process promised until it was killed, after n
// promises at least.
func stageAndKill(t *testing.T, dir string, n int) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), stageIn+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	promised := map[string]string{}
	kill := sync.OnceFunc(func() { _ = cmd.Process.Kill() })
	defer kill()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		url, sum, ok := strings.Cut(lines.Text(), " ")
		if !ok || len(sum) != 64 {
			continue // cut short by the kill
		}
		promised[url] = sum
		if len(promised) >= n {
			kill()
		}
	}
	if err := cmd.Wait(); err == nil || len(promised) < n {
		t.Fatalf("the process ended by itself after %d files", len(promised))
	}
	return promised
}
