package image

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// missingDir is where a Containerfile's optional steps say what they left
// out: a file named after the runtime, or RUNTIME.PART, with the reason in its
// first line.
const missingDir = "usr/share/belljar/missing"

// Missing is a part that an image was made without.
type Missing struct {
	// What is a runtime, such as "julia", or a part of one, "python.obspy".
	What   string `json:"what"`
	Reason string `json:"reason"`
}

func (m Missing) String() string { return m.What + ": " + m.Reason }

const (
	maxMissing = 32   // files of an image's that are looked at
	maxReason  = 4096 // bytes of one that are read
)

var missingName = regexp.MustCompile(`^[a-z][a-z0-9+_-]{0,31}(\.[A-Za-z0-9+_-][A-Za-z0-9.+_-]{0,63})?$`)

// missing reads what an image lacks. It is the image's word: an image with
// something else there lacks nothing.
func (v view) missing() []Missing {
	_, n, err := v.resolve(missingDir)
	if err != nil {
		return nil
	}
	return readMissing(n.dirs)
}

// added reads what the topmost directory of a view adds to what is missing.
func (v view) added() []Missing {
	_, n, err := v.resolve(missingDir)
	if err != nil {
		return nil
	}
	return readMissing(slices.DeleteFunc(n.dirs, func(dir string) bool {
		return !strings.HasPrefix(dir, v[0]+string(filepath.Separator))
	}))
}

// readMissing reads directories that an overlay merges, the topmost first.
func readMissing(dirs []string) []Missing {
	merged := node{dirs: dirs}
	var names []string
	for _, dir := range dirs {
		names = append(names, someNames(dir)...)
	}
	slices.Sort(names)
	var all []Missing
	for _, name := range slices.Compact(names) {
		file, err := merged.child(name)
		if err != nil || !file.exists() || !file.info.Mode().IsRegular() || !missingName.MatchString(name) {
			continue
		}
		if all = append(all, Missing{name, reason(file.host)}); len(all) == maxMissing {
			break
		}
	}
	return all
}

// someNames lists a directory, up to a bound: it may hold anything.
func someNames(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(16 * maxMissing)
	return names
}

// reason is a file's first line, fit to be shown on a terminal.
func reason(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return "its reason cannot be read"
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, maxReason)).ReadString('\n')
	line = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, "\uFFFD"))
	if line = oneLine(line); line == "" {
		return "no reason is given"
	}
	return line
}
