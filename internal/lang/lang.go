// Package lang holds the table of runtimes: how one language's script is
// run. The table is data. A file of the operator's adds a language, or
// replaces one, without code.
package lang

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A Runtime says how the scripts of one language are run.
type Runtime struct {
	// Name is what callers ask for: "python".
	Name string `toml:"name"`
	// Title is the language's name: "Python".
	Title string `toml:"title"`
	// Extension is the script file's, without a dot.
	Extension string `toml:"extension"`
	// Argv is the command; {script} in it stands for the script's file name,
	// {files} for the directory of Files.
	Argv []string `toml:"argv"`
	// Version is a command that prints the version on its first line.
	Version []string `toml:"version"`
	// Packages is a command that prints what is installed, one "name version"
	// a line. It may be absent.
	Packages []string `toml:"packages"`
	// Env is added to the environment; {files} in a value is as in Argv.
	Env map[string]string `toml:"env"`
	// Hint says, for who writes a script, what Belljar adds to the language.
	Hint string `toml:"hint"`
	// Image is the image to run in, the server's default if empty.
	Image string `toml:"image"`
	// Files are put into the sandbox for the command to use, at Dir. In a
	// table they are paths below the table's directory.
	Files []File `toml:"-"`
	// Keep is a directory below Dir, for what the command makes of Files at a
	// first start, such as compiled code, if it depends on them and on the
	// image alone. What is in it when the command comes to its gate is given to
	// later sandboxes of the image, in which all of Files have the same time of
	// their last change.
	Keep string `toml:"keep"`
	// Warm is whether the command can be started before its script is known:
	// if the variable BELLJAR_GATE is set, it loads what scripts usually
	// need, prints nothing, and reads the FIFO of that name to its end before
	// it looks at the script or its standard input.
	Warm bool `toml:"warm"`
	// Preload is a regular expression that finds the scripts for which that
	// loading is worth its memory, if not all. Some sandboxes then wait
	// loaded, having got the variable BELLJAR_PRELOAD too, and some without.
	// A script that it misses runs all the same.
	Preload string `toml:"preload"`
	// Ignore are patterns, as of path.Match, of files that the language
	// leaves in the working directory and nobody wants.
	Ignore []string `toml:"ignore"`
	// PoolMin and PoolMax bound how many sandboxes wait for scripts.
	PoolMin int `toml:"pool_min"` // 1
	PoolMax int `toml:"pool_max"` // 8

	preload *regexp.Regexp // Preload, compiled
}

// preloadBytes is how much of a script Preload is looked for in: scripts say at
// their beginning what they need, and one that is mostly data takes a second to
// look through.
const preloadBytes = 64 << 10

// Preloads is whether a script is one for which the loading of Preload is
// meant.
func (r Runtime) Preloads(script string) bool {
	return r.Warm && (r.preload == nil || r.preload.MatchString(script[:min(len(script), preloadBytes)]))
}

// A File stands in a runtime's Dir.
type File struct {
	Name string
	Data []byte
}

// Placeholders in a runtime's command.
const (
	scriptPlace = "{script}" // the script's file name
	filesPlace  = "{files}"  // the directory of Files
)

// Dir is where a runtime's Files are in a sandbox.
func (r Runtime) Dir() string { return "/belljar/lib/" + r.Name }

// Script is the name of the script's file.
func (r Runtime) Script() string { return "main." + r.Extension }

// Command is the command that runs the script.
func (r Runtime) Command() []string {
	argv := make([]string, len(r.Argv))
	places := strings.NewReplacer(scriptPlace, r.Script(), filesPlace, r.Dir())
	for i, arg := range r.Argv {
		argv[i] = places.Replace(arg)
	}
	return argv
}

// Environ is Env as KEY=value, sorted.
func (r Runtime) Environ() []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		env = append(env, k+"="+strings.ReplaceAll(r.Env[k], filesPlace, r.Dir()))
	}
	return env
}

// A Table holds runtimes by name. It does not change once loaded.
type Table struct {
	runtimes []Runtime // sorted by name
}

// Get returns the runtime of that name.
func (t Table) Get(name string) (Runtime, bool) {
	i, ok := slices.BinarySearchFunc(t.runtimes, name, func(r Runtime, name string) int {
		return strings.Compare(r.Name, name)
	})
	if !ok {
		return Runtime{}, false
	}
	return t.runtimes[i], true
}

// Names returns the names of all runtimes, sorted.
func (t Table) Names() []string {
	names := make([]string, len(t.runtimes))
	for i, r := range t.runtimes {
		names[i] = r.Name
	}
	return names
}

// All returns the runtimes, sorted by name.
func (t Table) All() []Runtime { return slices.Clone(t.runtimes) }
