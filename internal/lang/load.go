package lang

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

//go:embed runtimes.toml files
var builtin embed.FS

const (
	builtinFile = "runtimes.toml"
	// builtinName stands for the embedded table in errors.
	builtinName = builtinFile + " (built in)"
)

// Load returns the built-in table with the entries of the files extra added.
// An entry whose name is known replaces that entry as a whole; later files
// win. An error names the file, the entry and what would be right.
func Load(extra ...string) (Table, error) {
	byName := map[string]Runtime{}
	add := func(file string, dir fs.FS, text []byte) error {
		runtimes, err := parse(file, dir, string(text))
		for _, r := range runtimes {
			byName[r.Name] = r
		}
		return err
	}
	text, err := builtin.ReadFile(builtinFile)
	if err != nil {
		return Table{}, err
	}
	if err := add(builtinName, builtin, text); err != nil {
		return Table{}, err
	}
	for _, file := range extra {
		text, err := os.ReadFile(file)
		if err != nil {
			return Table{}, fmt.Errorf("reading the table of runtimes: %w", err)
		}
		if err := add(file, os.DirFS(filepath.Dir(file)), text); err != nil {
			return Table{}, err
		}
	}
	var t Table
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t.runtimes = append(t.runtimes, byName[name])
	}
	return t, nil
}

func parse(file string, dir fs.FS, text string) ([]Runtime, error) {
	var doc struct {
		Runtime []toml.Primitive `toml:"runtime"`
	}
	meta, err := toml.Decode(text, &doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, key := range meta.Keys() {
		if key[0] != "runtime" {
			return nil, fmt.Errorf("%s: unknown key %q; a file holds [[runtime]] entries only", file, key[0])
		}
	}
	var runtimes []Runtime
	seen := map[string]bool{}
	for i, p := range doc.Runtime {
		r, err := decode(&meta, p, dir)
		if err == nil && seen[r.Name] {
			err = errors.New("the name stands in this file twice")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: runtime %d (%q): %w", file, i+1, r.Name, err)
		}
		seen[r.Name] = true
		runtimes = append(runtimes, r)
	}
	return runtimes, nil
}

// entry is a Runtime as it stands in a file.
type entry struct {
	Runtime
	Files []string `toml:"files"`
}

// decode reads and checks one entry, and its files from dir. The name is set
// in the result also on an error, if it could be read.
func decode(meta *toml.MetaData, p toml.Primitive, dir fs.FS) (Runtime, error) {
	r := entry{Runtime: Runtime{PoolMin: 1, PoolMax: 8}}
	var named struct {
		Name string `toml:"name"`
	}
	if err := meta.PrimitiveDecode(p, &named); err == nil {
		r.Name = named.Name
	}
	var keys map[string]any
	if err := meta.PrimitiveDecode(p, &keys); err != nil {
		return r.Runtime, err
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(known, k) {
			return r.Runtime, fmt.Errorf("unknown key %q; known are %s", k, strings.Join(known, ", "))
		}
	}
	if err := meta.PrimitiveDecode(p, &r); err != nil {
		return r.Runtime, err
	}
	if keys["pool_min"] == nil {
		r.PoolMin = min(r.PoolMin, r.PoolMax)
	}
	for _, name := range r.Files {
		f, err := readFile(dir, name)
		if err != nil {
			return r.Runtime, err
		}
		if slices.ContainsFunc(r.Runtime.Files, func(o File) bool { return o.Name == f.Name }) {
			return r.Runtime, fmt.Errorf("files: two are called %s", f.Name)
		}
		r.Runtime.Files = append(r.Runtime.Files, f)
	}
	if r.Preload != "" {
		var err error
		if r.Runtime.preload, err = regexp.Compile(r.Preload); err != nil {
			return r.Runtime, fmt.Errorf("preload: %w", err)
		}
	}
	return r.Runtime, r.check()
}

// maxFile bounds a file of a runtime's, in bytes.
const maxFile = 1 << 20

func readFile(dir fs.FS, name string) (File, error) {
	data, err := fs.ReadFile(dir, name)
	switch {
	case errors.Is(err, fs.ErrInvalid):
		return File{}, fmt.Errorf("files: %q: want a path below the table's directory, such as start.js", name)
	case err != nil:
		return File{}, fmt.Errorf("files: %w", err)
	case len(data) > maxFile:
		return File{}, fmt.Errorf("files: %s holds %d bytes; want at most %d", name, len(data), maxFile)
	}
	return File{Name: path.Base(name), Data: data}, nil
}

var known = []string{
	"name", "title", "extension", "argv", "version", "packages", "env", "hint", "image",
	"files", "keep", "warm", "preload", "ignore", "pool_min", "pool_max",
}

// maxPool bounds a runtime's part of the pool.
const maxPool = 64

var (
	nameForm      = regexp.MustCompile(`^[a-z][a-z0-9+_-]{0,31}$`)
	extensionForm = regexp.MustCompile(`^[A-Za-z0-9]{1,16}$`)
	variableForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	imageForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]*$`)
)

func (r Runtime) check() error {
	switch {
	case !nameForm.MatchString(r.Name):
		return fmt.Errorf("name %q: want a lower-case letter, then up to 31 of a-z, 0-9, +, _ and -", r.Name)
	case strings.TrimSpace(r.Title) == "":
		return errors.New("title is missing; want the language's name")
	case !extensionForm.MatchString(r.Extension):
		return fmt.Errorf("extension %q: want 1 to 16 letters and digits, without a dot", r.Extension)
	case !strings.Contains(strings.Join(r.Argv, "\n"), scriptPlace):
		return fmt.Errorf("argv %q: want a command with %s where the script's file name goes", r.Argv, scriptPlace)
	case len(r.Version) == 0:
		return errors.New("version is missing; want a command that prints the version")
	case r.Image != "" && !imageForm.MatchString(r.Image):
		return fmt.Errorf("image %q: want an image's name or digest", r.Image)
	case r.Keep != "" && (!fs.ValidPath(r.Keep) || r.Keep == "." || !r.Warm):
		return fmt.Errorf("keep %q: want the name of a directory, such as __pycache__, in a runtime that is warm", r.Keep)
	case r.PoolMin < 0 || r.PoolMin > r.PoolMax || r.PoolMax > maxPool:
		return fmt.Errorf("pool_min %d, pool_max %d: want 0 <= pool_min <= pool_max <= %d", r.PoolMin, r.PoolMax, maxPool)
	}
	for _, pattern := range r.Ignore {
		if _, err := path.Match(pattern, ""); err != nil || strings.Contains(pattern, "/") {
			return fmt.Errorf("ignore %q: want a pattern of file names, such as *.aux", pattern)
		}
	}
	for key, argv := range map[string][]string{"argv": r.Argv, "version": r.Version, "packages": r.Packages} {
		if len(argv) > 0 && argv[0] == "" || strings.Contains(strings.Join(argv, ""), "\x00") {
			return fmt.Errorf("%s %q: want a program and its arguments, without NUL", key, argv)
		}
	}
	for k, v := range r.Env {
		if !variableForm.MatchString(k) || strings.Contains(v, "\x00") {
			return fmt.Errorf("env %q: want a variable's name and a value without NUL", k)
		}
	}
	return nil
}
