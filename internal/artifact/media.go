package artifact

import (
	"path"
	"strings"

	"github.com/gabriel-vasile/mimetype"
)

// headBytes is how much of a file's start decides its media type.
const headBytes = 4096

// textByExt names the media types that content alone cannot tell from plain
// text, or tells by guessing. The table is ours because the host's differs
// from host to host.
var textByExt = map[string]string{
	".bib":     "text/x-bibtex",
	".c":       "text/x-c",
	".css":     "text/css",
	".csv":     "text/csv",
	".geojson": "application/geo+json",
	".htm":     "text/html",
	".html":    "text/html",
	".ipynb":   "application/x-ipynb+json",
	".jl":      "text/x-julia",
	".js":      "text/javascript",
	".json":    "application/json",
	".jsonl":   "application/x-ndjson",
	".log":     "text/plain",
	".md":      "text/markdown",
	".ndjson":  "application/x-ndjson",
	".py":      "text/x-python",
	".r":       "text/x-r",
	".sh":      "text/x-shellscript",
	".sql":     "application/sql",
	".svg":     "image/svg+xml",
	".tex":     "text/x-tex",
	".toml":    "application/toml",
	".tsv":     "text/tab-separated-values",
	".txt":     "text/plain",
	".xhtml":   "application/xhtml+xml",
	".xml":     "text/xml",
	".yaml":    "application/yaml",
	".yml":     "application/yaml",
}

// binaryByExt names types without a signature that is known to the detector.
var binaryByExt = map[string]string{
	".feather": "application/vnd.apache.arrow.file",
	".npy":     "application/x-npy",
	".pam":     "image/x-portable-arbitrarymap",
	".pbm":     "image/x-portable-bitmap",
	".pgm":     "image/x-portable-graymap",
	".pkl":     "application/x-pickle",
	".ppm":     "image/x-portable-pixmap",
	".rds":     "application/x-r-data",
}

// MediaType tells a file's media type from its beginning, of which 4 KiB
// count, and its name. Content decides; the name refines what content leaves open. Content that a
// browser would run stays named so, whatever the file is called.
func MediaType(head []byte, name string) string {
	m := mimetype.Detect(head[:min(len(head), headBytes)])
	byContent, _, _ := strings.Cut(m.String(), ";")
	ext := strings.ToLower(path.Ext(name))
	switch {
	case active(byContent):
		return byContent
	case isText(m) && textByExt[ext] != "":
		return textByExt[ext]
	case byContent == "application/octet-stream" && binaryByExt[ext] != "":
		return binaryByExt[ext]
	}
	return byContent
}

// isText reports whether m is plain text or a format built on it.
func isText(m *mimetype.MIME) bool {
	for ; m != nil; m = m.Parent() {
		if m.Is("text/plain") {
			return true
		}
	}
	return false
}

// active reports whether a browser runs script in documents of this type.
func active(mime string) bool {
	return mime == "text/html" || mime == "image/svg+xml" || mime == "application/xhtml+xml"
}

// inline reports whether a browser may show a file of this type in place of
// saving it: a closed list of types that run nothing.
func inline(mime string) bool {
	switch mime {
	case "image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "text/plain":
		return true
	}
	return false
}
