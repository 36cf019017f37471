package sandbox

import (
	"time"

	"belljar/internal/engine"
)

// Result is what came of a run. A script that fails is a result like any
// other.
type Result struct {
	Success    bool   `json:"success" jsonschema:"the script ended by itself with exit code 0"`
	ReturnCode int    `json:"returncode" jsonschema:"exit code; 128+n after signal n, 124 after a timeout"`
	TimedOut   bool   `json:"timed_out" jsonschema:"the script was ended at its time limit"`
	Stdout     string `json:"stdout" jsonschema:"standard output; if too long, the middle is cut"`
	Stderr     string `json:"stderr" jsonschema:"standard error; if too long, the middle is cut"`
	// OutputFiles are sorted by name. It is never nil.
	OutputFiles []File `json:"output_files" jsonschema:"files the script wrote to /sandbox/output; if there are many, one of them lists them all"`
	// Notes say in words what was cut, left out or found elsewhere.
	// NetworkDenied is what the sandbox's network refused meanwhile.
	NetworkDenied []string `json:"network_denied,omitempty" jsonschema:"connections that the sandbox's network refused, each with the rule"`
	Notes         []string `json:"notes,omitempty" jsonschema:"what was cut, left out or found elsewhere"`
	DurationMS    int64    `json:"duration_ms" jsonschema:"how long the script ran"`
	Limits        Limits   `json:"limits" jsonschema:"what bounded the run, as read back from the kernel"`
	// Error says why the script failed where more is known than its exit
	// code.
	Error string `json:"error,omitempty" jsonschema:"why the script failed, where more is known than its exit code"`

	// Images are previews of output files. They are no part of structured
	// content.
	Images []Image `json:"images,omitempty"`
}

// File is a file that a run gave back. It has either Text or URL.
type File struct {
	Name   string `json:"name" jsonschema:"path below /sandbox/output"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	MIME   string `json:"mime"`
	URL    string `json:"url,omitempty" jsonschema:"where to download the file; whoever has the link can"`
	// ExpiresIn is in seconds.
	ExpiresIn int64 `json:"expires_in,omitempty" jsonschema:"seconds until the link expires"`
	// Text is the content of a small text file.
	Text *string `json:"text,omitempty" jsonschema:"the content, in place of a link, if the file is small text"`
}

// Image is a small version of a picture that a run gave back.
type Image struct {
	Name string `json:"name"` // of the File
	MIME string `json:"mime"`
	Data []byte `json:"data"`
	// Part is what of the file it shows, if not all: "first page".
	Part string `json:"part,omitempty"`
}

// Limits is what bounded a run.
type Limits struct {
	engine.Receipt
	TimeoutSeconds float64 `json:"timeout_seconds"`
	OutputBytes    int64   `json:"output_bytes" jsonschema:"of stdout and of stderr, in this result"`
	LogBytes       int64   `json:"log_bytes" jsonschema:"of the full stdout and stderr, as files"`
	Files          int     `json:"files" jsonschema:"number of output files"`
	FileBytes      int64   `json:"file_bytes" jsonschema:"of one output file"`
	FilesBytes     int64   `json:"files_bytes" jsonschema:"of all output files together"`
}

func (m *Manager) limits(r engine.Receipt, timeout time.Duration) Limits {
	r.OOMKills = 0 // a count, not a limit; it does not survive JSON
	return Limits{
		Receipt:        r,
		TimeoutSeconds: timeout.Seconds(),
		OutputBytes:    int64(m.o.MaxOutput),
		LogBytes:       m.o.LogBytes,
		Files:          m.o.MaxFiles,
		FileBytes:      m.o.MaxFileBytes,
		FilesBytes:     m.o.MaxRunBytes,
	}
}
