package sandbox

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode"

	"belljar/internal/agent"
)

// missingDir is where an image says what its build had to leave out: a file
// named after the runtime, or RUNTIME.PART, with the reason in its first line.
const missingDir = "/usr/share/belljar/missing"

const (
	missingFiles = 32
	missingBytes = 4 << 10 // of a file
	reasonBytes  = 300
)

// missing returns why something is missing, by the name of a runtime or
// RUNTIME.PART. It is the image's word, and not worth a failure.
func (m *Manager) missing(ctx context.Context, c *agent.Client, id string) map[string]string {
	list, err := c.List(ctx, missingDir, missingFiles)
	if err != nil {
		if !errors.Is(err, agent.ErrNoFile) {
			m.o.Log.Info("listing what an image lacks failed", "sandbox", id, "err", err)
		}
		return nil
	}
	reasons := map[string]string{}
	for _, f := range list.Files {
		reason, err := readReason(ctx, c, missingDir+"/"+string(f.Path))
		if err != nil {
			m.o.Log.Info("reading what an image lacks failed", "sandbox", id, "err", err)
			continue
		}
		reasons[string(f.Path)] = reason
	}
	return reasons
}

func readReason(ctx context.Context, c *agent.Client, path string) (string, error) {
	body, _, err := c.ReadFile(ctx, path)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, missingBytes))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = plain(line, reasonBytes); line == "" {
		line = "no reason is given"
	}
	return line, nil
}

// lacking names the parts of a runtime that its image lacks.
func lacking(runtime string, missing map[string]string) []string {
	var parts []string
	for name, reason := range missing {
		if part, ok := strings.CutPrefix(name, runtime+"."); ok && part != "" {
			parts = append(parts, plain(part, packageBytes)+": "+reason)
		}
	}
	slices.Sort(parts)
	return parts
}

// plain is text without what would move a terminal's cursor, in at most max
// bytes.
func plain(text string, max int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.TrimSpace(cutText(text, max))
}
