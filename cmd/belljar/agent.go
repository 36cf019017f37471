package main

import (
	"embed"
	"errors"
	"io/fs"
)

// agentFiles holds the agent's program if this build was made by `make
// build`. Without it everything compiles, and opening the engine says so.
//
//go:embed agent
var agentFiles embed.FS

func agentProgram() ([]byte, error) {
	program, err := agentFiles.ReadFile("agent/belljar-agent")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this belljar has no agent in it: build it with `make build`")
	}
	return program, err
}
