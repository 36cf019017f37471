package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"belljar/internal/agent"
)

// Previews are for a model to look at, so they are few and small: clients cap
// what a result may hold.
const (
	maxPreviews     = 4
	maxPreviewTries = 12
	maxPreviewEdge  = 1024             // pixels
	maxPreviewBytes = 512 << 10        // of one
	allPreviewBytes = 640 << 10        // of all together
	previewTime     = 15 * time.Second // of one
	previewsTime    = 25 * time.Second // of all together
)

// previews adds small versions of the first pictures. They are made inside
// the sandbox. One that cannot be had is no loss, since the file itself is
// there, and nobody hears of it. Those that are not tried are named.
func (k *collector) previews(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, previewsTime)
	defer cancel()
	var untried []string
	left, tries := int64(allPreviewBytes), 0
	for _, f := range k.res.OutputFiles {
		from := k.paths[f.Name]
		kind, ok := kindOf(f.MIME)
		if from == "" || !ok || !k.can(kind) {
			continue
		}
		if len(k.res.Images) == maxPreviews || left <= 0 || tries == maxPreviewTries || ctx.Err() != nil {
			untried = append(untried, shown(f.Name))
			continue
		}
		tries++
		img, err := k.preview(ctx, kind, from, min(maxPreviewBytes, left))
		if err != nil {
			k.m.o.Log.Info("no preview", "sandbox", k.b.id, "type", f.MIME, "err", err)
			continue
		}
		img.Name = f.Name
		left -= int64(len(img.Data))
		k.res.Images = append(k.res.Images, img)
	}
	switch len(untried) {
	case 0:
	case 1:
		k.res.Notes = append(k.res.Notes, fmt.Sprintf("no preview: %s; the file itself is there", few(untried)))
	default:
		k.res.Notes = append(k.res.Notes, fmt.Sprintf("no preview: %s; the files themselves are there", few(untried)))
	}
}

// can reports whether a preview of that kind may succeed, for all that is
// known of the sandbox.
func (k *collector) can(kind pictureKind) bool {
	return kind.native || slices.ContainsFunc(kind.commands, func(c []string) bool { return !k.absent[c[0]] })
}

// preview makes a small version of a file, of at most max bytes.
func (k *collector) preview(ctx context.Context, kind pictureKind, from string, max int64) (Image, error) {
	ctx, cancel := context.WithTimeout(ctx, previewTime)
	defer cancel()
	var failed error
	if kind.native {
		img, err := k.picture(ctx, from, max)
		if err == nil || !errors.Is(err, agent.ErrNotPicture) {
			return img, err
		}
		failed = err
	}
	for _, command := range kind.commands {
		img, err := k.converted(ctx, command, from, max)
		if err == nil {
			img.Part = kind.part
			return img, nil
		}
		failed = errors.Join(failed, err)
	}
	return Image{}, failed
}

// converted makes a small version of what a converter makes of a file.
func (k *collector) converted(ctx context.Context, command []string, from string, max int64) (Image, error) {
	printed, err := k.convert(ctx, command, from)
	if err != nil {
		return Image{}, err
	}
	return k.picture(ctx, printed, max)
}

// picture has the agent make a small version of a picture that it can decode.
func (k *collector) picture(ctx context.Context, from string, max int64) (Image, error) {
	mime, data, err := k.c.Preview(ctx, from, maxPreviewEdge, max)
	return Image{MIME: mime, Data: data}, err
}
