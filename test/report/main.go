// Report reads the output of "go test -json" and prints what a person wants
// of it: a line per package, the output of what failed, why tests were
// skipped, and a count. It fails if a test failed or a package came to no end,
// or if a test was skipped while CI is set.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// event is a line of test2json, see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// slow begins the lines that tests print while they do what takes minutes.
const slow = "building the image "

func main() {
	output := map[string][]string{} // by package and test
	blamed := map[string]bool{}     // packages of which a test failed
	begun := map[string]bool{}      // packages that have no result yet
	var passed, failed, skipped int
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text()) // such as a compiler's
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			output[key] = append(output[key], e.Output)
			if e.Action == "build-output" || strings.HasPrefix(e.Output, slow) {
				fmt.Print(e.Output)
			}
			continue
		case "start":
			begun[e.Package] = true
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		if e.Test == "" {
			delete(begun, e.Package)
			if e.Action == "skip" {
				continue // a package without tests
			}
			fmt.Printf("%-5s %-40s %6.1f s\n", e.Action, e.Package, e.Elapsed)
			if e.Action == "fail" && !blamed[e.Package] { // it did not build, say
				failed++
				fmt.Print(strings.Join(output[key], ""))
			}
			continue
		}
		switch e.Action {
		case "pass":
			passed++
		case "skip":
			skipped++
			fmt.Printf("skipped %s: %s", key, strings.Join(output[key], "  "))
		case "fail":
			failed++
			blamed[e.Package] = true
			fmt.Printf("FAILED %s\n%s", key, strings.Join(output[key], ""))
		}
		delete(output, key)
	}
	for name := range begun { // go test itself was ended
		failed++
		fmt.Printf("FAILED %s: it came to no end\n", name)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 || lines.Err() != nil || passed == 0 || skipped > 0 && os.Getenv("CI") != "" {
		os.Exit(1)
	}
}
