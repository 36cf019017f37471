package test

import (
	"image"
	"image/png"
	"regexp"
	"strings"
	"testing"
)

// TestWorkbench: what images/Containerfile.workbench promises is in it and
// works, seen by scripts that run there. Nothing here needs a network, as
// scripts have none.
func TestWorkbench(t *testing.T) {
	s := startServerWith(t, []string{"workbench"}, "SANDBOX_IMAGE=workbench",
		"BELLJAR_MEMORY=4GiB", "BELLJAR_DISK=4GiB", "BELLJAR_PIDS=1024", "DEFAULT_TIMEOUT=300")
	for name, look := range map[string]func(*testing.T, *server){
		"programs":   workbenchPrograms,
		"libraries":  workbenchLibraries,
		"missing":    workbenchMissing,
		"compilers":  workbenchCompilers,
		"pip":        workbenchPip,
		"npm":        workbenchNPM,
		"documents":  workbenchDocuments,
		"film":       workbenchFilm,
		"figure":     workbenchFigure,
		"screenshot": workbenchScreenshot,
	} {
		t.Run(name, func(t *testing.T) { look(t, s) })
	}
}

func workbenchPrograms(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
for p in curl wget git ssh rg fd jq sqlite3 vim nano less tree zip unzip xz zstd tmux strace rsync htop \
	gcc g++ make cmake ninja pkg-config python3-config \
	python python3 pip node npm npx pnpm yarn bun tsc tsx playwright \
	ffmpeg convert gs dot pandoc pdftotext pdftoppm rsvg-convert weasyprint soffice chromium; do
	command -v $p >/dev/null || echo "no $p"
done
node --version; npm --version; python3 --version; node -p '"" + require("playwright").chromium.name()'
pnpm --version; yarn --version; bun --version; tsc --version; locale charmap`)
	want := regexp.MustCompile(`^v22\.\d+\.\d+\n\d+\.\d+\.\d+\nPython 3\.13\.\d+\nchromium\n` +
		`\d+\.\d+\.\d+\n\d+\.\d+\.\d+\n\d+\.\d+\.\d+\nVersion \d+\.\d+\.\d+\nUTF-8\n$`)
	if !want.MatchString(r.Stdout) {
		t.Errorf("%s", r)
	}
}

func workbenchLibraries(t *testing.T, s *server) {
	s.succeed(t, "python", `
import aiohttp, bs4, docx, fastapi, fitz, flask, html5lib, httpx, jinja2, lxml.etree, markdown, matplotlib.pyplot
import networkx, numpy, odf, openpyxl, pandas, PIL.Image, plotly, psutil, pydantic, pypdf, pytest, reportlab.pdfgen
import requests, rich, scipy.stats, seaborn, sklearn.linear_model, sqlalchemy, statsmodels.api, sympy, tabulate, tqdm
import uvicorn, websockets, xlrd, xlsxwriter, yaml
pandas.DataFrame({"a": [1]}).to_excel("a.xlsx"); assert pandas.read_excel("a.xlsx")["a"][0] == 1
numpy.ones((9, 9)) @ numpy.ones((9, 9)); assert "openblas" in open("/proc/self/maps").read()
# Two services of one's own.
import fastapi.testclient
app = fastapi.FastAPI(); app.get("/")(lambda: {"a": 1})
assert fastapi.testclient.TestClient(app).get("/").json() == {"a": 1}
app = flask.Flask("a"); app.get("/")(lambda: {"a": 1})
assert app.test_client().get("/").json == {"a": 1}`)
}

// workbenchMissing: what comes from PyPI is there, or it is said why not.
func workbenchMissing(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
said=$(cat /usr/share/belljar/missing/python.pypi 2>/dev/null)
for m in uv playwright pptx polars pyarrow duckdb pdfplumber; do
	python3 -c "import $m" 2>/dev/null && there=yes || there=no
	[[ $there = yes && -z $said || $there = no && $said == *PyPI*"${m/#pptx/python-pptx}=="* ]] || echo "$m: there: $there; said: $said"
done`)
	if r.Stdout != "" {
		t.Errorf("%s", r)
	}
	if said := strings.Join(s.runtimes(t)["python"].Missing, "\n"); said != "" && !strings.HasPrefix(said, "pypi: PyPI") {
		t.Errorf("missing are %s", said)
	}
}

func workbenchCompilers(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
set -e
cat >CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(a CXX)
add_executable(a a.cc)
EOF
echo '#include <iostream>
int main() { std::cout << "C++ " << __cplusplus / 100 << "\n"; }' >a.cc
cmake -G Ninja -B build . >/dev/null && cmake --build build >/dev/null && build/a
echo '#include <Python.h>
int main() { Py_Initialize(); return PyRun_SimpleString("print(\"embedded\", flush=True)"); }' >b.c
gcc b.c -o b $(python3-config --cflags --ldflags --embed) && ./b
echo 'const a: number = 6 * 7; console.log(a satisfies number)' >a.ts
tsx a.ts; bun a.ts; node a.ts 2>/dev/null || true
echo 'const a: string = 6 * 7; export { a }' >b.ts
tsc --noEmit b.ts | grep -c TS2322`)
	if !regexp.MustCompile(`^C\+\+ \d{4}\nembedded\n(42\n){2,3}1\n$`).MatchString(r.Stdout) {
		t.Errorf("%s", r)
	}
}

// workbenchPip: root's pip installs, without a word, from an index of its own,
// and also what takes the place of a package of Debian's.
func workbenchPip(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
set -e
for name in tiny requests; do
	mkdir -p index/$name
	python3 - $name index/$name <<'EOF'
import sys, zipfile
name, index = sys.argv[1:]
with zipfile.ZipFile(f"{index}/{name}-99.0-py3-none-any.whl", "w") as z:
    info = f"{name}-99.0.dist-info/"
    z.writestr(f"{name}/__init__.py", "answer = 42")
    z.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
    z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(info + "RECORD", f"{name}/__init__.py,,\n{info}METADATA,,\n{info}WHEEL,,\n{info}RECORD,,\n")
EOF
done
(cd index && exec python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1) &
until curl -sf http://127.0.0.1:8000/ >/dev/null; do kill -0 $!; done
export PIP_INDEX_URL=http://127.0.0.1:8000/
pip install --quiet tiny
python3 -c 'import tiny; print(tiny.answer)'
pip install --quiet --upgrade requests
python3 -c 'import requests; print(requests.answer)'
pip uninstall --quiet --yes requests
python3 -c 'import requests; print(requests.get("http://127.0.0.1:8000/").status_code)'
python3 -m venv env
env/bin/pip install --quiet tiny
env/bin/python -c 'import tiny; print(tiny.answer)'
/usr/bin/python3 -c 'import requests; print(requests.__version__.split(".")[0])'
kill $!`)
	if r.Stdout != "42\n42\n200\n42\n2\n" || r.Stderr != "" {
		t.Errorf("%s", r)
	}
}

func workbenchNPM(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
set -e
mkdir package other third
echo '{"name": "tiny", "version": "1.0.0", "bin": {"tiny": "cli.js"}, "main": "cli.js"}' >package/package.json
printf '#!/usr/bin/env node\nconsole.log(6 * 7)\n' >package/cli.js
tar czf tiny.tgz package
npm install --global ./tiny.tgz >/dev/null
tiny; cd other; node -e 'require("tiny")'
npm install ../tiny.tgz >/dev/null; ls; node_modules/.bin/tiny
cd ../third; echo '{"dependencies": {"tiny": "file:../tiny.tgz"}}' >package.json
yarn install --offline --silent; node -e 'require("tiny")'; rm -r node_modules
pnpm install --offline --silent; node -e 'require("tiny")'; rm -r node_modules
bun install --silent; node -e 'require("tiny")'`)
	if r.Stdout != "42\n42\nnode_modules\npackage-lock.json\npackage.json\n42\n42\n42\n42\n" {
		t.Errorf("%s", r)
	}
}

const chineseAndJapanese = "汉字 漢字かな 한글"

func workbenchDocuments(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
set -e
printf '# Title\n\n%s\n\n| a | b |\n|---|---|\n| 1 | 2 |\n' '`+chineseAndJapanese+`' >a.md
pandoc a.md -o a.docx
pandoc a.docx -t plain | sed -n 3p
soffice --headless --convert-to pdf a.docx >/dev/null 2>&1
pdftotext a.pdf - | grep -x '`+chineseAndJapanese+`'
pdffonts a.pdf | grep -o -m 1 NotoSansCJK
pandoc a.md -o b.pdf --pdf-engine=weasyprint -M title=b 2>/dev/null
pdftotext b.pdf - | grep -x '`+chineseAndJapanese+`'
pandoc a.md -s -o c.html -M title=c
chromium --headless --no-pdf-header-footer --print-to-pdf=c.pdf file://$PWD/c.html 2>/dev/null
pdftotext c.pdf - | grep -x '`+chineseAndJapanese+`'
convert -density 40 a.pdf a.png && file -b --mime-type a.png`)
	line := chineseAndJapanese + "\n"
	if want := line + line + "NotoSansCJK\n" + line + line + "image/png\n"; r.Stdout != want {
		t.Errorf("%s, want %q", r, want)
	}
}

func workbenchFilm(t *testing.T, s *server) {
	r := s.succeed(t, "bash", `
set -e
ffmpeg -v error -f lavfi -i testsrc=size=320x240:rate=25:duration=2 -f lavfi -i sine=duration=2 -pix_fmt yuv420p a.mp4
ffprobe -v error -show_entries stream=codec_name,nb_frames -of csv=p=0 a.mp4
convert -size 100x50 xc:red -resize 50% a.webp && identify -format '%wx%h %m\n' a.webp`)
	if !regexp.MustCompile(`^h264,50\naac,\d+\n50x25 WEBP\n$`).MatchString(r.Stdout) {
		t.Errorf("%s", r)
	}
}

// workbenchFigure: Matplotlib warns of each character that no font has.
func workbenchFigure(t *testing.T, s *server) {
	s.succeed(t, "python", `
import warnings; warnings.simplefilter("error")
import matplotlib.pyplot as plt
plt.plot([-1, 1]); plt.title("`+chineseAndJapanese+`"); plt.savefig("output/a.png")`)
}

// workbenchScreenshot: Playwright starts the browser without options and draws
// a page of a local server, with fonts for its characters.
func workbenchScreenshot(t *testing.T, s *server) {
	const page = `<!DOCTYPE html><meta charset="utf-8"><style>
body { background: #fff } p { font-size: 40px } span { display: inline-block; width: 60px; text-align: center }</style>
<p>` + chineseAndJapanese + ` 😀</p><p><span id=a>漢</span><span id=b>字</span><span id=c>한</span></p>
<button onclick="document.getElementById('said').textContent = 6 * 7">?</button><p id=said></p>`
	for _, tt := range []struct{ name, script string }{{"node", `
const { chromium } = require('playwright');
(async () => {
  const browser = await chromium.launch();
  const page = await browser.newPage({ viewport: { width: 640, height: 400 } });
  await page.goto('http://127.0.0.1:8000/page.html');
  await page.getByRole('button').click();
  await page.screenshot({ path: 'output/page.png' });
  for (const id of ['a', 'b', 'c']) await page.locator('#' + id).screenshot({ path: 'output/' + id + '.png' });
  console.log(await page.textContent('#said'));
  await browser.close();
})();`}, {"python3", `
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    browser = p.chromium.launch()
    page = browser.new_page(viewport={"width": 640, "height": 400})
    page.goto("http://127.0.0.1:8000/page.html")
    page.get_by_role("button").click()
    page.screenshot(path="output/page.png")
    for id in "abc": page.locator("#" + id).screenshot(path=f"output/{id}.png")
    print(page.text_content("#said"))
    browser.close()`}} {
		if tt.name == "python3" && !s.run(t, "python", "import playwright").Success {
			continue // workbenchMissing sees that the image says why
		}
		r := s.succeed(t, "bash", `
(cd input && exec python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1) &
until curl -sf http://127.0.0.1:8000/ >/dev/null; do kill -0 $! || exit; done
`+tt.name+` input/script; status=$?; kill $!; exit $status`, inputs(map[string]string{"page.html": page, "script": tt.script}))
		if r.Stdout != "42\n" {
			t.Errorf("%s: %s", tt.name, r)
		}
		shot, err := png.Decode(strings.NewReader(r.file(t, "page.png").data(t)))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if shot.Bounds() != image.Rect(0, 0, 640, 400) || colours([]image.Image{shot}) < 100 { // the emoji alone has that many
			t.Errorf("%s: %v with %d colours", tt.name, shot.Bounds(), colours([]image.Image{shot}))
		}
		// Characters without a font all look alike.
		a, b, c := r.file(t, "a.png").SHA256, r.file(t, "b.png").SHA256, r.file(t, "c.png").SHA256
		if a == b || b == c || a == c {
			t.Errorf("%s: different characters look the same", tt.name)
		}
	}
}
