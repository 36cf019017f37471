package image

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// plan is a Containerfile that this builder can execute as a whole. It is
// expanded once, in place.
type plan struct {
	from     string // the base, with its variables expanded
	fromText string
	commands []instructions.Command
	escape   rune
	args     map[string]string // as given by the caller
	global   map[string]string // of the ARGs before FROM, with their values
	warnings []string
}

// A planError says which line of a Containerfile cannot be executed, and why.
type planError struct {
	line int
	err  error
}

func (e *planError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *planError) Unwrap() error { return e.err }

func atLine(where []parser.Range, err error) error {
	line := 1
	if len(where) > 0 {
		line = where[0].Start.Line
	}
	return &planError{line, err}
}

// parsePlan reads a Containerfile and refuses, before anything runs, what this
// builder does not know.
func parsePlan(file []byte, args map[string]string) (*plan, error) {
	ast, err := parser.Parse(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	stages, meta, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return nil, err
	}
	if len(stages) == 0 {
		return nil, errors.New("no FROM")
	}
	if len(stages) > 1 {
		return nil, atLine(stages[1].Location, errors.New("a second FROM: builds in several stages are not supported"))
	}
	st := stages[0]
	pl := &plan{fromText: st.SourceCode, commands: st.Commands, escape: ast.EscapeToken, args: args, global: platformArgs()}
	if err := pl.expandGlobals(meta); err != nil {
		return nil, err
	}
	if pl.from, err = pl.word(st.BaseName, pl.global); err != nil {
		return nil, atLine(st.Location, err)
	}
	if pl.from == "" {
		return nil, atLine(st.Location, fmt.Errorf("%s: the base image's name is empty", st.SourceCode))
	}
	platform, err := pl.word(st.Platform, pl.global)
	if err != nil {
		return nil, atLine(st.Location, err)
	}
	if want := pl.global["TARGETPLATFORM"]; platform != "" && platform != want {
		return nil, atLine(st.Location, fmt.Errorf("FROM --platform=%s: images are for %s here", platform, want))
	}
	for _, c := range st.Commands {
		warning, err := check(c)
		if err != nil {
			return nil, atLine(c.Location(), err)
		}
		if warning != "" {
			pl.warnings = append(pl.warnings, atLine(c.Location(), errors.New(warning)).Error())
		}
	}
	pl.warnings = append(pl.warnings, pl.unusedArgs(meta)...)
	return pl, nil
}

// total is the number of steps to show, FROM included.
func (pl *plan) total() int {
	n := 1
	for _, c := range pl.commands {
		switch c.(type) {
		case *instructions.RunCommand, *instructions.CopyCommand, *instructions.WorkdirCommand:
			n++
		}
	}
	return n
}

func platformArgs() map[string]string {
	p := "linux/" + runtime.GOARCH
	return map[string]string{
		"TARGETPLATFORM": p, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH,
		"BUILDPLATFORM": p, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH,
	}
}

func (pl *plan) expandGlobals(meta []instructions.ArgCommand) error {
	for _, a := range meta {
		if err := a.Expand(func(w string) (string, error) { return pl.word(w, pl.global) }); err != nil {
			return atLine(a.Location(), err)
		}
		for _, kv := range a.Args {
			if v, ok := pl.args[kv.Key]; ok {
				pl.global[kv.Key] = v
			} else if kv.Value != nil {
				pl.global[kv.Key] = *kv.Value
			}
		}
	}
	return nil
}

// check says of an instruction that the builder cannot execute why, and of one
// that it passes over that it does.
//
// What describes how a container is to be started or reached is passed over
// with a warning: a sandbox starts the agent, whatever CMD says, and refusing
// would keep people from using the Containerfiles they have. What would
// change the files of the image and is not known is refused.
func check(c instructions.Command) (warning string, err error) {
	switch c := c.(type) {
	case *instructions.EnvCommand, *instructions.WorkdirCommand, *instructions.ArgCommand,
		*instructions.UserCommand, *instructions.LabelCommand, *instructions.ShellCommand:
		return "", nil
	case *instructions.RunCommand:
		if len(c.FlagsUsed) > 0 {
			return "", fmt.Errorf("RUN --%s is not supported", c.FlagsUsed[0])
		}
		if len(c.CmdLine) == 0 {
			return "", errors.New("RUN without a command")
		}
		return "", nil
	case *instructions.CopyCommand:
		return "", checkCopy(c)
	case *instructions.CmdCommand, *instructions.EntrypointCommand, *instructions.ExposeCommand,
		*instructions.HealthCheckCommand, *instructions.StopSignalCommand, *instructions.VolumeCommand,
		*instructions.MaintainerCommand:
		return strings.ToUpper(c.Name()) + " has no meaning for a sandbox and is ignored", nil
	case *instructions.AddCommand:
		return "", errors.New("ADD is not supported; use COPY, or RUN with curl or tar")
	}
	return "", fmt.Errorf("%s is not supported", strings.ToUpper(c.Name()))
}

func checkCopy(c *instructions.CopyCommand) error {
	switch {
	case c.From != "":
		return fmt.Errorf("COPY --from=%s: builds in several stages are not supported", c.From)
	case c.Parents:
		return errors.New("COPY --parents is not supported")
	case len(c.ExcludePatterns) > 0:
		return errors.New("COPY --exclude is not supported")
	case len(c.SourcePaths)+len(c.SourceContents) > 1 && !strings.HasSuffix(c.DestPath, "/") && !isDot(c.DestPath):
		return fmt.Errorf("COPY of several sources: the destination %s must end in /", c.DestPath)
	}
	return nil
}

func isDot(dest string) bool { return dest == "." || strings.HasSuffix(dest, "/.") }

// unusedArgs warns of values for variables that no ARG declares.
func (pl *plan) unusedArgs(meta []instructions.ArgCommand) []string {
	declared := map[string]bool{}
	for _, a := range meta {
		for _, kv := range a.Args {
			declared[kv.Key] = true
		}
	}
	for _, c := range pl.commands {
		if a, ok := c.(*instructions.ArgCommand); ok {
			for _, kv := range a.Args {
				declared[kv.Key] = true
			}
		}
	}
	var warnings []string
	for _, k := range slices.Sorted(maps.Keys(pl.args)) {
		if !declared[k] {
			warnings = append(warnings, fmt.Sprintf("the value for %s is not used: no ARG %s", k, k))
		}
	}
	return warnings
}

func (pl *plan) word(w string, vars map[string]string) (string, error) {
	out, _, err := shell.NewLex(pl.escape).ProcessWord(w, environ(vars))
	return out, err
}

// environ is a set of variables as the lexer wants it.
type environ map[string]string

func (e environ) Get(key string) (string, bool) { v, ok := e[key]; return v, ok }
func (e environ) Keys() []string                { return slices.Sorted(maps.Keys(e)) }

// buildStep is an instruction that makes a layer, with its variables expanded
// and all that is in force for it. One of Run, Copy and Mkdir is set.
type buildStep struct {
	Run   []string  // argv
	Copy  *copyStep //
	Mkdir string    // WORKDIR, absolute
	Env   []string  // with the ARGs
	Dir   string
	User  string

	text string
	line int
}

// state is what instructions change for those after them.
type state struct {
	config Config
	args   map[string]string
	shell  []string
}

// steps expands the plan over its base's configuration: to the steps to
// execute and the configuration of the image.
func (pl *plan) steps(base Config) ([]buildStep, Config, error) {
	st := &state{config: base, args: map[string]string{}, shell: []string{"/bin/sh", "-c"}}
	st.config.Env = slices.Clone(base.Env)
	st.config.Labels = maps.Clone(base.Labels)
	if _, ok := st.vars()["PATH"]; !ok {
		st.config.Env = append(st.config.Env, defaultPath)
	}
	if st.config.Workdir == "" {
		st.config.Workdir = "/"
	}
	var steps []buildStep
	for _, c := range pl.commands {
		if err := pl.expand(c, st.vars()); err != nil {
			return nil, Config{}, atLine(c.Location(), err)
		}
		step, err := st.execute(c, pl)
		if err != nil {
			return nil, Config{}, atLine(c.Location(), err)
		}
		if step == nil {
			continue
		}
		step.Env, step.Dir, step.User = st.environment(), st.config.Workdir, st.config.User
		step.text, step.line = oneLine(fmt.Sprint(c)), c.Location()[0].Start.Line
		steps = append(steps, *step)
	}
	return steps, st.config, nil
}

func (pl *plan) expand(c instructions.Command, vars map[string]string) error {
	if x, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		if err := x.Expand(func(w string) (string, error) { return pl.word(w, vars) }); err != nil {
			return err
		}
	}
	if x, ok := c.(instructions.SupportsSingleWordExpansionRaw); ok {
		lex := shell.NewLex('\\')
		lex.SkipProcessQuotes = true
		return x.ExpandRaw(func(w string) (string, error) {
			out, _, err := lex.ProcessWord(w, environ(vars))
			return out, err
		})
	}
	return nil
}

// vars are the variables in force; ENV wins over ARG.
func (st *state) vars() map[string]string {
	vars := maps.Clone(st.args)
	for _, kv := range st.config.Env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	return vars
}

func (st *state) environment() []string {
	vars := st.vars()
	var env []string
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return env
}

func (st *state) execute(c instructions.Command, pl *plan) (*buildStep, error) {
	switch c := c.(type) {
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			if err := st.setenv(kv.Key, kv.Value); err != nil {
				return nil, err
			}
		}
	case *instructions.ArgCommand:
		for _, kv := range c.Args {
			st.declare(kv, pl)
		}
	case *instructions.LabelCommand:
		if st.config.Labels == nil {
			st.config.Labels = map[string]string{}
		}
		for _, kv := range c.Labels {
			st.config.Labels[kv.Key] = kv.Value
		}
	case *instructions.UserCommand:
		st.config.User = c.User
	case *instructions.ShellCommand:
		st.shell = c.Shell
	case *instructions.WorkdirCommand:
		if st.config.Workdir = st.absolute(c.Path); strings.Contains(c.Path, "\x00") {
			return nil, errors.New("WORKDIR with a NUL byte")
		}
		return &buildStep{Mkdir: st.config.Workdir}, nil
	case *instructions.RunCommand:
		argv, err := st.argv(c)
		return &buildStep{Run: argv}, err
	case *instructions.CopyCommand:
		cp, err := st.copyStep(c)
		return &buildStep{Copy: cp}, err
	}
	return nil, nil
}

func (st *state) setenv(key, value string) error {
	if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
		return fmt.Errorf("ENV %q: not a name that a variable can have", key)
	}
	st.config.Env = slices.DeleteFunc(st.config.Env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
	st.config.Env = append(st.config.Env, key+"="+value)
	return nil
}

// declare gives a variable the caller's value, the default, or the value that
// it had before FROM.
func (st *state) declare(kv instructions.KeyValuePairOptional, pl *plan) {
	if v, ok := pl.args[kv.Key]; ok {
		st.args[kv.Key] = v
	} else if kv.Value != nil {
		st.args[kv.Key] = *kv.Value
	} else if v, ok := pl.global[kv.Key]; ok {
		st.args[kv.Key] = v
	}
}

func (st *state) absolute(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(st.config.Workdir, p)
}

func (st *state) argv(c *instructions.RunCommand) ([]string, error) {
	argv := c.CmdLine
	if len(c.Files) > 0 {
		if !c.PrependShell || len(argv) != 1 {
			return nil, errors.New("RUN with a heredoc: want the shell form")
		}
		argv = []string{heredocScript(argv[0], c.Files)}
	}
	if c.PrependShell {
		argv = slices.Concat(st.shell, argv)
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("RUN without a command")
	}
	if slices.ContainsFunc(argv, func(a string) bool { return strings.Contains(a, "\x00") }) {
		return nil, errors.New("RUN with a NUL byte")
	}
	return argv, nil
}

// heredocScript makes one script of a command line and its heredocs: a heredoc
// alone is the script, run by the program that its #! names, if any; with a
// command the shell reads all of it.
func heredocScript(line string, files []instructions.ShellInlineFile) string {
	content := func(f instructions.ShellInlineFile) string {
		if f.Chomp {
			return parser.ChompHeredocContent(f.Data)
		}
		return f.Data
	}
	if parser.MustParseHeredoc(line) != nil && len(files) == 1 {
		script := content(files[0])
		bang, ok := strings.CutPrefix(script, "#!")
		if !ok {
			return script
		}
		interpreter, _, _ := strings.Cut(bang, "\n")
		end := "BELLJAR_END"
		for strings.Contains(script, end) {
			end += "_"
		}
		return fmt.Sprintf("f=$(mktemp) || exit\ntrap 'rm -f \"$f\"' EXIT\ncat >\"$f\" <<'%s'\n%s\n%s\n%s \"$f\"\n",
			end, strings.TrimSuffix(script, "\n"), end, strings.TrimSpace(interpreter))
	}
	for _, f := range files {
		line += "\n" + f.Data + f.Name
	}
	return line + "\n"
}

func (st *state) copyStep(c *instructions.CopyCommand) (*copyStep, error) {
	cp := &copyStep{Sources: c.SourcePaths, Chown: c.Chown, Dest: st.absolute(c.DestPath)}
	if (strings.HasSuffix(c.DestPath, "/") || isDot(c.DestPath)) && cp.Dest != "/" {
		cp.Dest += "/"
	}
	if strings.Contains(cp.Dest+strings.Join(cp.Sources, ""), "\x00") {
		return nil, errors.New("COPY with a NUL byte")
	}
	for _, f := range c.SourceContents {
		cp.Inline = append(cp.Inline, inlineFile{f.Path, f.Data})
	}
	if c.Chmod != "" {
		mode, err := strconv.ParseUint(c.Chmod, 8, 32)
		if err != nil || mode > 0o7777 {
			return nil, fmt.Errorf("COPY --chmod=%s: want an octal mode such as 755", c.Chmod)
		}
		m := uint32(mode)
		cp.Chmod = &m
	}
	return cp, nil
}
