package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

const (
	// listBytes bounds the entries of output files in a result, as JSON and
	// without their text: some fifty of them. A model reads each about three
	// times, in the text, the structured content and as a link, and clients
	// cut answers off at a hundred thousand characters or so.
	listBytes = 16 << 10
	// indexName is the file that lists all if a result does not.
	indexName = "output_files.json"
)

// entryBytes is the size of a file's entry, without its text.
func entryBytes(f File) int {
	f.Text = nil
	data, err := json.Marshal(f)
	if err != nil {
		return listBytes // not of a File
	}
	return len(data) + len(",")
}

func sortFiles(files []File) {
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
}

// shorten replaces a list of files that is too long by its most important
// part and a file with all of it.
func (k *collector) shorten(ctx context.Context) {
	all := k.res.OutputFiles
	total := 0
	for _, f := range all {
		total += entryBytes(f)
	}
	if total <= listBytes {
		return
	}
	var kept []File
	room := listBytes
	take := func(f File) {
		kept = append(kept, f)
		room -= entryBytes(f)
	}
	where := "the list of all could not be kept"
	if index, err := k.index(ctx, all); err != nil {
		k.m.o.Log.Error("storing a list of output files failed", "sandbox", k.b.id, "err", err)
	} else {
		where = "all are listed in " + Printable(index.Name)
		take(index)
	}
	for _, img := range k.res.Images {
		k.first[img.Name] = true
	}
	// What is given as text has no link, so it cannot be left to the index.
	ranks := []func(File) bool{
		func(f File) bool { return f.Text != nil },
		func(f File) bool { return f.Text == nil && k.first[f.Name] },
		func(f File) bool { return f.Text == nil && !k.first[f.Name] },
	}
	left := 0
	for _, of := range ranks {
		for _, f := range all {
			switch {
			case !of(f):
			case f.Text != nil || entryBytes(f) <= room:
				take(f)
			default:
				left++
			}
		}
	}
	sortFiles(kept)
	k.res.OutputFiles = kept
	k.res.Notes = append(k.res.Notes, fmt.Sprintf("%d of %d output files are not listed here; %s", left, len(all), where))
}

// index keeps a list of all output files as a file.
func (k *collector) index(ctx context.Context, all []File) (File, error) {
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return File{}, err
	}
	return k.store(ctx, k.unique(indexName), int64(len(data)), bytes.NewReader(data))
}
