package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fact is a line about the machine or a version.
type fact struct{ name, value string }

// machine describes what the figures were taken on.
func machine() []fact {
	kernel := "unknown"
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	return []fact{
		{"Date", time.Now().UTC().Format("2006-01-02 15:04 UTC")},
		{"CPU", field("/proc/cpuinfo", "model name") + fmt.Sprintf(", %d cores", runtime.NumCPU())},
		{"RAM", memTotal()},
		{"Kernel", kernel},
		{"Control groups", cgroupVersion()},
	}
}

// versions are those of the programs that take part.
func versions(ctx context.Context, belljar string, s *stage) []fact {
	facts := []fact{
		{"Belljar", version(belljar, "version")},
		{"OCI runtime", version(s.warm.runtime, "--version")},
	}
	for _, t := range s.tools {
		facts = append(facts, fact{t.name, t.version(ctx)})
	}
	return append(facts,
		fact{"Python", s.chroot.version("python3", "--version")},
		fact{"R", s.chroot.version("Rscript", "--version")},
		fact{"TeX", s.chroot.version("pdflatex", "--version")},
	)
}

// version is the first line that a command prints.
func version(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// version is the client's, and the daemon's if there is one.
func (t *tool) version(ctx context.Context) string {
	format := "{{.Client.Version}}"
	if t.name == "docker" {
		format = "client {{.Client.Version}}, daemon {{.Server.Version}}"
	}
	said, err := t.try(ctx, "version", "--format", format)
	if err != nil {
		return "unknown"
	}
	return said
}

// field is the first value of a name in a file of lines "name: value".
func field(file, name string) string {
	data, _ := os.ReadFile(file)
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func memTotal() string {
	var kib float64
	if _, err := fmt.Sscanf(field("/proc/meminfo", "MemTotal"), "%f kB", &kib); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f GiB", kib/(1<<20))
}

func cgroupVersion() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "version 2"
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "version 1, with an empty version 2 beside it"
	}
	return "version 1"
}
