package image

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"time"
)

// serial makes of a Progress, which may be nil, one that is called one at a
// time.
func serial(p Progress) Progress {
	if p == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		p(e)
	}
}

// meterEvery keeps a progress bar smooth without an event per read.
const meterEvery = 100 * time.Millisecond

// meter reports bytes as they go by.
type meter struct {
	progress Progress
	event    Event
	last     time.Time
}

func newMeter(p Progress, text string, total int64) *meter {
	m := &meter{progress: p, event: Event{Text: text, Total: total}, last: time.Now()}
	p(m.event)
	return m
}

func (m *meter) count(n int) {
	m.event.Done += int64(n)
	if now := time.Now(); n > 0 && now.Sub(m.last) >= meterEvery {
		m.last = now
		m.progress(m.event)
	}
}

func (m *meter) finish() { m.progress(m.event) }

// maxLine bounds a line of output in an event, in bytes.
const maxLine = 4096

// lines reports output line by line; it is safe for concurrent use. A
// carriage return ends a line too, as progress bars want it.
type lines struct {
	mu       sync.Mutex
	progress Progress
	event    Event // of each line, without its text
	part     []byte
}

func newLines(p Progress, e Event) *lines {
	e.Output = true
	return &lines{progress: p, event: e}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			l.add(p)
			break
		}
		l.add(p[:end])
		l.flush()
		p = p[end+1:]
	}
	return n, nil
}

// add appends to the current line; what is beyond the bound is dropped.
func (l *lines) add(p []byte) {
	l.part = append(l.part, p[:min(len(p), maxLine-len(l.part))]...)
}

func (l *lines) flush() {
	if len(l.part) > 0 {
		l.event.Text = strings.ToValidUTF8(string(l.part), "\uFFFD")
		l.progress(l.event)
	}
	l.part = l.part[:0]
}

// Close reports a last line that has no end.
func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	return nil
}

var _ io.WriteCloser = (*lines)(nil)

// oneLine shortens text for an event.
func oneLine(text string) string {
	line := strings.Join(strings.Fields(text), " ")
	if len(line) > 200 {
		line = strings.ToValidUTF8(line[:200], "") + "…"
	}
	return line
}
