package test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestOperatorsRuntime: a runtime of the operator's own, in an image of its
// own, needs a table and the files beside it. It starts early like the
// built-in ones, which a script cannot tell.
func TestOperatorsRuntime(t *testing.T) {
	const script = `
const fs = require('fs');
console.log(process.argv.slice(1).join(' '), require.main === module, __filename);
console.log(Object.keys(process.env).filter((k) => k.startsWith('BELLJAR')));
console.log(fs.readFileSync(0, 'utf8').trim(), fs.readFileSync('input/a.txt', 'utf8'));
fs.writeFileSync('output/b.txt', String(6 * 7));
process.on('exit', () => console.log('bye'));
process.exitCode = 3;
`
	const want = "/sandbox/main.js true /sandbox/main.js\n[]\nhello from a file\nbye\n"
	for name, settings := range map[string][]string{"warm": nil, "cold": {"BELLJAR_POOL_MEMORY=0"}} {
		t.Run(name, func(t *testing.T) {
			s := startServerWith(t, []string{"node"}, append(settings, "SANDBOX_IMAGE=node", "BELLJAR_RUNTIMES="+exampleTable("node"))...)
			if name == "warm" && !eventually(func() bool { return s.waiting(t, "node") }) {
				t.Fatal("no sandbox waits for a script")
			}
			r := s.run(t, "node", script, inputs(map[string]string{"a.txt": "from a file"}), args{"stdin": "hello\n"})
			if r.Stdout != want || r.ReturnCode != 3 || r.Stderr != "" || len(r.Files) != 1 || r.Files[0].Text == nil || *r.Files[0].Text != "42" {
				t.Errorf("%s", r)
			}
			if hits := s.pool(t, "hits_total", "node"); hits > 0 != (name == "warm") {
				t.Errorf("%v runs found a waiting sandbox", hits)
			}
			r = s.run(t, "node", "\nthrow new Error('on line 2')")
			if r.Success || r.ReturnCode != 1 || !strings.Contains(r.Stderr, "/sandbox/main.js:2") {
				t.Errorf("%s", r)
			}
		})
	}
}

// metric reads one of the server's metrics; 0 if there is none of that name.
func (s *server) metric(t testing.TB, name string) (value float64) {
	t.Helper()
	res, err := http.Get(s.base() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %s, %v", res.Status, err)
	}
	if _, rest, ok := strings.Cut("\n"+string(text), "\n"+name+" "); ok {
		if _, err := fmt.Sscan(rest, &value); err != nil {
			t.Fatal(err)
		}
	}
	return value
}
