package mcpserver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"belljar/internal/access"
	"belljar/internal/sandbox"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeBase64(t *testing.T) {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	// Every length modulo 3, so with 0, 1 and 2 of padding.
	for n := 253; n <= 256; n++ {
		data := all[:n]
		std := base64.StdEncoding.EncodeToString(data)
		for name, text := range map[string]string{
			"standard":       std,
			"no padding":     strings.TrimRight(std, "="),
			"URL-safe":       base64.URLEncoding.EncodeToString(data),
			"raw URL-safe":   base64.RawURLEncoding.EncodeToString(data),
			"lines":          std[:76] + "\r\n" + std[76:152] + "\n" + std[152:] + "\n",
			"half a padding": strings.TrimSuffix(std, "="),
		} {
			got, err := decodeBase64(text)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %s: %v, equal %v", n, name, err, bytes.Equal(got, data))
			}
		}
	}
	for _, text := range []string{"", "\n"} {
		if got, err := decodeBase64(text); err != nil || len(got) != 0 {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"a", "YQ==YQ==", "Y=Q=", "data:text/plain;base64,YQ==", "hello, world", "é", "YQ===", "=", "===="} {
		if got, err := decodeBase64(text); err == nil && len(got) > 0 || err == nil && len(text) > 2 {
			t.Errorf("%q is taken for base64 of %q", text, got)
		}
	}
}

func FuzzDecodeBase64(f *testing.F) {
	f.Add("YQ==")
	f.Add("_-8\n")
	f.Fuzz(func(t *testing.T, text string) {
		data, err := decodeBase64(text)
		if err != nil {
			return
		}
		again, err := decodeBase64(base64.StdEncoding.EncodeToString(data))
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("%q decodes to %q, which does not survive", text, data)
		}
	})
}

func TestRunScriptRequest(t *testing.T) {
	r, _, err := runScriptRequest(json.RawMessage(`{"runtime":"python","script":"1","input_files":{"b":"Yg","a/c":"YQ=="},"timeout":2.5,"stdin":null}`))
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.Request{
		Subject: access.Owner, Runtime: "python", Script: "1", Timeout: 2500 * time.Millisecond,
		Inputs: []sandbox.Input{{Name: "a/c", Data: []byte("a")}, {Name: "b", Data: []byte("b")}},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	for _, raw := range []string{`[]`, `"x"`, `{"runtime":`, `7`} {
		if _, _, err := runScriptRequest(json.RawMessage(raw)); err == nil {
			t.Errorf("%s is taken for arguments", raw)
		}
	}
}

func TestDuration(t *testing.T) {
	for seconds, want := range map[float64]time.Duration{
		0: 0, 1: time.Second, 0.25: 250 * time.Millisecond, -1: -time.Second,
		1e-30: 1, -1e-30: -1, 1e300: 1e9 * time.Second, -1e300: -1e9 * time.Second,
	} {
		if got := duration(seconds); got != want {
			t.Errorf("duration(%g) = %v, want %v", seconds, got, want)
		}
	}
}

// Objects of a result must be allowed to grow; those of the arguments not.
func TestSchemas(t *testing.T) {
	in, err := json.Marshal(runScriptInput(testOptions(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(in), `"additionalProperties":false`) {
		t.Errorf("input schema takes unknown arguments: %s", in)
	}
	out, err := json.Marshal(schemaFor[sandbox.Result]("images"))
	if err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"additionalProperties", "null", "images"} {
		if strings.Contains(string(out), never) {
			t.Errorf("output schema has %q: %s", never, out)
		}
	}
}
