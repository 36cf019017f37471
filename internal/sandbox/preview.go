package sandbox

import (
	"context"
	"slices"
	"time"
)

// Previews are for a model to look at, so they are few and small: clients cap
// what a result may hold.
const (
	maxPreviews     = 4
	maxPreviewEdge  = 1024      // pixels
	maxPreviewBytes = 512 << 10 // of one
	allPreviewBytes = 640 << 10 // of all together
	previewTime     = 10 * time.Second
)

// pictureTypes are those the agent can decode.
var pictureTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// previews adds small versions of the first pictures. They are decoded inside
// the sandbox. One that cannot be had is no loss: the file itself is there.
func (k *collector) previews(ctx context.Context) {
	paths := map[string]string{}
	for _, pic := range k.pics {
		paths[pic.name] = pic.path
	}
	left := int64(allPreviewBytes)
	tried := 0
	for _, f := range k.res.OutputFiles {
		from := paths[f.Name]
		if from == "" || !slices.Contains(pictureTypes, f.MIME) {
			continue
		}
		if tried++; tried > maxPreviews || left <= 0 || ctx.Err() != nil {
			return
		}
		img, ok := k.preview(ctx, f.Name, from, min(maxPreviewBytes, left))
		if ok {
			left -= int64(len(img.Data))
			k.res.Images = append(k.res.Images, img)
		}
	}
}

func (k *collector) preview(ctx context.Context, name, from string, max int64) (Image, bool) {
	ctx, cancel := context.WithTimeout(ctx, previewTime)
	defer cancel()
	mime, data, err := k.c.Preview(ctx, from, maxPreviewEdge, max)
	if err == nil && (!slices.Contains(pictureTypes, mime) || int64(len(data)) > max) {
		k.m.o.Log.Warn("a preview is not what was asked for", "sandbox", k.b.id, "mime", clip(mime), "bytes", len(data))
		return Image{}, false
	}
	if err != nil {
		k.m.o.Log.Info("no preview", "sandbox", k.b.id, "err", err)
		return Image{}, false
	}
	return Image{Name: name, MIME: mime, Data: data}, true
}
