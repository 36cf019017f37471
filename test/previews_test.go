package test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"strings"
	"testing"
)

// TestPreviewKinds: what the image can show, a model sees.
func TestPreviewKinds(t *testing.T) {
	s := scienceServer(t)
	// A raster of 90 by 70, with a corner that holds no data.
	const raster = `
import numpy as np, rasterio
y, x = np.mgrid[0:70, 0:90]
dem = 1500 + 800*np.sin(x/9)*np.cos(y/7)
dem[:20, :30] = -9999
def write(data, dtype, nodata=None, **more):
    if data.ndim == 2: data = data[None]
    with rasterio.open("output/a.tif", "w", driver="GTiff", height=70, width=90, count=len(data), dtype=dtype, nodata=nodata,
            crs="EPSG:4326", transform=rasterio.transform.from_origin(5, 50, .01, .01), **more) as f:
        f.write(data.astype(dtype))
`
	const figure = `
import matplotlib.pyplot as plt
plt.rcParams["figure.facecolor"] = "red"
plt.figure(figsize=(6, 3)); plt.plot([1, 2, 3], linewidth=5)
`
	grey := func(c color.RGBA) bool { return c.R == c.G && c.G == c.B }
	red := color.RGBA{255, 0, 0, 255}
	for name, tt := range map[string]struct {
		runtime, script string
		width, height   int
		corner          color.RGBA // at the top left
		contrast        bool       // black and white, or nearly
	}{
		"pdf":       {"python", figure + `plt.savefig("output/a.pdf")`, 1024, 512, red, false},
		"svg":       {"python", figure + `plt.savefig("output/a.svg")`, 1024, 512, red, false},
		"small svg": {"bash", `echo '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="20" height="10" fill="red"/></svg>' >output/a.svg`, 1024, 512, red, false},
		"eps":       {"python", figure + `plt.savefig("output/a.eps")`, 720, 360, red, false},
		"tiff":      {"python", figure + `plt.savefig("output/a.tif", dpi=200)`, 1024, 512, red, false},
		"pages": {"python", `
import matplotlib.pyplot as plt
from matplotlib.backends.backend_pdf import PdfPages
with PdfPages("output/a.pdf") as pdf:
    for c in "red", "blue":
        plt.figure(figsize=(3, 6), facecolor=c); pdf.savefig()`, 512, 1024, red, false},
		"elevation":    {"python", raster + `write(dem, "float32", -9999)`, 1024, 796, color.RGBA{0, 0, 0, 255}, true},
		"whole metres": {"python", raster + `write(dem, "int16", -9999)`, 1024, 796, color.RGBA{0, 0, 0, 255}, true},
		"classes":      {"python", raster + `write((x//10 + 4) % 5, "uint8")`, 1024, 796, color.RGBA{255, 255, 255, 255}, true},
		"seven bands":  {"python", raster + `write(np.stack([dem*0, dem, dem*0, dem, dem, dem, dem]), "float32")`, 1024, 796, color.RGBA{0, 0, 0, 255}, false},
		"two bands":    {"python", raster + `write(np.stack([dem, x]), "float32", -9999)`, 1024, 796, color.RGBA{0, 0, 0, 255}, true},
		"compressed":   {"python", raster + `write(dem, "float32", -9999, tiled=True, compress="zstd")`, 1024, 796, color.RGBA{0, 0, 0, 255}, true},
		"netpbm":       {"bash", `(printf 'P6\n30 20\n255\n'; for i in {1..600}; do printf '\377\0\0'; done) >output/a.ppm`, 30, 20, red, false},
		"R's own":      {"bash", `Rscript -e 'par(bg="red"); plot(1:10)'`, 1024, 1024, red, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.succeed(t, tt.runtime, tt.script)
			if len(r.images()) != 1 || len(r.Notes) != 0 || len(r.Files) != 1 {
				t.Fatalf("%d previews, %s", len(r.images()), r)
			}
			want := "shown below"
			if name := r.Files[0].Name; strings.HasSuffix(name, "pdf") || strings.HasSuffix(name, "eps") {
				want = "first page shown below"
			}
			if !strings.Contains(r.text(), fmt.Sprintf(" bytes, %s): http", want)) && r.Files[0].Text == nil {
				t.Errorf("the text does not say %q: %s", want, r.text())
			}
			img, _, err := image.Decode(bytes.NewReader(r.images()[0].Data))
			if err != nil {
				t.Fatal(err)
			}
			b := img.Bounds()
			if b.Dx() != tt.width || b.Dy() != tt.height {
				t.Errorf("%d × %d, want %d × %d", b.Dx(), b.Dy(), tt.width, tt.height)
			}
			at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
			if got := at(b.Min.X+2, b.Min.Y+2); got != tt.corner {
				t.Errorf("the corner is %v, want %v", got, tt.corner)
			}
			darkest, brightest, coloured := uint8(255), uint8(0), false
			for y := b.Min.Y; y < b.Max.Y; y++ {
				for x := b.Min.X; x < b.Max.X; x++ {
					c := at(x, y)
					darkest, brightest, coloured = min(darkest, c.G), max(brightest, c.G), coloured || !grey(c)
					if c.A != 255 {
						t.Fatalf("%d, %d is transparent", x, y)
					}
				}
			}
			if tt.contrast && (darkest > 10 || brightest < 245 || coloured) {
				t.Errorf("from %d to %d, coloured %v", darkest, brightest, coloured)
			}
		})
	}
}

// TestPreviewOfManyKinds: four of them are shown, in the order of their names.
func TestPreviewOfManyKinds(t *testing.T) {
	r := scienceServer(t).succeed(t, "python", `
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
for name in "b.png a.pdf d.eps c.svg e.jpg f.ps".split(): plt.savefig("output/" + name)
open("output/broken.pdf", "wb").write(open("output/a.pdf", "rb").read(2000))`)
	var shown []string
	for line := range strings.Lines(r.text()) {
		if strings.HasPrefix(line, "- ") && strings.Contains(line, " shown below): http") {
			shown = append(shown, strings.Fields(line)[1])
		}
	}
	if got := strings.Join(shown, " "); got != "a.pdf b.png c.svg d.eps" || len(r.images()) != 4 {
		t.Errorf("%d previews; the text says %s", len(r.images()), got)
	}
	if got := strings.Join(r.Notes, "\n"); got != "no preview: e.jpg, f.ps; the files themselves are there" {
		t.Errorf("the notes: %s", got)
	}
}
