package agent

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/gif" // formats that a preview can be made of
	"image/jpeg"
	"image/png"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	_ "golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/tiff"
	_ "golang.org/x/image/webp"
	"golang.org/x/sys/unix"
)

// Bounds on making one preview. Pictures come from scripts: whatever a
// decoder does with one, it does in a process that lives for a moment.
const (
	previewTime   = 20 * time.Second
	previewCPU    = 10        // seconds
	previewMemory = 1 << 30   // bytes, on top of what an empty process maps
	previewFile   = 256 << 20 // bytes of the picture's file
	previewPixels = 64 << 20  // width times height
	previewBytes  = 16 << 20  // of the answer
)

// How a preview helper ends, besides 0.
const (
	exitNotPicture = 3
	exitTooLarge   = 4 // no size of it fits into the bytes allowed
)

func (s *Server) servePreview(w http.ResponseWriter, r *http.Request) error {
	edge, err1 := strconv.Atoi(r.FormValue("edge"))
	limit, err2 := strconv.ParseInt(r.FormValue("bytes"), 10, 64)
	if err1 != nil || err2 != nil || edge < 1 || limit < 1 || limit > previewBytes {
		return fmt.Errorf("edge %q, bytes %q", r.FormValue("edge"), r.FormValue("bytes"))
	}
	f, st, err := s.openRegular(r.FormValue("path"))
	if err != nil {
		return err
	}
	defer f.Close()
	if st.Size() > previewFile {
		return fmt.Errorf("%d bytes: %w", st.Size(), ErrNotPicture)
	}
	select {
	case s.previews <- struct{}{}:
		defer func() { <-s.previews }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	data, err := s.preview(f, edge, limit)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", pictureType(data))
	_, err = w.Write(data)
	return err
}

// preview runs a helper on the picture in f.
func (s *Server) preview(f *os.File, edge int, limit int64) ([]byte, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	answer, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	argv := []string{previewName, strconv.Itoa(edge), strconv.FormatInt(limit, 10)}
	helper, err := s.children.start(argv, f, theirs, null)
	theirs.Close()
	if err != nil {
		return nil, err
	}
	timer := time.AfterFunc(previewTime, func() { s.children.kill(helper) })
	defer timer.Stop()
	data, err := io.ReadAll(io.LimitReader(answer, limit+1))
	if err != nil || int64(len(data)) > limit {
		s.children.kill(helper)
	}
	<-helper.done
	switch {
	case err != nil:
		return nil, err
	case helper.status.ExitStatus() == exitTooLarge:
		return nil, fmt.Errorf("no preview fits into %d bytes", limit)
	case helper.status != 0 || pictureType(data) == "" || int64(len(data)) > limit:
		return nil, ErrNotPicture
	}
	return data, nil
}

// previewHelper is the helper process: it reads a picture from in and writes
// its preview to out. Args are the longest edge and the most bytes.
func previewHelper(args []string, in, out *os.File) int {
	if len(args) != 2 || limitSelf() != nil {
		return 1
	}
	edge, err1 := strconv.Atoi(args[0])
	limit, err2 := strconv.Atoi(args[1])
	if err1 != nil || err2 != nil {
		return 1
	}
	original, err := io.ReadAll(io.LimitReader(in, previewFile))
	if err != nil {
		return 1
	}
	pic, format, err := decode(original)
	if err != nil {
		return exitNotPicture
	}
	data := original
	shown := format == "png" || format == "jpeg"
	if b := pic.Bounds(); !shown || len(original) > limit || max(b.Dx(), b.Dy()) > edge {
		if data = encode(pic, edge, limit); data == nil {
			return exitTooLarge
		}
	}
	if _, err := out.Write(data); err != nil {
		return 1
	}
	return 0
}

// limitSelf bounds this process's memory and time. Memory counts from what
// is mapped already, since the runtime reserves much that it never touches.
func limitSelf() error {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		return err
	}
	size := pages*uint64(os.Getpagesize()) + previewMemory
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: size, Max: size}); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: previewCPU, Max: previewCPU})
}

// decode decodes a picture whose size is within bounds, as its header says
// before and as it is after.
func decode(data []byte) (image.Image, string, error) {
	within := func(w, h int) bool { return w > 0 && h > 0 && w <= previewPixels/h }
	c, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, "", err
	}
	if !within(c.Width, c.Height) {
		return nil, "", fmt.Errorf("%d by %d pixels", c.Width, c.Height)
	}
	if format == "tiff" && measured(c.ColorModel) {
		return nil, "", errors.New("values of an unknown range")
	}
	pic, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, "", err
	}
	if b := pic.Bounds(); !within(b.Dx(), b.Dy()) {
		return nil, "", fmt.Errorf("%d by %d pixels", b.Dx(), b.Dy())
	}
	return pic, format, nil
}

// measured reports whether a TIFF of that colour model is rather a table of
// elevations, classes or intensities than a picture. Shown as it is, it would
// be all but black; a program that stretches the range does better.
func measured(m color.Model) bool {
	return m == color.GrayModel || m == color.Gray16Model || m == color.RGBA64Model || m == color.NRGBA64Model
}

// encode returns pic, no longer than edge, in at most limit bytes: as PNG, or
// as JPEG, or smaller. Nil if nothing fits.
func encode(pic image.Image, edge, limit int) []byte {
	for ; edge >= 16; edge /= 2 {
		small := shrink(pic, edge)
		var buf bytes.Buffer
		if png.Encode(&buf, small) == nil && buf.Len() <= limit {
			return buf.Bytes()
		}
		for _, quality := range []int{85, 60} {
			buf.Reset()
			if jpeg.Encode(&buf, onWhite(small), &jpeg.Options{Quality: quality}) == nil && buf.Len() <= limit {
				return buf.Bytes()
			}
		}
	}
	return nil
}

// shrink returns pic with its longer side at most edge.
func shrink(pic image.Image, edge int) image.Image {
	b := pic.Bounds()
	long := max(b.Dx(), b.Dy())
	if long <= edge {
		return pic
	}
	size := image.Rect(0, 0, max(1, b.Dx()*edge/long), max(1, b.Dy()*edge/long))
	small := image.NewNRGBA(size)
	// A kernel as wide as the step, so that thin lines of a plot survive.
	draw.BiLinear.Scale(small, size, pic, b, draw.Src, nil)
	return small
}

// onWhite puts a picture with transparency on a white ground.
func onWhite(pic image.Image) image.Image {
	b := pic.Bounds()
	flat := image.NewRGBA(b)
	draw.Draw(flat, b, image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(flat, b, pic, b.Min, draw.Over)
	return flat
}
