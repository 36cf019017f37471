package image

import (
	"bufio"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// debianMirror is where a Debian machine gets its own packages, and "" on any
// other machine: mmdebstrap then goes to Debian's own mirror. etc is the
// machine's /etc.
func debianMirror(etc string) string {
	release := osRelease(etc)
	if release["ID"] != "debian" {
		return ""
	}
	files := []string{filepath.Join(etc, "apt/sources.list")}
	for _, pattern := range []string{"*.sources", "*.list"} {
		more, _ := filepath.Glob(filepath.Join(etc, "apt/sources.list.d", pattern)) // the pattern is good
		files = append(files, more...)
	}
	for _, file := range files {
		for _, src := range aptSources(file) {
			if mirror := src.mirror(etc, release["VERSION_CODENAME"]); mirror != "" {
				return mirror
			}
		}
	}
	return ""
}

func osRelease(etc string) map[string]string {
	vars := map[string]string{}
	for _, line := range readLines(filepath.Join(etc, "os-release")) {
		if k, v, ok := strings.Cut(line, "="); ok {
			vars[k] = strings.Trim(v, `"'`)
		}
	}
	return vars
}

// aptSource is an entry of the package manager's sources.
type aptSource struct{ types, uris, suites, components []string }

// mirror is the entry's mirror, if it is the one of the release itself: third
// parties' packages, updates and security are others.
func (a aptSource) mirror(etc, codename string) string {
	if !slices.Contains(a.types, "deb") || !slices.Contains(a.components, "main") ||
		!slices.Contains(a.suites, codename) && !slices.Contains(a.suites, "stable") {
		return ""
	}
	for _, uri := range a.uris {
		// Debian's cloud images name a file that lists mirrors.
		if file, ok := strings.CutPrefix(uri, "mirror+file:"); ok {
			file = strings.TrimPrefix(strings.TrimPrefix(file, "//"), "/etc/")
			for _, line := range readLines(filepath.Join(etc, file)) {
				uri, _, _ = strings.Cut(line, "\t")
				break
			}
		}
		u, err := url.Parse(uri)
		if err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/debian") {
			return strings.TrimRight(uri, "/")
		}
	}
	return ""
}

var aptOptions = regexp.MustCompile(`\[[^\]]*\]`)

// aptSources reads a file of either form: a line per entry, or a paragraph.
func aptSources(file string) []aptSource {
	var all []aptSource
	if filepath.Ext(file) != ".sources" {
		for _, line := range readLines(file) {
			f := strings.Fields(aptOptions.ReplaceAllString(line, " "))
			if len(f) >= 3 {
				all = append(all, aptSource{f[:1], f[1:2], f[2:3], f[3:]})
			}
		}
		return all
	}
	var cur aptSource
	var field *[]string
	enabled := true
	end := func() {
		if enabled {
			all = append(all, cur)
		}
		cur, field, enabled = aptSource{}, nil, true
	}
	for _, line := range append(readLines(file), "") {
		key, value, ok := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "":
			end()
			continue
		case line[0] == ' ' || line[0] == '\t': // goes on
			value = line
		case ok:
			field = map[string]*[]string{"types": &cur.types, "uris": &cur.uris, "suites": &cur.suites, "components": &cur.components}[strings.ToLower(key)]
			enabled = enabled && !(strings.EqualFold(key, "enabled") && strings.TrimSpace(value) == "no")
		}
		if field != nil {
			*field = append(*field, strings.Fields(value)...)
		}
	}
	return all
}

// readLines reads a text file without its comments; nothing if it is missing.
func readLines(file string) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var lines []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if !strings.HasPrefix(sc.Text(), "#") {
			lines = append(lines, sc.Text())
		}
	}
	return lines
}
