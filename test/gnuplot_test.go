package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// demos are scripts of Debian's gnuplot-doc. They want no mouse, and do not
// measure time. Some fail, as there is no mouse or no such feature.
var demos = [40]string{
	"airfoil", "binary", "boxplot", "callargs", "candlesticks", "circles", "contours", "dashtypes",
	"datastrings", "dgrid3d", "ellipse", "errorbars", "fillbetween", "finance", "fit", "heatmaps",
	"hidden", "histograms", "image", "key", "layout", "margins", "mouselabels", "multiplt",
	"nonlinear1", "param", "polar", "rgb_variable", "scatter", "simple", "singulr", "smooth",
	"spotlight", "stats", "steps", "stringvar", "timedat", "using", "vector", "world",
}

// TestGnuplotDemos: scripts that know nothing of Belljar end as they do bare,
// and what they draw comes back.
func TestGnuplotDemos(t *testing.T) {
	s := scienceServer(t)
	root := imageRoot(t, s.state, "science")
	examples := gnuplotExamples(t, root)
	dir := t.TempDir()
	for _, name := range demos {
		layDemo(t, examples, filepath.Join(dir, name), name)
	}
	// Bare is gnuplot alone, in the same files and in the same places.
	out := inImage(t, root, dir, `
		for demo in "$dir"/*; do
			mount --bind "$demo" "$root/sandbox"
			code=0
			enter timeout 60 gnuplot main.gp </dev/null >/dev/null 2>&1 || code=$?
			umount "$root/sandbox"
			echo "${demo##*/} $code"
		done`)
	bare := map[string]int{}
	for line := range strings.Lines(out) {
		name, code, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(code)
		if err != nil {
			t.Fatalf("the bare runs say %q", line)
		}
		bare[name] = n
	}
	var failing int
	for _, name := range demos {
		want, ok := bare[name]
		if !ok {
			t.Fatalf("%s was not run bare", name)
		}
		if want != 0 {
			failing++
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := s.run(t, "gnuplot", load(t, filepath.Join(dir, name, "main.gp")), inputs(readTree(t, filepath.Join(dir, name, "input"))))
			if r.ReturnCode != want || r.TimedOut {
				t.Errorf("bare it ends with %d: %s", want, r)
			}
			if want == 0 {
				r.file(t, "plot.png")
			}
		})
	}
	// Else the comparison would not tell failure from success.
	if failing == 0 || failing == len(demos) {
		t.Errorf("%d of the demos fail bare", failing)
	}
}

// layDemo lays a demo script and the files that it names as a run has them.
func layDemo(t *testing.T, examples, dir, name string) {
	t.Helper()
	for _, sub := range []string{"input", "output"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := load(t, filepath.Join(examples, name+".dem"))
	put(t, filepath.Join(dir, "main.gp"), "cd 'input'\n"+script)
	// A file that is named may name others.
	seen := map[string]bool{}
	for texts := []string{script}; len(texts) > 0; texts = texts[1:] {
		for _, word := range fileName.FindAllString(texts[0], -1) {
			path := filepath.Join(examples, word)
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || seen[word] {
				continue
			}
			seen[word] = true
			data := load(t, path)
			put(t, filepath.Join(dir, "input", word), data)
			texts = append(texts, data)
		}
	}
}

var fileName = regexp.MustCompile(`[\w.+-]+`)

// load reads a file that must be there, to its last byte.
func load(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func put(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readTree reads the files of a directory.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, path := range glob(filepath.Join(dir, "*")) {
		files[filepath.Base(path)] = load(t, path)
	}
	return files
}

// gnuplotExamples returns the directory of the examples in the gnuplot-doc of
// the image's Debian, which it fetches with the image's apt and keys unless an
// earlier run of the tests has.
func gnuplotExamples(t *testing.T, root string) string {
	t.Helper()
	version := installed(t, root, "gnuplot-nox")
	dir := filepath.Join(cacheDir, "gnuplot-doc-"+version)
	lock, err := lockFile(dir+".lock", unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := os.Stat(dir); err != nil {
		part := dir + ".part"
		if err := os.RemoveAll(part); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(part, 0o755); err != nil {
			t.Fatal(err)
		}
		inImage(t, root, part, `
			mount --bind "$dir" "$root/sandbox"
			cat /etc/resolv.conf >"$root/etc/resolv.conf"
			enter apt-get -q update >&2
			enter apt-get -q download gnuplot-doc=`+version+` >&2
			enter sh -c 'dpkg-deb -x gnuplot-doc_*.deb .'`)
		if err := os.Rename(part, dir); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "usr/share/doc/gnuplot/examples")
}

// installed is the version of a Debian package in an image.
func installed(t *testing.T, root, name string) string {
	t.Helper()
	form := regexp.MustCompile(`(?m)^Package: ` + regexp.QuoteMeta(name) + `\n(?:.+\n)*Version: (.+)$`)
	m := form.FindStringSubmatch(read(filepath.Join(root, "var/lib/dpkg/status")))
	if m == nil {
		t.Fatalf("%s is not installed in the image", name)
	}
	return m[1]
}

// imageRoot is where an image's files are.
func imageRoot(t *testing.T, state, name string) string {
	t.Helper()
	store := filepath.Join(state, "images")
	digest, _, err := findImage(store, name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(store, "rootfs", strings.TrimPrefix(digest, "sha256:"))
}

// inImage runs a script of the host's shell that has $dir, and at $root the
// image's files below a layer of its own, where `enter COMMAND` runs a command
// in /sandbox as a run would. It returns what the script printed.
func inImage(t *testing.T, image, dir, script string) string {
	t.Helper()
	const head = `set -eu
		enter() {
			chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
				HOME=/root USER=root LOGNAME=root SHELL=/bin/sh LANG=C.UTF-8 TERM=dumb \
				sh -c 'cd /sandbox && exec "$@"' sh "$@"
		}
		image=$1 dir=$2 layer=$3 root=$3/root
		mount -t tmpfs layer "$layer"
		mkdir "$layer/upper" "$layer/work" "$root"
		mount -t overlay -o "lowerdir=$image,upperdir=$layer/upper,workdir=$layer/work" image "$root"
		mount --rbind /dev "$root/dev"
		mount -t proc proc "$root/proc"
		mount -t tmpfs tmp "$root/tmp"
		mkdir -p "$root/sandbox"
		`
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"sh", "-c", head+script, "sh", image, dir, t.TempDir())
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("in the image's files: %w\n%s%s", err, out, stderr.String()))
	}
	return string(out)
}
