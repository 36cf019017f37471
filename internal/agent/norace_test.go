//go:build !race

package agent

// raceDetector makes the tests that move or compute much do less of it.
const raceDetector = false
