package agent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// hostile returns a client of an agent that answers every request with h.
func hostile(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	ours, theirs := connPair(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: &protocols}
	go srv.Serve(&oneConn{conn: theirs, closed: make(chan struct{})})
	c := NewClient(ours)
	t.Cleanup(func() { c.Close(); srv.Close() })
	return c
}

// callAll makes a request of every kind, and checks of each answer that is
// taken what the callers of Client rely on.
func callAll(ctx context.Context, t *testing.T, c *Client) (errs map[string]error) {
	t.Helper()
	errs = map[string]error{}
	h, err := c.Health(ctx)
	errs["health"] = err
	if err == nil && (h.Version != 1 && h.Version != 0 || h.Jobs < 0) {
		t.Errorf("accepted %+v", h)
	}
	spec := JobSpec{ID: "j", Argv: []string{"x"}, Timeout: 1, Keep: 100}
	errs["start"] = c.StartJob(ctx, spec)
	for name, call := range map[string]func(context.Context, string) (JobStatus, error){"job": c.Job, "wait": c.WaitJob} {
		st, err := call(ctx, "j")
		errs[name] = err
		if err != nil {
			continue
		}
		if st.ID != "j" || st.State != JobRunning && st.State != JobExited || len(st.Error) > 3*maxText ||
			len(st.Stdout.Head) > 100 || len(st.Stdout.Tail) > 100 || st.Stdout.Bytes < int64(len(st.Stdout.Head)) {
			t.Errorf("accepted %+v", st)
		}
	}
	errs["signal"] = c.SignalJob(ctx, "j", syscall.SIGTERM)
	errs["write"] = c.WriteFile(ctx, "/f", 0o644, strings.NewReader("data"))
	r, info, err := c.ReadFile(ctx, "/f")
	if err == nil {
		var n int64
		n, err = io.Copy(io.Discard, r)
		if n > info.Size || err == nil && n != info.Size {
			t.Errorf("%d bytes of %d, %v", n, info.Size, err)
		}
		r.Close()
	}
	errs["read"] = err
	l, err := c.List(ctx, "/d", 3)
	errs["list"] = err
	if err == nil && len(l.Files) > 3 {
		t.Errorf("accepted %d files", len(l.Files))
	}
	for _, f := range l.Files {
		p := string(f.Path)
		if path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../") || p == "." || strings.Contains(p, "\x00") {
			t.Errorf("accepted the name %q", p)
		}
	}
	trees, err := c.ListTrees(ctx, Tree{Dir: "/d", Max: 3}, Tree{Dir: "/e", Max: 2, Flat: true})
	errs["lists"] = err
	if err == nil && (len(trees) != 2 || len(trees[0].Files) > 3 || len(trees[1].Files) > 2) {
		t.Errorf("accepted %+v", trees)
	}
	callContent(ctx, t, c, errs)
	mime, data, err := c.Preview(ctx, "/f", 10, 50)
	errs["preview"] = err
	if err == nil && (len(data) > 50 || mime != "image/png" && mime != "image/jpeg") {
		t.Errorf("accepted %d bytes of %q", len(data), mime)
	}
	return errs
}

// callContent is callAll for the files and directories of a workspace.
func callContent(ctx context.Context, t *testing.T, c *Client, errs map[string]error) {
	st, err := c.Stat(ctx, "/f")
	errs["stat"] = err
	if err == nil && (st.Size < 0 || st.Version == "" || len(st.Version) > 100 || strings.ContainsAny(st.Version+st.Identity, "\"\n")) {
		t.Errorf("accepted %+v", st)
	}
	r, st, err := c.ReadRange(ctx, "/f", 2, 5)
	if err == nil {
		var n int64
		n, err = io.Copy(io.Discard, r)
		if n > 5 || err == nil && n != part(st.Size, 2, 5) {
			t.Errorf("%d bytes of %+v, %v", n, st, err)
		}
		r.Close()
	}
	errs["range"] = err
	_, errs["put"] = c.PutFile(ctx, Put{Path: "/f"}, strings.NewReader("data"))
	w, err := c.Walk(ctx, Walk{Dir: "/d", Depth: 1, Max: 3})
	errs["walk"] = err
	if err == nil && len(w.Entries) > 3 {
		t.Errorf("accepted %d entries", len(w.Entries))
	}
	for _, e := range w.Entries {
		p := string(e.Path)
		if path.IsAbs(p) || path.Clean(p) != p || strings.HasPrefix(p, "..") || p == "." || strings.Contains(p, "\x00") {
			t.Errorf("accepted the name %q", p)
		}
	}
	if r, err = c.Archive(ctx, "/d", Zip); err == nil {
		var n int64
		if n, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20)); n == 1<<20 {
			err = errors.New("endless, which is for the caller to bound")
		}
		r.Close()
	}
	errs["archive"] = err
}

func TestClientRefusesNonsense(t *testing.T) {
	file := func(p string) string {
		return fmt.Sprintf(`{"file":{"path":%q,"size":1,"mode":420}}`+"\n", base64.StdEncoding.EncodeToString([]byte(p)))
	}
	stat := func(rest string) string {
		return `{"kind":"file","size":1,"mode":420,"identity":"1","version":"1",` + rest + `"mod_time":"2026-01-01T00:00:00Z"}`
	}
	entry := func(p, rest string) string {
		return fmt.Sprintf(`{"entry":{"path":%q,"kind":"file","size":1,"mode":420,%s"mod_time":"2026-01-01T00:00:00Z"}}`+"\n", base64.StdEncoding.EncodeToString([]byte(p)), rest)
	}
	const end = `{"end":{"more":0,"skipped":0}}`
	job := func(rest string) string { return `{"id":"j","state":"exited",` + rest + `"duration":1}` }
	for what, bodies := range map[string][]string{
		"list": {
			"", "{}", "null", file("a"), file("..") + end, file("../x") + end, file("a/../b") + end, file("/etc/passwd") + end,
			file("a\x00b") + end, file("") + end, file("a//b") + end, file(".") + end, file("a/") + end, file("a/./b") + end,
			file(strings.Repeat("x", maxPath+1)) + end, file("b") + file("a") + end, file("a") + file("a") + end,
			file("a") + file("b") + file("c") + file("d") + end, `{"file":{"path":"YQ==","size":-1}}` + end,
			`{"file":{"path":"YQ==","mode":2541}}` + end, `{"file":{"path":"%%"}}` + end, `{"end":{"more":-1}}`,
			`{"file":{"path":"YQ==","mod_time":"never"}}` + end, strings.Repeat("[", 1<<20),
		},
		"lists": {
			"", end + file("a"), end + file("a/b") + end, end + file("a") + file("b") + file("c") + end,
			file("a") + file("b") + file("c") + file("d") + end + end, end + `{"end":{"skipped":-1}}`,
		},
		"health": {"", "[]", `{"version":99}`, `{"version":1,"jobs":-1}`, `{"version":"1"}`},
		"job": {
			"", job(`"id":"k",`), job(`"state":"asleep",`), job(`"exit_code":256,`), job(`"exit_code":-1,`), job(`"signal":-9,`),
			job(`"stdout":{"bytes":1,"head":"QUJD"},`), job(`"stdout":{"bytes":-1},`), job(`"stderr":{"log":"relative"},`),
			job(`"stdout":{"bytes":999,"head":"` + strings.Repeat("QUJD", 40) + `"},`), `{"id":"j","state":"exited","duration":-1}`,
		},
		"stat": {
			"", "{}", stat(`"kind":"socket",`), stat(`"size":-1,`), stat(`"mode":2541,`), stat(`"version":"",`), stat(`"version":"\"",`),
			stat(`"kind":"dir",`), stat(`"real":"Zg==",`), stat(`"identity":"` + strings.Repeat("1", 101) + `",`),
		},
		"put": {"", "{}", stat(`"version":"x",`)},
		"walk": {
			"", "{}", entry("a", ""), entry("../x", "") + end, entry("/x", "") + end, entry("b", "") + entry("a", "") + end,
			entry("a", "") + entry("a", "") + end, entry("a", `"kind":"dir",`) + end, entry("a", `"kind":"",`) + end,
			entry("a", "") + entry("b", "") + entry("c", "") + entry("d", "") + end, `{"end":{"more":-1}}`, strings.Repeat("[", 1<<20),
		},
		"range":   {"no header"},
		"wait":    {`{"id":"j","state":"running"}`},
		"preview": {"", "plain text", "\x89PNG\r\n\x1a\n" + strings.Repeat("x", 50)},
		"read":    {"no header"},
	} {
		for _, body := range bodies {
			c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "image/png")
				io.WriteString(w, body)
			})
			var nonsense *ProtocolError
			if err := callAll(testContext(t), t, c)[what]; !errors.As(err, &nonsense) {
				t.Errorf("%s: %.60q: got %v, want a ProtocolError", what, body, err)
			}
			c.Close()
		}
	}
}

func TestClientReportsRefusals(t *testing.T) {
	long := strings.Repeat("long\n\x1b[31m\xff", 500)
	for code, want := range map[string]error{"no_job": ErrNoJob, "no_file": ErrNoFile, "not_picture": ErrNotPicture, "other": nil} {
		c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			json.NewEncoder(w).Encode(refusal{code, long})
		})
		for what, err := range callAll(testContext(t), t, c) {
			var refused *RemoteError
			switch {
			case want != nil && !errors.Is(err, want):
				t.Errorf("%s: got %v, want %v", what, err, want)
			case want == nil && (!errors.As(err, &refused) || len(refused.Text) > 3*maxText || strings.ContainsAny(refused.Text, "\n\x1b")):
				t.Errorf("%s: got %q", what, err)
			}
		}
	}
}

func TestClientBoundsEndlessAnswers(t *testing.T) {
	fill := []byte(strings.Repeat(`{"file":{"path":"YQ=="}}`, 1000))
	for name, start := range map[string]string{
		"string": `{"id":"`, "listing": "", "array": `{"stdout":{"head":[`, "picture": "\x89PNG\r\n\x1a\n", "spaces": " ",
	} {
		for _, status := range []int{200, 400} {
			c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "image/png")
				w.WriteHeader(status)
				io.WriteString(w, start)
				more := fill
				if name != "listing" {
					more = bytes.Repeat([]byte("1,"), 5000)
				}
				for r.Context().Err() == nil {
					if _, err := w.Write(more); err != nil {
						return
					}
				}
			})
			var errs map[string]error
			grew := memoryPeak(t, func() { errs = callAll(testContext(t), t, c) })
			for what, err := range errs {
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %s, status %d: %v", name, what, status, err)
				}
			}
			if grew > 100<<20 {
				t.Errorf("%s: memory grew by %d MiB", name, grew>>20)
			}
		}
	}
}

// frame is an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload string) string {
	n := len(payload)
	head := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}
	return string(binary.BigEndian.AppendUint32(head, stream)) + payload
}

// answerWire returns a client whose first request is answered with raw bytes,
// after which the connection ends.
func answerWire(t *testing.T, wire string) *Client {
	t.Helper()
	ours, theirs := connPair(t)
	go func() {
		defer theirs.Close()
		io.CopyN(io.Discard, theirs, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		for head := make([]byte, 9); head[3] != 1; { // until the request's headers
			if _, err := io.ReadFull(theirs, head); err != nil {
				return
			}
			size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
			io.CopyN(io.Discard, theirs, size)
		}
		io.WriteString(theirs, wire)
		theirs.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, theirs)
	}()
	c := NewClient(ours)
	t.Cleanup(func() { c.Close() })
	return c
}

const (
	settingsFrame = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	status200     = "\x88"
	length10      = "\x0f\x0d\x0210"
	fileOf10      = "\x00\x0cbelljar-file\x0b{\"size\":10}"
)

func TestClientHoldsFilesToTheirSize(t *testing.T) {
	for sent, fine := range map[int]bool{0: false, 9: false, 10: true, 11: false, 16000: false} {
		c := answerWire(t, settingsFrame+frame(1, 4, 1, status200+length10+fileOf10)+
			frame(0, 1, 1, strings.Repeat("x", sent)))
		r, info, err := c.ReadFile(testContext(t), "/f")
		if err != nil || info.Size != 10 {
			t.Fatalf("sent %d: %+v, %v", sent, info, err)
		}
		n, err := io.Copy(io.Discard, r)
		r.Close()
		if (err == nil) != fine || n > 10 {
			t.Errorf("sent %d, read %d, %v", sent, n, err)
		}
	}
}

// slow are other ends that never get on.
var slow = map[string]func(net.Conn){
	"silent":  func(c net.Conn) { io.Copy(io.Discard, c) },
	"deaf":    func(c net.Conn) {},
	"greeter": func(c net.Conn) { c.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")); io.Copy(io.Discard, c) },
	"dripping": func(c net.Conn) {
		go io.Copy(io.Discard, c)
		for _, b := range []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x40\x00\x01\x00\x00\x00\x00\x01") {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	},
}

func TestDeadlineEndsSlowAnswers(t *testing.T) {
	check := func(name string, c *Client) {
		for i := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			start := time.Now()
			for what, err := range callAll(ctx, t, c) {
				if err == nil {
					t.Errorf("%s: %s succeeded", name, what)
				}
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("%s: round %d took %v", name, i, took)
			}
			cancel()
		}
		closed := make(chan struct{})
		go func() { c.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Errorf("%s: Close hangs", name)
		}
	}
	for name, end := range slow {
		ours, theirs := net.Pipe() // without a buffer: a deaf end blocks at once
		var ended sync.WaitGroup
		ended.Go(func() { end(theirs) })
		check(name, NewClient(ours))
		theirs.Close()
		ended.Wait()
	}
	check("loris", hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(fileHeader, `{"size":10}`)
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for r.Context().Err() == nil {
			w.Write([]byte(" "))
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	}))
}

func FuzzAnswers(f *testing.F) {
	f.Add(200, `{"size":3}`, []byte(`{"version":1}`))
	f.Add(200, `{"size":3}`, []byte(`abc`))
	f.Add(200, ``, []byte(`{"file":{"path":"YQ=="}}{"file":{"path":"Li4="}}{"end":{}}`))
	f.Add(200, ``, []byte(`{"id":"j","state":"exited","stdout":{"bytes":3,"head":"QUJD"}}`))
	f.Add(200, ``, []byte(`{"id":"j","state":"running"}`))
	f.Add(404, ``, []byte(`{"code":"no_job"}`))
	f.Add(200, ``, []byte("\x89PNG\r\n\x1a\n"))
	f.Fuzz(func(t *testing.T, status int, header string, body []byte) {
		if status < 200 || status > 999 {
			status = 200
		}
		c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "image/png")
			w.Header().Set(fileHeader, header)
			w.WriteHeader(status)
			w.Write(body)
		})
		callAll(testContext(t), t, c)
		c.Close()
	})
}

func FuzzWire(f *testing.F) {
	headers := frame(1, 4, 1, status200)
	data := frame(0, 0, 1, "{}{}")
	for _, s := range []string{
		"", "HTTP/1.1 400 Bad Request\r\n\r\n",
		settingsFrame + headers + data,
		settingsFrame + headers + frame(0, 1, 1, `{"version":1}`),
		settingsFrame + frame(1, 4, 1, status200+length10) + data,
		settingsFrame + headers + strings.Repeat(data, 100),
		settingsFrame + strings.Repeat(frame(1, 4, 1, "\x08\x03100"), 100),
		settingsFrame + frame(1, 0, 1, status200) + strings.Repeat(frame(9, 0, 1, length10), 9000), // endless header
		settingsFrame + "\xff\xff\xff\x00\x00\x00\x00\x00\x01",
		settingsFrame + frame(7, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x02"),
		settingsFrame + frame(3, 0, 1, "\x00\x00\x00\x08"),
		settingsFrame + frame(8, 0, 0, "\x7f\xff\xff\xff"),
		settingsFrame + frame(5, 4, 1, "\x00\x00\x00\x02"+status200),
		settingsFrame + strings.Repeat(frame(6, 0, 0, "12345678"), 1000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		for what, err := range callAll(testContext(t), t, answerWire(t, string(wire))) {
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s took as long as it could", what)
			}
		}
	})
}
