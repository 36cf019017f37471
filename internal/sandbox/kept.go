package sandbox

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"time"

	"belljar/internal/agent"
	"belljar/internal/lang"
)

// A keeper holds what commands have made of their runtimes' files at a first
// start, compiled code most often: made anew in every sandbox, it would take a
// tenth of the time of a short script. It is taken from sandboxes of the pool
// only, whose script is not known yet, and given to others of the same image.
type keeper struct {
	mu sync.Mutex
	by map[string]keptFiles // by runtime
}

type keptFiles struct {
	digest string // of the image
	files  []agent.NewFile
}

// Bounds on what is kept of a runtime.
const (
	maxKeptFiles = 32
	maxKeptBytes = 256 << 10 // of each
)

// keptTime is when the files of runtimes were changed last, in every sandbox:
// compilers compare that with what they have noted.
var keptTime = time.Unix(1e9, 0)

// get returns what is kept of a runtime and an image.
func (k *keeper) get(r lang.Runtime, digest string) []agent.NewFile {
	k.mu.Lock()
	defer k.mu.Unlock()
	if of := k.by[r.Name]; of.digest == digest {
		return of.files
	}
	return nil
}

func (k *keeper) put(r lang.Runtime, digest string, files []agent.NewFile) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by[r.Name] = keptFiles{digest, files}
}

// keep takes from a sandbox whose command waits what is not kept yet. Whatever
// goes wrong, later sandboxes only start a little later.
func (m *Manager) keep(ctx context.Context, c *agent.Client, r lang.Runtime, digest string, made agent.Listing) {
	if made.Err != nil || len(made.Files) > maxKeptFiles || made.More > 0 {
		return
	}
	have := m.kept.get(r, digest)
	files := slices.Clone(have)
	for _, f := range made.Files {
		name := path.Join(keepDir(r), string(f.Path))
		if f.Size > maxKeptBytes || slices.ContainsFunc(have, func(h agent.NewFile) bool { return h.Path == name }) {
			continue
		}
		data, err := readKept(ctx, c, name)
		if err != nil {
			m.o.Log.Debug("a file of a runtime could not be kept", "file", Clip(Printable(name)), "err", err)
			return
		}
		files = append(files, agent.NewFile{Path: name, Mode: 0o644, Data: data, InPlace: true, ModTime: keptTime})
	}
	if len(files) > len(have) {
		m.kept.put(r, digest, files)
	}
}

func readKept(ctx context.Context, c *agent.Client, name string) ([]byte, error) {
	body, info, err := c.ReadFile(ctx, name)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if info.Size > maxKeptBytes { // grown since it was listed
		return nil, fmt.Errorf("it holds %d bytes", info.Size)
	}
	return io.ReadAll(body)
}

func keepDir(r lang.Runtime) string { return path.Join(r.Dir(), r.Keep) }

// filesOf are the files of runtimes in a sandbox of an image, in their places.
func (m *Manager) filesOf(digest string, runtimes ...lang.Runtime) []agent.NewFile {
	var files []agent.NewFile
	for _, r := range runtimes {
		for _, f := range r.Files {
			files = append(files, agent.NewFile{Path: path.Join(r.Dir(), f.Name), Mode: 0o755, Data: f.Data, InPlace: true, ModTime: keptTime})
		}
		files = append(files, m.kept.get(r, digest)...)
	}
	return files
}
