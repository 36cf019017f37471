package image

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestSteps(t *testing.T) {
	text := `ARG BASE=debian
ARG TAG=trixie
FROM --platform=$TARGETPLATFORM $BASE:${TAG}-slim
ARG TAG
ARG N=1
ARG TARGETOS
ENV A=$TAG B="x y" C=${N:+set}
ENV A=next OLD=$A
LABEL v="$A" w=$UNSET
WORKDIR /srv
WORKDIR app/$TAG
USER ada:staff
RUN echo "$A"
RUN ["/bin/echo", "$A"]
SHELL ["/bin/bash", "-c"]
RUN a && \
    b
COPY --chown=ada --chmod=755 src/$TAG /dst/
COPY x* .
COPY <<EOT y
value $A '$N'
EOT
COPY <<'EOT' z
value $A
EOT
CMD ["x"]
`
	pl, err := parsePlan([]byte(text), map[string]string{"N": "7", "UNKNOWN": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if pl.from != "debian:trixie-slim" {
		t.Errorf("base is %q", pl.from)
	}
	steps, config, err := pl.steps(Config{Env: []string{"PATH=/base", "A=base"}, Labels: map[string]string{"base": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	wantConfig := Config{
		Env:     []string{"PATH=/base", "B=x y", "C=set", "A=next", "OLD=trixie"},
		Workdir: "/srv/app/trixie", User: "ada:staff",
		Labels: map[string]string{"base": "b", "v": "next", "w": ""},
	}
	if diff := cmp.Diff(wantConfig, config); diff != "" {
		t.Error(diff)
	}
	env := []string{"A=next", "B=x y", "C=set", "N=7", "OLD=trixie", "PATH=/base", "TAG=trixie", "TARGETOS=linux"}
	in := func(dir, user string, s buildStep) buildStep {
		s.Env, s.Dir, s.User = env, dir, user
		return s
	}
	mode := uint32(0o755)
	app := "/srv/app/trixie"
	want := []buildStep{
		in("/srv", "", buildStep{Mkdir: "/srv"}),
		in(app, "", buildStep{Mkdir: app}),
		in(app, "ada:staff", buildStep{Run: []string{"/bin/sh", "-c", `echo "$A"`}}),
		in(app, "ada:staff", buildStep{Run: []string{"/bin/echo", "$A"}}),
		in(app, "ada:staff", buildStep{Run: []string{"/bin/bash", "-c", "a &&     b"}}),
		in(app, "ada:staff", buildStep{Copy: &copyStep{Sources: []string{"src/trixie"}, Dest: "/dst/", Chown: "ada", Chmod: &mode}}),
		in(app, "ada:staff", buildStep{Copy: &copyStep{Sources: []string{"x*"}, Dest: app + "/"}}),
		in(app, "ada:staff", buildStep{Copy: &copyStep{Dest: app + "/y", Inline: []inlineFile{{"EOT", "value next '7'\n"}}}}),
		in(app, "ada:staff", buildStep{Copy: &copyStep{Dest: app + "/z", Inline: []inlineFile{{"EOT", "value $A\n"}}}}),
	}
	if diff := cmp.Diff(want, steps, cmpopts.IgnoreUnexported(buildStep{})); diff != "" {
		t.Error(diff)
	}
	if steps[4].line != 16 || steps[4].text != "RUN a && b" {
		t.Errorf("step is %q at line %d", steps[4].text, steps[4].line)
	}
	warnings := strings.Join(pl.warnings, "\n")
	for _, want := range []string{"CMD has no meaning", "line 26", "UNKNOWN is not used"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no warning with %q in\n%s", want, warnings)
		}
	}
}

func TestHeredocs(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"script", "RUN <<EOF\na\nb $x\nEOF", "a\nb $x\n"},
		{"chomped", "RUN <<-EOF\n\ta\n\tb\nEOF", "a\nb\n"},
		{"input", "RUN cat <<A && cat <<B\na\nA\nb\nB", "cat <<A && cat <<B\na\nA\nb\nB\n"},
		{"interpreter", "RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF",
			"f=$(mktemp) || exit\ntrap 'rm -f \"$f\"' EXIT\ncat >\"$f\" <<'BELLJAR_END'\n#!/usr/bin/env python3\nprint(1)\nBELLJAR_END\n/usr/bin/env python3 \"$f\"\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pl, err := parsePlan([]byte("FROM x\n"+tt.text+"\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			steps, _, err := pl.steps(Config{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"/bin/sh", "-c", tt.want}, steps[0].Run); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Each of these must be refused by name and line, before anything runs.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"RUN x", nil},
		{"FROM x\nFETCH a b", []string{"line 2", "FETCH"}},
		{"FROM x\n\nRUNN x", []string{"line 3", "RUNN"}},
		{"FROM x\nADD a /", []string{"line 2", "ADD", "COPY"}},
		{"FROM x\nONBUILD RUN a", []string{"line 2", "ONBUILD"}},
		{"FROM x AS y\nRUN a\nFROM z", []string{"line 3", "stages"}},
		{"FROM x\nCOPY --from=y a /", []string{"line 2", "--from=y"}},
		{"FROM x\nCOPY --parents a /", []string{"line 2", "--parents"}},
		{"FROM x\nCOPY --exclude=z a /", []string{"line 2", "--exclude"}},
		{"FROM x\nCOPY a b /c", []string{"line 2", "/c must end in /"}},
		{"FROM x\nCOPY a", []string{"line 2", "COPY"}},
		{"FROM x\nRUN --mount=type=cache,target=/x a", []string{"line 2", "--mount"}},
		{"FROM x\nRUN --network=none a", []string{"line 2", "--network"}},
		{"FROM --platform=linux/s390x x", []string{"line 1", "s390x"}},
		{"FROM $NOTHING", nil},
		{"FROM x\nENV ${A", nil},
	} {
		pl, err := parsePlan([]byte(tt.text), nil)
		if err == nil {
			_, _, err = pl.steps(Config{})
		}
		if err == nil {
			t.Errorf("accepted:\n%s", tt.text)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: no %q in: %v", tt.text, want, err)
			}
		}
	}
}

func TestRefusedWhenExpanded(t *testing.T) {
	for _, text := range []string{"COPY --chmod=$M a /", "COPY --chmod=77777 a /", "ENV A=${B:?unset}"} {
		pl, err := parsePlan([]byte("FROM x\n"+text), nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, _, err = pl.steps(Config{Env: []string{"M=u+x"}}); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte("ARG A=1\nFROM x:$A\nENV B=$A C=\"d e\"\nRUN <<E\nx\nE\nCOPY --chmod=1 <<E a b/\n$B\nE\n"), "A", "2")
	f.Add([]byte("# escape=`\nFROM x\nWORKDIR ../../..\nRUN [\"a\"]\nUSER $A\nLABEL a=b\nSHELL []\nRUN x"), "A", "")
	f.Add([]byte("FROM x\nRUN [\"\"]\nCOPY [\"a b\", \"/\"]\nCOPY . ${A%%x}"), "", "")
	f.Fuzz(func(t *testing.T, text []byte, key, value string) {
		pl, err := parsePlan(text, map[string]string{key: value})
		if err != nil {
			return
		}
		steps, config, err := pl.steps(Config{})
		if err != nil {
			return
		}
		if !strings.HasPrefix(config.Workdir, "/") {
			t.Errorf("working directory %q", config.Workdir)
		}
		for _, s := range steps {
			switch {
			case s.Copy != nil:
				if !strings.HasPrefix(s.Copy.Dest, "/") || strings.Contains("/"+s.Copy.Dest+"/", "/../") {
					t.Errorf("destination %q", s.Copy.Dest)
				}
			case s.Mkdir != "":
				if !strings.HasPrefix(s.Mkdir, "/") {
					t.Errorf("directory %q", s.Mkdir)
				}
			default:
				if len(s.Run) == 0 || s.Run[0] == "" {
					t.Errorf("command %q", s.Run)
				}
			}
		}
	})
}
