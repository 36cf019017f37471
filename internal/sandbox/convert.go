package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"belljar/internal/agent"
)

// A pictureKind says how a preview of some types of file is made. The table
// is code and not a file of data: an image that brings no converter is passed
// over, so there is nothing in it for an operator to set.
type pictureKind struct {
	types []string
	// native is whether the agent decodes the file, most often; it is tried
	// first.
	native bool
	// part is what of the file is shown, if not all.
	part string
	// commands are tried one after the other until one prints a picture that
	// the agent can decode. Printed, the picture is bounded like any output,
	// and needs no place of its own that a script could have prepared.
	commands [][]string
}

// filePlace stands for the file in a command.
const filePlace = "{file}"

var (
	edge = strconv.Itoa(maxPreviewEdge)
	page = "first page"

	ghostscript = []string{"gs", "-q", "-dSAFER", "-dBATCH", "-dNOPAUSE", "-dFirstPage=1", "-dLastPage=1",
		"-sDEVICE=png16m", "-dTextAlphaBits=4", "-dGraphicsAlphaBits=4", "-dEPSCrop", "-r120",
		"-sstdout=%stderr", "-sOutputFile=%stdout", filePlace}
	imagemagick = []string{"convert", filePlace, "-delete", "1--1", "-resize", edge + "x" + edge + ">", "png:-"}
)

var pictureKinds = []pictureKind{
	{types: []string{"image/png", "image/jpeg", "image/gif", "image/webp"}, native: true},
	{types: []string{"image/bmp"}, native: true, commands: [][]string{imagemagick}},
	{types: []string{"image/svg+xml"}, commands: [][]string{
		{"rsvg-convert", "--width=" + edge, "--height=" + edge, "--keep-aspect-ratio", "--background-color=white", filePlace},
	}},
	{types: []string{"application/pdf"}, part: page, commands: [][]string{
		{"pdftoppm", "-png", "-singlefile", "-scale-to", edge, filePlace},
		ghostscript,
	}},
	{types: []string{"application/postscript"}, part: page, commands: [][]string{ghostscript}},
	// Three bands are shown as colours, the first alone otherwise; what a
	// GeoTIFF marks as without data does not count for the range.
	{types: []string{"image/tiff"}, native: true, commands: [][]string{
		bands("-b", "1", "-b", "2", "-b", "3"),
		bands("-b", "1"),
		slices.Insert(slices.Clone(imagemagick), 2, "-auto-level"),
	}},
	{types: []string{
		"image/x-portable-bitmap", "image/x-portable-graymap", "image/x-portable-pixmap", "image/x-portable-arbitrarymap",
		"image/jp2", "image/jxl", "image/avif", "image/heic", "image/x-xpixmap", "image/x-icon", "image/vnd.adobe.photoshop",
	}, commands: [][]string{imagemagick}},
}

// bands is how GDAL shows some bands of a raster, their values stretched.
func bands(which ...string) []string {
	argv := []string{"gdal_translate", "-q", "-of", "PNG", "-ot", "Byte", "-scale", "-a_nodata", "none", "-r", "average", "-outsize", edge, "0"}
	return append(append(argv, which...), filePlace, "/vsistdout/")
}

func kindOf(mime string) (pictureKind, bool) {
	i := slices.IndexFunc(pictureKinds, func(k pictureKind) bool { return slices.Contains(k.types, mime) })
	if i < 0 {
		return pictureKind{}, false
	}
	return pictureKinds[i], true
}

const (
	convertTime  = 10 * time.Second // of one converter
	convertBytes = 32 << 20         // of what it prints
)

// errAbsent says that a converter is not in the image.
var errAbsent = errors.New("the converter is not there")

// convert has a program in the sandbox print a picture of a file, and returns
// the path of what it printed.
func (k *collector) convert(ctx context.Context, command []string, from string) (string, error) {
	if k.absent[command[0]] {
		return "", errAbsent
	}
	argv := slices.Clone(command)
	argv[slices.Index(argv, filePlace)] = from
	k.jobs++
	job := agent.JobSpec{
		ID:       "preview-" + strconv.Itoa(k.jobs),
		Argv:     argv,
		Timeout:  convertTime,
		Keep:     200, // to log what it complains of
		LogBytes: convertBytes,
	}
	if err := k.c.StartJob(ctx, job); err != nil {
		return "", err
	}
	s, err := k.c.WaitJob(ctx, job.ID)
	switch {
	case err != nil:
		return "", err
	case s.ExitCode == codeNotFound && s.Error != "":
		k.absent[command[0]] = true
		return "", errAbsent
	case s.ExitCode != 0:
		said := Clip(strings.ToValidUTF8(string(s.Stderr.Head), "\uFFFD"))
		return "", fmt.Errorf("%s: exit code %d: %s", command[0], s.ExitCode, said)
	case s.Stdout.Bytes == 0:
		return "", fmt.Errorf("%s printed nothing", command[0])
	case s.Stdout.Log == "" || s.Stdout.LogBytes != s.Stdout.Bytes:
		return "", fmt.Errorf("%s: %d bytes of %d are kept", command[0], s.Stdout.LogBytes, s.Stdout.Bytes)
	}
	return s.Stdout.Log, nil
}
