package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"belljar/internal/agent"
)

// An advice is a fact about sandboxes, for the author of a script that failed
// with certain words because it did not reckon with that fact. It is true
// whatever the script is about: the words are only why it is told.
type advice struct {
	words []string // any of them, in lower case, in a line of stderr
	fact  func(k *collector, line string) string
}

// adviceBytes is how much of the end of stderr is looked at.
const adviceBytes = 4 << 10

// allAdvice is in the order of precedence: one is enough.
var allAdvice = []advice{
	{[]string{"no such file", "cannot open", "cannot find", "could not open", "could not find", "unable to open", "unable to find", "does not exist", "not found"},
		(*collector).adviseFile},
	{[]string{"no space left on device"}, (*collector).adviseDisk},
	{[]string{"resource temporarily unavailable", "can't start new thread"}, (*collector).adviseProcesses},
	{[]string{"name resolution", "resolve host", "network is unreachable", "unable to locate package", "connection refused", "no route to host", "not known"}, (*collector).adviseNetwork},
	{[]string{"no module named", "there is no package called", "command not found"}, (*collector).adviseMissing},
	{[]string{"eof when reading a line"}, (*collector).adviseStdin},
	{[]string{"no display", "open display", "connect to display"}, (*collector).adviseDisplay},
}

// explainFailure says why a script failed where the result does not say so
// yet and something is known.
func (k *collector) explainFailure(s agent.JobStatus) {
	if k.res.Success || k.res.Error != "" {
		return
	}
	if s.Signal > 0 {
		k.res.Error = fmt.Sprintf("ended by signal %d (%v)", s.Signal, syscall.Signal(s.Signal))
		return
	}
	end := k.res.Stderr[max(0, len(k.res.Stderr)-adviceBytes):]
	for _, a := range allAdvice {
		for line := range strings.Lines(end) {
			lower := strings.ToLower(line)
			if !slices.ContainsFunc(a.words, func(w string) bool { return strings.Contains(lower, w) }) {
				continue
			}
			if k.res.Error = a.fact(k, line); k.res.Error != "" {
				return
			}
		}
	}
}

// adviseFile is for a script that looks for an input file where there is
// none, or in a place that another product has.
func (k *collector) adviseFile(line string) string {
	paths := strings.FieldsFunc(line, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("'\"`‘’“”:,;()<>[]", r)
	})
	for _, in := range k.p.Inputs {
		for _, p := range paths {
			if path.Base(p) == path.Base(in.Name) && !strings.HasSuffix(p, "input/"+in.Name) {
				return "input files stand in the directory input: this one is input/" + shown(in.Name)
			}
		}
	}
	if slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, "/mnt/") }) {
		return "input files stand in /sandbox/input, and files to give back go to /sandbox/output"
	}
	return ""
}

func (k *collector) adviseDisk(string) string {
	l := k.res.Limits
	return fmt.Sprintf("a sandbox has %.0f MiB on its disk and %.0f MiB in /tmp", l.Disk.Value/(1<<20), l.Tmp.Value/(1<<20))
}

func (k *collector) adviseProcesses(string) string {
	return fmt.Sprintf("a sandbox may have %.0f processes and threads at a time", k.res.Limits.PIDs.Value)
}

func (k *collector) adviseNetwork(string) string {
	if denied := k.res.NetworkDenied; len(denied) > 0 {
		return "the sandbox's network refused " + denied[0] + "; it reaches " + k.res.Limits.Network
	}
	if !strings.HasPrefix(k.res.Limits.Network, "none") {
		return ""
	}
	return "a sandbox has no network: nothing can be fetched or installed from inside; list_runtimes tells what is installed, and input_files takes data"
}

func (k *collector) adviseMissing(line string) string {
	if none := k.adviseNetwork(line); none != "" {
		return none
	}
	return "list_runtimes tells what is installed"
}

func (k *collector) adviseStdin(string) string {
	if k.p.Stdin != "" {
		return ""
	}
	return "the script reads its standard input, which is the argument stdin, and that is empty"
}

func (k *collector) adviseDisplay(string) string {
	return "a sandbox has no display: save pictures to files in /sandbox/output"
}
