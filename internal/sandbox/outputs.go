package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"belljar/internal/agent"
	"belljar/internal/lang"
)

// output is a file to give back.
type output struct {
	path  string // in the sandbox
	name  string // in the result, if nothing else has it
	size  int64
	stray bool // beside the output directory
}

// outputs is what a run left to give back.
type outputs struct {
	files   []output // those below the output directory first
	more    int64    // that were too many
	skipped int64    // that are no files
}

// ignored is how many files the working directory may hold, besides those
// wanted, until one that is wanted may be missed. The others are then counted
// as wanted.
const ignored = 64

// list lists the output files: those below the output directory, and those
// that the script left beside it, so that a script which does not know of the
// directory loses nothing. A script may have removed the directory.
func (k *collector) list(ctx context.Context) outputs {
	most := k.m.o.MaxFiles
	trees, err := k.c.ListTrees(ctx,
		agent.Tree{Dir: outputDir, Max: most},
		agent.Tree{Dir: agent.Workdir, Max: most + ignored, Flat: true})
	if err == nil && !errors.Is(trees[0].Err, agent.ErrNoFile) {
		err = trees[0].Err
	}
	if err != nil {
		k.m.o.Log.Warn("listing output files failed", "sandbox", k.b.id, "err", err)
		k.res.Notes = append(k.res.Notes, "output files are lost: the sandbox did not list them")
	}
	var found outputs
	if trees == nil {
		return found
	}
	for _, f := range trees[0].Files {
		found.files = append(found.files, output{path: outputDir + "/" + string(f.Path), name: validName(f.Path), size: f.Size})
	}
	if err := trees[1].Err; err != nil {
		k.m.o.Log.Info("listing the working directory failed", "sandbox", k.b.id, "err", err)
	}
	for _, f := range trees[1].Files {
		if wants(k.p.runtime, string(f.Path)) {
			found.files = append(found.files, output{path: agent.Workdir + "/" + string(f.Path), name: validName(f.Path), size: f.Size, stray: true})
		}
	}
	fit := min(most, len(found.files))
	found.more = trees[0].More + trees[1].More + int64(len(found.files)-fit)
	found.skipped = trees[0].Skipped
	found.files = found.files[:fit]
	return found
}

// wants reports whether a file in the working directory is the script's work,
// and not the script itself or something that its language leaves.
func wants(r lang.Runtime, name string) bool {
	if name == r.Script() || strings.HasPrefix(name, ".") {
		return false
	}
	return !slices.ContainsFunc(r.Ignore, func(pattern string) bool {
		matched, _ := path.Match(pattern, name)
		return matched
	})
}

// isCopy reports whether a file beside the output directory is one that is in
// there as well: some scripts write a file and then copy it.
func (k *collector) isCopy(ctx context.Context, f output) bool {
	i := slices.IndexFunc(k.res.OutputFiles, func(o File) bool { return o.Name == f.name })
	if i < 0 || k.res.OutputFiles[i].Bytes != f.size || k.paths[f.name] == "" {
		return false
	}
	body, _, err := k.c.ReadFile(ctx, f.path)
	if err != nil {
		return false
	}
	defer body.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(body, f.size+1))
	return err == nil && n == f.size && hex.EncodeToString(sum.Sum(nil)) == k.res.OutputFiles[i].SHA256
}

// unaskedFile is where R draws what a script plots without opening a device.
// Nobody chose that place, so there is nothing to say about it.
const unaskedFile = "Rplots.pdf"

// strayed remembers a file that was found beside the output directory, and
// what the result calls it.
func (k *collector) strayed(name, as string) {
	switch {
	case as != name:
		k.strays = append(k.strays, shown(name)+" (returned as "+shown(as)+")")
	case name != unaskedFile:
		k.strays = append(k.strays, shown(name))
	}
}

func (k *collector) noteStrays() {
	switch len(k.strays) {
	case 0:
	case 1:
		k.res.Notes = append(k.res.Notes, few(k.strays)+" was written to /sandbox; it is returned, but write to /sandbox/output")
	default:
		k.res.Notes = append(k.res.Notes, few(k.strays)+" were written to /sandbox; they are returned, but write to /sandbox/output")
	}
}
