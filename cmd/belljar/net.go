package main

import (
	"fmt"
	"os"

	"belljar/internal/egress"
)

// netCommand names the command that is the process with the sandboxes'
// networks. The server starts it; it has no place in the help. It comes before
// all settings: its environment is empty, and what it parses is hostile.
const netCommand = "net"

func runNet(args []string) int {
	if err := egress.Main(build(), args); err != nil {
		fmt.Fprintln(os.Stderr, "belljar net:", err)
		return 1
	}
	return 0
}
