package workspace

import (
	"context"
	"fmt"
	"strings"
	"time"

	"belljar/internal/agent"
)

const (
	// sweepEvery is the time between two looks for old files in a workspace
	// that runs. One that is stopped is looked at when it is started.
	sweepEvery = time.Hour
	// sweepTime bounds one look.
	sweepTime = 5 * time.Minute
	// maxNotes bounds the notes that wait, and notedNames the names in each.
	maxNotes   = 10
	notedNames = 10
)

// expireFiles deletes old files of the workspaces that run.
func (m *Manager) expireFiles() {
	for _, b := range m.all() {
		b.expireFiles()
	}
}

// expireFiles deletes what is old in /sandbox, if that was not done of late.
// What was deleted is logged, and noted for whoever works there next.
func (b *box) expireFiles() {
	now := b.m.o.Now()
	b.mu.Lock()
	l := b.link
	due := b.state == Running && now.Sub(b.swept) >= sweepEvery
	if due {
		b.swept = now
	}
	b.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(b.m.base, sweepTime)
	defer cancel()
	gone, err := l.Expire(ctx, agent.Workdir, b.m.o.FileTTL)
	if err != nil {
		b.m.o.Log.Warn("old files of a workspace were not deleted", "workspace", b.id, "err", err)
		return
	}
	total := len(gone.Names) + gone.More
	if total == 0 {
		return
	}
	b.m.o.Log.Info("deleted old files of a workspace", "workspace", b.id, "names", gone.Names, "more", gone.More)
	shown := gone.Names[:min(len(gone.Names), notedNames)]
	note := "deleted from /sandbox, since nothing in them has changed for " + days(b.m.o.FileTTL) + ": " + strings.Join(shown, ", ")
	if more := total - len(shown); more > 0 {
		note += fmt.Sprintf(" and %d more", more)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.notes) < maxNotes {
		b.notes = append(b.notes, note)
	}
}

// days prints a time as people set it.
func days(d time.Duration) string {
	if d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	return d.String()
}

// Notes are what the workspace's user should hear. Each is given once.
func (l *Lease) Notes() []string {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	notes := l.b.notes
	l.b.notes = nil
	return notes
}
