package test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestRunsSurviveACrash: 200 runs, 8 at a time, with the server killed in the
// middle of them. After the restart no trace of the cut-off runs is left, the
// rest of the runs succeed, and the files of every run that gave an answer,
// before the crash and after it, still download with the right hash.
func TestRunsSurviveACrash(t *testing.T) {
	s := startServer(t)
	const runs, clients = 200, 8
	var (
		jobs     = make(chan int)
		half     = make(chan struct{}) // closed when half of the runs are done
		back     = make(chan struct{}) // closed when the server is there again
		workers  sync.WaitGroup
		mu       sync.Mutex // guards what follows
		finished = map[int]file{}
		cutOff   int
	)
	attempt := func(i int) error {
		r, err := s.tryRun(t.Context(), "bash", fmt.Sprintf("printf '%%s\\0' %d | tee output/%[1]d.bin; head -c 20000 /dev/urandom >> output/%[1]d.bin", i))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if r.Stdout != fmt.Sprintf("%d\x00", i) || len(r.Files) != 1 {
			t.Errorf("run %d: %s", i, r)
			return nil
		}
		finished[i] = r.Files[0]
		if len(finished) == runs/2 {
			close(half)
		}
		return nil
	}
	for range clients {
		workers.Go(func() {
			for i := range jobs {
				if attempt(i) == nil {
					continue
				}
				// Only the crash may cost a run, and only once.
				<-back
				mu.Lock()
				cutOff++
				mu.Unlock()
				if err := attempt(i); err != nil {
					t.Errorf("run %d, again: %v", i, err)
				}
			}
		})
	}
	go func() {
		defer close(jobs)
		for i := range runs {
			jobs <- i
		}
	}()
	<-half
	s.kill(t)
	// Runs that were not answered left staged files that nobody has a link
	// to; those expire. Half-written ones must be gone.
	s.restart(t)
	close(back)
	workers.Wait()
	s.settled(t)
	if len(finished) != runs || cutOff > clients {
		t.Fatalf("%d runs of %d have finished, %d were cut off", len(finished), runs, cutOff)
	}
	t.Logf("%d runs were cut off", cutOff)
	for i, f := range finished {
		f.URL = s.base() + f.path(t) // the port is another
		if data := download(t, f); len(data) < 20000 || string(data[:len(fmt.Sprint(i))]) != fmt.Sprint(i) {
			t.Errorf("the file of run %d begins with %.10q", i, data)
		}
	}
	// No directory without a file in it, and none that no row knows.
	for _, dir := range glob(filepath.Join(s.state, "output/[^.]*")) {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%s holds %d entries, %v", dir, len(entries), err)
		}
	}
	out, errs, code := output(t, s.state, "", "gc")
	if code != 0 || out != "removed 0 expired files\n" {
		t.Errorf("gc: %d %s%s", code, out, errs)
	}
}
