package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
)

// picture is a gradient, transparent on one side.
func picture(w, h int) *image.NRGBA {
	m := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		x, y := i%w, i/w
		m.SetNRGBA(x, y, color.NRGBA{uint8(x), uint8(y), 128, uint8(255 * x / w)})
	}
	return m
}

func noise(w, h int) *image.NRGBA {
	m := image.NewNRGBA(image.Rect(0, 0, w, h))
	rand.NewChaCha8([32]byte{3}).Read(m.Pix)
	return m
}

func encoded(t *testing.T, m image.Image, format string) []byte {
	t.Helper()
	var buf bytes.Buffer
	var err error
	switch format {
	case "png":
		err = png.Encode(&buf, m)
	case "jpeg":
		err = jpeg.Encode(&buf, m, nil)
	case "gif":
		err = gif.Encode(&buf, m, nil)
	case "bmp":
		err = bmp.Encode(&buf, m)
	case "tiff":
		err = tiff.Encode(&buf, m, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// webp is one pixel.
const webp = "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA"

func TestPreview(t *testing.T) {
	sb := newSandbox(t)
	onePixel, err := base64.StdEncoding.DecodeString(webp)
	if err != nil {
		t.Fatal(err)
	}
	small := encoded(t, picture(90, 100), "png")
	for name, c := range map[string]struct {
		data  []byte
		limit int64
		mime  string
		w, h  int
		same  bool
	}{
		"small png":  {small, 1 << 20, "image/png", 90, 100, true},
		"small jpeg": {encoded(t, picture(100, 90), "jpeg"), 1 << 20, "image/jpeg", 100, 90, true},
		"large png":  {encoded(t, picture(1000, 300), "png"), 1 << 20, "image/png", 100, 30, false},
		"large jpeg": {encoded(t, picture(300, 1000), "jpeg"), 1 << 20, "image/png", 30, 100, false},
		"gif":        {encoded(t, picture(200, 200), "gif"), 1 << 20, "image/png", 100, 100, false},
		"bmp":        {encoded(t, picture(20, 20), "bmp"), 1 << 20, "image/png", 20, 20, false},
		"tiff":       {encoded(t, picture(20, 20), "tiff"), 1 << 20, "image/png", 20, 20, false},
		"webp":       {onePixel, 1 << 20, "image/png", 1, 1, false},
		"thin":       {encoded(t, picture(30000, 2), "png"), 1 << 20, "image/png", 100, 1, false},
		"noise":      {encoded(t, noise(1000, 1000), "png"), 12000, "image/jpeg", 100, 100, false},
		"much noise": {encoded(t, noise(1000, 1000), "png"), 1000, "image/jpeg", 50, 50, false},
	} {
		if err := os.WriteFile(sb.file("pic"), c.data, 0o644); err != nil {
			t.Fatal(err)
		}
		mime, data, err := sb.Preview(testContext(t), "/sandbox/pic", 100, c.limit)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, _, err := image.DecodeConfig(bytes.NewReader(data))
		if err != nil || mime != c.mime || got.Width != c.w || got.Height != c.h || int64(len(data)) > c.limit {
			t.Errorf("%s: %s of %d by %d, %d bytes, %v; want %s of %d by %d", name, mime, got.Width, got.Height, len(data), err, c.mime, c.w, c.h)
		}
		if bytes.Equal(data, c.data) != c.same {
			t.Errorf("%s: unchanged is %v", name, !c.same)
		}
	}
	var refused *RemoteError
	if _, _, err := sb.Preview(testContext(t), "/sandbox/pic", 100, 50); !errors.As(err, &refused) {
		t.Errorf("50 bytes are too few: %v", err)
	}
	if _, _, err := sb.Preview(testContext(t), "/sandbox/none", 100, 50); !errors.Is(err, ErrNoFile) {
		t.Errorf("got %v, want ErrNoFile", err)
	}
}

// A line one pixel wide must not fall through the gaps of downscaling.
func TestPreviewKeepsThinLines(t *testing.T) {
	sb := newSandbox(t)
	m := image.NewGray(image.Rect(0, 0, 4000, 400))
	for i := range m.Pix {
		m.Pix[i] = 255
	}
	for x := 101; x < 4000; x += 100 {
		for y := range 400 {
			m.SetGray(x, y, color.Gray{0})
		}
	}
	if err := os.WriteFile(sb.file("pic"), encoded(t, m, "png"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, data, err := sb.Preview(testContext(t), "/sandbox/pic", 1000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	small, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for x := range 1000 {
		if r, _, _, _ := small.At(x, 50).RGBA(); r < 0xe000 && x%25 < 2 {
			lines++
		}
	}
	if lines < 39 {
		t.Errorf("%d of 39 lines are left", lines)
	}
}

// pngClaiming is a PNG whose header claims a size and that holds little else.
func pngClaiming(w, h uint32) []byte {
	out := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(kind string, data []byte) {
		out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
		body := append([]byte(kind), data...)
		out = append(out, body...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
	}
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)
	chunk("IHDR", append(header, 8, 6, 0, 0, 0))
	chunk("IDAT", []byte{0x78, 0x9c, 0x63, 0, 0})
	chunk("IEND", nil)
	return out
}

func TestPreviewOfHostilePictures(t *testing.T) {
	sb := newSandbox(t)
	whole := encoded(t, picture(300, 300), "png")
	for name, data := range map[string][]byte{
		"empty":            {},
		"text":             []byte("not a picture"),
		"bomb":             pngClaiming(60000, 60000),
		"largest header":   pngClaiming(1<<31-1, 1<<31-1),
		"no pixels":        pngClaiming(8000, 8000),
		"cut":              whole[:len(whole)/2],
		"gif bomb":         []byte("GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x00;"),
		"jpeg bomb":        []byte("\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x11\x00\x02\x11\x00\x03\x11\x00\xff\xd9"),
		"small lying webp": []byte("RIFF\x2e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x09\x00\x00VP8 \x10\x00\x00\x00\x30\x01\x00\x9d\x01\x2a\xff\x3f\xff\x3f\x00\x00\x00\x00\x00\x00"),
		"svg":              []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`),
	} {
		if err := os.WriteFile(sb.file("pic"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if mime, _, err := sb.Preview(testContext(t), "/sandbox/pic", 1024, 1<<20); !errors.Is(err, ErrNotPicture) {
			t.Errorf("%s: got %q, %v; want ErrNotPicture", name, mime, err)
		}
	}
	if err := os.Truncate(sb.file("pic"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sb.Preview(testContext(t), "/sandbox/pic", 1024, 1<<20); !errors.Is(err, ErrNotPicture) {
		t.Errorf("a sparse terabyte: %v; want ErrNotPicture", err)
	}
}

// A TIFF without colours is data: a map of classes 0 to 5 would be black.
func TestPreviewLeavesMeasurementsToOthers(t *testing.T) {
	sb := newSandbox(t)
	at := image.Rect(0, 0, 20, 20)
	for name, c := range map[string]struct {
		pic  image.Image
		want error
	}{
		"grey":          {image.NewGray(at), ErrNotPicture},
		"grey, 16 bits": {image.NewGray16(at), ErrNotPicture},
		"16 bits":       {image.NewRGBA64(at), ErrNotPicture},
		"colours":       {image.NewRGBA(at), nil},
		"a palette":     {image.NewPaletted(at, color.Palette{color.Black, color.White}), nil},
	} {
		if err := os.WriteFile(sb.file("pic"), encoded(t, c.pic, "tiff"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := sb.Preview(testContext(t), "/sandbox/pic", 100, 1<<20); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// The largest picture that is decoded takes a helper's time and memory, and
// none of the agent's.
func TestPreviewOfLargestPicture(t *testing.T) {
	sb := newSandbox(t)
	var buf bytes.Buffer
	edge := 8192
	if raceDetector {
		edge /= 4 // the helper has little time
	}
	enc := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := enc.Encode(&buf, image.NewGray(image.Rect(0, 0, edge, edge))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sb.file("pic"), buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	buf = bytes.Buffer{}
	start := time.Now()
	grew := memoryPeak(t, func() {
		if _, _, err := sb.Preview(testContext(t), "/sandbox/pic", 1024, 1<<20); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d MP in %v", edge*edge>>20, time.Since(start))
	if grew > 16<<20 {
		t.Errorf("memory grew by %d MiB", grew>>20)
	}
}
