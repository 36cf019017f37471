package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/lang"
)

// withFiles is an engine whose sandboxes have files of their image.
type withFiles struct {
	engine.Engine
	files map[string]string
}

func (e withFiles) Start(ctx context.Context, id string) error {
	if err := e.Engine.Start(ctx, id); err != nil {
		return err
	}
	conn, err := e.Engine.Connect(ctx, id)
	if err != nil {
		return err
	}
	c := agent.NewClient(conn)
	defer c.Close()
	for path, text := range e.files {
		if err := c.WriteFile(ctx, path, 0o644, strings.NewReader(text)); err != nil {
			return err
		}
	}
	return nil
}

func TestRuntimesSayWhatIsMissing(t *testing.T) {
	dir := missingDir + "/"
	b := newBench(t, withTable(t, moreRuntimes), func(o *Options) {
		o.Engine = withFiles{o.Engine, map[string]string{
			dir + "absent":       "the archive could not be fetched\nmore\n",
			dir + "bash":         "it was there all the time\n",
			dir + "sick":         "not at all\n",
			dir + "bash.loud":    "\x1b[31mno\troute\xff \n",
			dir + "bash.a/b":     "",
			dir + "bash.":        "a part without a name\n",
			dir + "bashful.loud": "another's\n",
			dir + "c++.boost":    strings.Repeat("long ", 1<<20),
		}}
	})
	b.mem.SetImages("mini")
	infos, err := b.Runtimes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]RuntimeInfo{}
	for _, r := range infos {
		got[r.Name] = r
	}
	if r := got["absent"]; r.Available || r.Reason != `the image "mini" was built without it: the archive could not be fetched` {
		t.Errorf("absent: %+v", r)
	}
	// The word of the image is no more than the reason why a command is absent.
	if r := got["bash"]; !r.Available || r.Reason != "" {
		t.Errorf("bash: %+v", r)
	}
	if r := got["sick"]; !strings.Contains(r.Reason, "exit code 5") {
		t.Errorf("sick: %+v", r)
	}
	if diff := cmp.Diff([]string{"a/b: no reason is given", "loud: [31mno route\uFFFD"}, got["bash"].Missing); diff != "" {
		t.Errorf("bash lacks (-want +got):\n%s", diff)
	}
	if m := got["c++"].Missing; len(m) != 1 || !strings.HasPrefix(m[0], "boost: long long") || len(m[0]) > reasonBytes+len("boost: ") {
		t.Errorf("c++ lacks %.500q", m)
	}
	if m := got["python"].Missing; m != nil {
		t.Errorf("python lacks %q", m)
	}
}

// Files of any size may stand there; little of each is read.
func TestMissingOfHostileAgent(t *testing.T) {
	table, err := lang.Load()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		h := &hostileEngine{}
		h.agent = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/list"):
				for i := range missingFiles {
					path, _ := json.Marshal(fmt.Appendf(nil, "bash.%02d", i))
					fmt.Fprintf(w, `{"file":{"path":%s,"size":1}}`, path)
				}
				fmt.Fprint(w, `{"end":{"more":1000000}}`)
			case strings.HasSuffix(r.URL.Path, "/file"):
				w.Header().Set("Belljar-File", `{"size":1099511627776}`)
				w.Header().Set("Content-Length", "1099511627776")
				for chunk := make([]byte, 64<<10); ; {
					n, err := w.Write(chunk)
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			case r.Method == "GET":
				id := path.Base(r.URL.Path)
				answer(w, agent.JobStatus{ID: id, State: agent.JobExited, Stdout: agent.Stream{Head: []byte("1"), Bytes: 1}})
			default:
				answer(w, struct{}{})
			}
		}
		m, err := New(Options{Engine: h, Store: &faultyStore{}, Table: table, ServerID: "s", Image: "mini", Limits: testLimits})
		if err != nil {
			t.Fatal(err)
		}
		infos, err := m.Runtimes(t.Context())
		if err != nil || !infos[0].Available || len(infos[0].Missing) != missingFiles {
			t.Errorf("%+v, %v", infos, err)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait() // until none begins any more
		h.answers.Wait()
		// What fits a stream's buffers is under way before it is turned away.
		if n := sent.Load(); n > missingFiles*(2<<20) {
			t.Errorf("%d bytes were taken", n)
		}
	})
}
