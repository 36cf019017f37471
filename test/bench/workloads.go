package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"belljar/internal/lang"
)

// workload is a script that all contestants run.
type workload struct {
	name, title string
	language    string // the runtime's name
	source      string // the script's file below workloads

	// file is the command for a script in the file runtime.Script(). If nil,
	// it is the runtime's own: LaTeX has no interpreter but its driver.
	file []string
	// stdin is the command for a script on standard input, as a user of docker
	// or podman would give it.
	stdin []string
	// prints is what it prints, makes the file that it writes.
	prints, makes string
	// share is what part of the rounds it gets, 1/share: what takes long gets
	// fewer.
	share int

	script  string
	runtime lang.Runtime
}

//go:embed workloads
var sources embed.FS

// loaded is the workload that throughput is measured with.
const loaded = "print"

var all = []workload{
	{
		name: loaded, title: "`print(1)`", language: "python", source: "print.py", prints: "1\n", share: 1,
		file: []string{"/usr/bin/python3", "main.py"}, stdin: []string{"python3", "-"},
	}, {
		name: "plot", title: "a plot with NumPy, pandas and Matplotlib", language: "python", source: "plot.py", makes: "plot.png", share: 5,
		file: []string{"/usr/bin/python3", "main.py"}, stdin: []string{"python3", "-"},
	}, {
		name: "ggplot", title: "a plot with R and ggplot2", language: "r", source: "ggplot.R", makes: "plot.png", share: 5,
		file: []string{"/usr/bin/Rscript", "main.R"}, stdin: []string{"Rscript", "-"},
	}, {
		name: "latex", title: "a LaTeX document of two pages", language: "latex", source: "article.tex", makes: "main.pdf", share: 10,
		stdin: []string{"sh", "-c", "cd $(mktemp -d) && cat >main.tex && exec latexmk -pdf -interaction=nonstopmode main.tex"},
	},
}

// choose returns the workloads of the given names, or all, ready to be run.
func choose(names []string) ([]workload, error) {
	table, err := lang.Load()
	if err != nil {
		return nil, err
	}
	var chosen []workload
	for _, w := range all {
		if len(names) > 0 && !slices.Contains(names, w.name) {
			continue
		}
		script, err := sources.ReadFile("workloads/" + w.source)
		if err != nil {
			return nil, err
		}
		w.script = string(script)
		var ok bool
		if w.runtime, ok = table.Get(w.language); !ok {
			return nil, fmt.Errorf("the workload %s needs the runtime %s, which is not in the table", w.name, w.language)
		}
		if w.file == nil {
			w.file = w.runtime.Command()
			w.file[0] = "/bin/" + w.file[0] // no PATH leads into a chroot
		}
		chosen = append(chosen, w)
	}
	if len(chosen) < len(names) {
		return nil, fmt.Errorf("unknown workload among %s: want print, plot, ggplot or latex", strings.Join(names, ","))
	}
	return chosen, nil
}

// lane is the part of the pool that is meant for the script.
func (w workload) lane() lane {
	switch {
	case !w.runtime.Warm:
		return lane{w.language, "bare"}
	case w.runtime.Preloads(w.script):
		return lane{w.language, "full"}
	}
	return lane{w.language, "light"}
}

// rounds is how many runs are timed, and how many go before those.
func (w workload) rounds(n int) (timed, before int) {
	timed = max(n/w.share, 1)
	return timed, max(min(3, timed)/w.share, 1)
}

// printed checks what a command printed.
func (w workload) printed(out string) error {
	if w.prints != "" && out != w.prints {
		return fmt.Errorf("%s printed %q, want %q", w.name, out, w.prints)
	}
	return nil
}
