package sandbox

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"belljar/internal/agent"
)

// text is a stream as it stands in a result.
type text struct {
	String string
	// Dropped is how many bytes were cut out of the middle.
	Dropped int64
	// Exact is whether String holds the stream byte for byte.
	Exact bool
}

// Show makes text of a stream, for people and models to read: at most max bytes
// and, if some had to be dropped, a line in their place that says how many, and
// their number. Invalid UTF-8 is replaced, and no character is split.
func Show(s agent.Stream, max int) (string, int64) {
	t := show(s, max)
	return t.String, t.Dropped
}

// show makes text of a stream: at most max bytes and, if some had to be
// dropped, a line in their place that says how many. Invalid UTF-8 is
// replaced, and no character is split.
func show(s agent.Stream, max int) text {
	all, head, tail := []byte(nil), s.Head, s.Tail
	total := s.Bytes
	if kept := int64(len(head) + len(tail)); total <= kept {
		all, total = append(head[:len(head):len(head)], tail...), kept
		if str, used := convert(all, max); used == len(all) {
			return text{String: str, Exact: str == string(all)}
		}
		head, tail = all, nil
	} else {
		head, tail = TrimEnd(head), trimStart(tail)
	}
	first, used := convert(head, max/2)
	if all != nil {
		tail = all[used:]
	}
	last, usedLast := convertLast(tail, max/2)
	dropped := total - int64(used) - int64(usedLast)
	marker := fmt.Sprintf("\n[... %d bytes dropped ...]\n", dropped)
	return text{String: first + marker + last, Dropped: dropped}
}

// convert makes valid UTF-8 of as much of the start of b as yields at most
// max bytes, and says how much of b that was.
func convert(b []byte, max int) (s string, used int) {
	var out strings.Builder
	for used < len(b) {
		r, n := utf8.DecodeRune(b[used:])
		if out.Len()+utf8.RuneLen(r) > max {
			break
		}
		out.WriteRune(r) // U+FFFD for a byte that is no UTF-8
		used += n
	}
	return out.String(), used
}

// convertLast is convert for the end of b.
func convertLast(b []byte, max int) (s string, used int) {
	length := 0
	for used < len(b) {
		r, n := utf8.DecodeLastRune(b[:len(b)-used])
		if length+utf8.RuneLen(r) > max {
			break
		}
		length += utf8.RuneLen(r)
		used += n
	}
	s, _ = convert(b[len(b)-used:], max)
	return s, used
}

// TrimEnd drops a character that b holds the start of only.
func TrimEnd(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// trimStart drops a character that b holds the end of only.
func trimStart(b []byte) []byte {
	for i := 0; i < len(b) && i < utf8.UTFMax; i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}
