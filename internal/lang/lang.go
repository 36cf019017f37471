// Package lang holds the table of runtimes: how one language's script is
// run. The table is data. A file of the operator's adds a language, or
// replaces one, without code.
package lang

import (
	"maps"
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
	// Argv is the command; {script} in it stands for the script's file name.
	Argv []string `toml:"argv"`
	// Version is a command that prints the version on its first line.
	Version []string `toml:"version"`
	// Packages is a command that prints what is installed, one "name version"
	// a line. It may be absent.
	Packages []string `toml:"packages"`
	// Env is added to the environment.
	Env map[string]string `toml:"env"`
	// Image is the image to run in, the server's default if empty.
	Image string `toml:"image"`
}

// placeholder stands for the script's file name in Argv.
const placeholder = "{script}"

// Script is the name of the script's file.
func (r Runtime) Script() string { return "main." + r.Extension }

// Command is the command that runs the script.
func (r Runtime) Command() []string {
	argv := make([]string, len(r.Argv))
	for i, arg := range r.Argv {
		argv[i] = strings.ReplaceAll(arg, placeholder, r.Script())
	}
	return argv
}

// Environ is Env as KEY=value, sorted.
func (r Runtime) Environ() []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		env = append(env, k+"="+r.Env[k])
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
