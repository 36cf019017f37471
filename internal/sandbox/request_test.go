package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/engine"

	"github.com/google/go-cmp/cmp"
)

func TestCleanName(t *testing.T) {
	for name, want := range map[string]string{
		"data.csv":         "data.csv",
		"a/b/c.csv":        "a/b/c.csv",
		"./a//b":           "a/b",
		"a/../b":           "b",
		".hidden":          ".hidden",
		"...":              "...",
		"..a/b":            "..a/b",
		"with space é.txt": "with space é.txt",
		`back\slash`:       `back\slash`,
	} {
		got, err := cleanName(name)
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", name, got, err, want)
		}
	}
	for name, why := range map[string]string{
		"":                        "empty",
		"/etc/passwd":             "absolute",
		"..":                      "leads out",
		"../x":                    "leads out",
		"a/../../x":               "leads out",
		".":                       "directory",
		"a/..":                    "directory",
		"a/":                      "directory",
		"a\x00b":                  "control",
		"a\nb":                    "control",
		"a\xffb":                  "control",
		strings.Repeat("x", 256):  "255",
		strings.Repeat("x/", 600): "1024",
	} {
		got, err := cleanName(name)
		var refused *RequestError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %q, %v; want an error with %q", name, got, err, why)
		}
	}
}

// Types that also travel over the local socket come back as they were.
func TestJSONRoundTrip(t *testing.T) {
	text := ""
	limits := Limits{Receipt: engine.Receipt{Memory: engine.Limit{Value: 1 << 31, Enforced: true, Note: "n"}, Network: "none"},
		TimeoutSeconds: 1.5, OutputBytes: 1, LogBytes: 2, Files: 3, FileBytes: 4, FilesBytes: 5}
	for _, v := range []any{
		&Request{Subject: access.Owner, Runtime: "python", Script: "print('é\x00')", Stdin: "in", Timeout: 1500 * time.Millisecond,
			Inputs: []Input{{Name: "a/b", Data: []byte{0, 255, 10}}, {Name: "c", Data: []byte("x")}}},
		&Result{Success: true, ReturnCode: 3, TimedOut: true, Stdout: "o\x00", Stderr: "e", Notes: []string{"n"}, DurationMS: 7, Limits: limits, Error: "why",
			OutputFiles: []File{{Name: "a", Bytes: 0, SHA256: "s", MIME: "m", Text: &text}, {Name: "b", URL: "u", ExpiresIn: 9}},
			Images:      []Image{{Name: "b", MIME: "image/png", Data: []byte{0x89, 0, 0xff}}}},
		&Result{OutputFiles: []File{}},
		&RuntimeInfo{Name: "r", Title: "R", Available: true, Version: "4", Packages: []string{"p 1"}, Limits: &limits, DefaultTimeout: 60, MaxTimeout: 300},
		&RequestError{Message: "m"},
	} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		again := newOf(v)
		if err := json.Unmarshal(data, again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v, again); diff != "" {
			t.Errorf("%T does not survive JSON (-before +after):\n%s", v, diff)
		}
	}
}

func newOf(v any) any {
	switch v.(type) {
	case *Request:
		return new(Request)
	case *Result:
		return new(Result)
	case *RuntimeInfo:
		return new(RuntimeInfo)
	case *RequestError:
		return new(RequestError)
	}
	panic(fmt.Sprintf("unknown type %T", v))
}
