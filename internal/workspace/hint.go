package workspace

import "strings"

// maxHinted bounds the lines of a file that are compared for a hint.
const maxHinted = 50_000

// notFound is the error for a text that does not stand in a file. It names
// what comes nearest, since most often it is the spaces that differ.
func notFound(path, data, old string) error {
	lines := strings.Split(data, "\n")
	if len(lines) > maxHinted {
		lines = lines[:maxHinted]
	}
	if first, n := spacedOtherwise(lines, old); n > 0 {
		return refuse("old does not stand in %s; with other spaces it does, at lines %d to %d, which are:\n%s", show(path), first+1, first+n, clipText(strings.ToValidUTF8(strings.Join(lines[first:first+n], "\n"), "\uFFFD"), 1000))
	}
	if i := nearest(lines, old); i >= 0 {
		return refuse("old does not stand in %s; the nearest to its first line is line %d:\n%s\nread_file shows the text as it is", show(path), i+1, clipText(strings.ToValidUTF8(lines[i], "\uFFFD"), 300))
	}
	return refuse("old does not stand in %s, nor anything like it; read_file shows the text as it is", show(path))
}

// spacedOtherwise finds the lines that are old but for their spaces.
func spacedOtherwise(lines []string, old string) (first, n int) {
	want := strings.Split(strings.Trim(old, "\n"), "\n")
	for i := range want {
		want[i] = words(want[i])
	}
	if len(want) == 1 && want[0] == "" {
		return 0, 0
	}
	for i := 0; i+len(want) <= len(lines); i++ {
		same := true
		for j := 0; same && j < len(want); j++ {
			switch line := words(lines[i+j]); {
			case line == want[j]:
			// The first and the last line may be parts of lines.
			case j == 0 && len(want) == 1:
				same = strings.Contains(line, want[j])
			case j == 0:
				same = strings.HasSuffix(line, want[j])
			case j == len(want)-1:
				same = strings.HasPrefix(line, want[j])
			default:
				same = false
			}
		}
		if same {
			return i, len(want)
		}
	}
	return 0, 0
}

// words is a line with single spaces.
func words(line string) string { return strings.Join(strings.Fields(line), " ") }

// nearest returns the line that is most like the first one of old that says
// something, or -1 if none is.
func nearest(lines []string, old string) int {
	want := ""
	for l := range strings.SplitSeq(old, "\n") {
		if want = words(l); want != "" {
			break
		}
	}
	best, at := 0.5, -1
	pairs := pairsOf(clipText(want, 500))
	for i, l := range lines {
		if like := alike(pairs, pairsOf(clipText(words(l), 500))); like > best {
			best, at = like, i
		}
	}
	return at
}

// pairsOf counts the pairs of neighbouring bytes.
func pairsOf(s string) map[[2]byte]int {
	pairs := make(map[[2]byte]int, len(s))
	for i := 0; i+1 < len(s); i++ {
		pairs[[2]byte{s[i], s[i+1]}]++
	}
	return pairs
}

// alike is the Dice coefficient of two counts of pairs, 0 to 1.
func alike(a, b map[[2]byte]int) float64 {
	var sum, both int
	for p, n := range a {
		sum += n
		both += min(n, b[p])
	}
	for _, n := range b {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	return 2 * float64(both) / float64(sum)
}
