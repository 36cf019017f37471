package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "belljar/"

// pkg is what the import rules are about.
type pkg struct {
	ImportPath   string
	Doc          string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	GoFiles      []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json"}, args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// TestImportRules keeps the rules that ARCHITECTURE.md states.
func TestImportRules(t *testing.T) {
	all := list(t, "./...")
	if len(all) < 10 {
		t.Fatalf("only %d packages listed", len(all))
	}
	// may names, for a package, the only internal packages that it imports.
	may := map[string][]string{
		"internal/engine":             {},
		"internal/access":             {},
		"internal/agent":              {},
		"internal/lang":               {},
		"internal/image":              {},
		"internal/artifact":           {},
		"internal/artifact/indextest": {"internal/artifact"},
		"internal/web":                {"internal/artifact"},
		"internal/sqlite":             {"internal/artifact", "internal/job"},
		"internal/egress":             {"internal/engine"},
		"internal/engine/native":      {"internal/engine", "internal/agent", "internal/image", "internal/egress"},
		"internal/engine/enginetest":  {"internal/engine", "internal/agent"},
		"internal/sandbox":            {"internal/engine", "internal/agent", "internal/artifact", "internal/lang", "internal/access"},
		"internal/workspace":          {"internal/sandbox", "internal/engine", "internal/agent", "internal/artifact", "internal/access"},
		"internal/job":                {"internal/sandbox", "internal/workspace", "internal/engine", "internal/agent", "internal/access"},
		"internal/job/jobtest":        {"internal/job"},
		"internal/mcpserver":          {"internal/job", "internal/workspace", "internal/sandbox", "internal/access", "internal/engine", "internal/lang"},
		"internal/control":            {"internal/job", "internal/workspace", "internal/sandbox", "internal/agent", "internal/access", "internal/image"},
		"cmd/belljar-agent":           {"internal/agent"},
	}
	for _, p := range all {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			imported, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if strings.HasPrefix(imported, "cmd/") {
				t.Errorf("%s imports %s: nothing imports cmd", name, imported)
			}
			if allowed, bound := may[name]; bound && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s: it may import %v", name, imported, allowed)
			}
			if imported == "internal/sqlite" && name != "cmd/belljar" {
				t.Errorf("%s imports %s: only cmd/belljar and tests do", name, imported)
			}
			if strings.HasPrefix(imported, "internal/engine/") && imported != "internal/engine/enginetest" && name != "cmd/belljar" {
				t.Errorf("%s imports %s: only cmd/belljar and tests import an engine", name, imported)
			}
		}
	}
}

func TestPackageDocs(t *testing.T) {
	banned := []string{"util", "utils", "common", "types", "models", "errors", "config", "helpers"}
	for _, p := range list(t, "./...") {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if slices.Contains(banned, path.Base(p.ImportPath)) {
			t.Errorf("%s: a package is named for what it is about", p.ImportPath)
		}
	}
}

// TestAgentIsSmall keeps the agent, which sits in every sandbox, to the
// standard library, x/sys and x/image.
func TestAgentIsSmall(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/belljar-agent") {
		ok := p.Standard || strings.HasPrefix(p.ImportPath, module) ||
			strings.HasPrefix(p.ImportPath, "golang.org/x/sys/") || strings.HasPrefix(p.ImportPath, "golang.org/x/image/")
		if !ok {
			t.Errorf("the agent links %s", p.ImportPath)
		}
	}
}
