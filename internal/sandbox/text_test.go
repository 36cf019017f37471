package sandbox

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"belljar/internal/agent"
)

// kept is what an agent keeps of a stream.
func kept(data string, keep int) agent.Stream {
	s := agent.Stream{Bytes: int64(len(data))}
	head := data[:min(keep, len(data))]
	rest := data[len(head):]
	s.Head = []byte(head)
	s.Tail = []byte(rest[max(0, len(rest)-keep):])
	return s
}

func TestShow(t *testing.T) {
	for _, tc := range []struct {
		name, data string
		max        int
		want       text
	}{
		{"empty", "", 10, text{String: "", Exact: true}},
		{"short", "hello", 10, text{String: "hello", Exact: true}},
		{"exactly max", "0123456789", 10, text{String: "0123456789", Exact: true}},
		{"head and tail meet in a character", "1234é6789", 10, text{String: "1234é6789", Exact: true}},
		{"odd max", "01234567890", 11, text{String: "01234567890", Exact: true}},
		{"cut", "0123456789abcdef", 10, text{String: "01234\n[... 6 bytes dropped ...]\nbcdef", Dropped: 6}},
		{"cut in characters", "ééééééééé", 10, text{String: "éé\n[... 10 bytes dropped ...]\néé", Dropped: 10}},
		{"invalid", "a\xffb", 10, text{String: "a\uFFFDb"}},
		{"invalid grows", "\xff\xff\xff\xff\xff\xff", 10, text{String: "\uFFFD\n[... 4 bytes dropped ...]\n\uFFFD", Dropped: 4}},
		{"NUL stays", "a\x00b", 10, text{String: "a\x00b", Exact: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := show(kept(tc.data, (tc.max+1)/2), tc.max); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// What a hostile agent may say, within what the client lets through.
func TestShowLies(t *testing.T) {
	for _, s := range []agent.Stream{
		{Bytes: 1 << 62},
		{Bytes: 1, Head: []byte("more than one")},
		{Bytes: 100, Tail: []byte("tail only")},
		{Bytes: 100, Head: []byte(strings.Repeat("x", 100)), Tail: []byte(strings.Repeat("y", 100))},
		{Bytes: 9, Head: []byte("\x80\x80\x80\x80"), Tail: []byte("\xf0\x9f\x98")},
	} {
		got := show(s, 10)
		if len(got.String) > 10+len("\n[... 4611686018427387904 bytes dropped ...]\n") || !utf8.ValidString(got.String) || got.Dropped < 0 {
			t.Errorf("%+v shows as %+v", s, got)
		}
	}
}

func FuzzShow(f *testing.F) {
	f.Add("héllo wörld", 7)
	f.Add("\xff\xfe\x00😀", 4)
	f.Fuzz(func(t *testing.T, data string, max int) {
		if max < 0 || max > 1<<16 {
			return
		}
		got := show(kept(data, (max+1)/2), max)
		marker := fmt.Sprintf("\n[... %d bytes dropped ...]\n", got.Dropped)
		if !utf8.ValidString(got.String) || len(got.String) > max+len(marker) {
			t.Fatalf("%d bytes of text at a maximum of %d: %q", len(got.String), max, got.String)
		}
		if got.Exact != (got.String == data) {
			t.Fatalf("exact is %v for %q of %q", got.Exact, got.String, data)
		}
		if got.Dropped == 0 {
			if !strings.Contains(got.String, marker) && strings.ToValidUTF8(data, "") != strings.ReplaceAll(strings.ToValidUTF8(got.String, ""), "\uFFFD", "") && !strings.Contains(data, "\uFFFD") {
				t.Fatalf("%q lost bytes silently: %q", data, got.String)
			}
			return
		}
		// The two ends are the stream's own.
		first, last, _ := strings.Cut(got.String, marker)
		if utf8.ValidString(data) && (!strings.HasPrefix(data, first) || !strings.HasSuffix(data, last) || len(first)+len(last)+int(got.Dropped) != len(data)) {
			t.Fatalf("%q is cut to %q", data, got.String)
		}
	})
}
