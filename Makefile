# make build   bin/belljar, one static file
# make demo    run a plotting script through a real server, installing what is missing
# make check   every check and test, installing what they need
# make bench   figures, beside the bare interpreter, docker and podman: docs/benchmarks.md
# make clean   remove what the others made here

# Under sudo the PATH often lacks Go.
export PATH := $(PATH):/usr/local/go/bin:/usr/lib/go/bin:/usr/sbin:/sbin
export CGO_ENABLED ?= 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: build demo check bench clean

build: go
	go build -trimpath -ldflags="-s -w" -o cmd/belljar/agent/belljar-agent ./cmd/belljar-agent
	go build -trimpath -ldflags="$(LDFLAGS)" -o bin/belljar ./cmd/belljar

demo: runtime build
	go build -o bin/demo ./examples/demo
	scripts/as-root bin/demo bin/belljar

check: go
	scripts/check

bench: runtime build
	scripts/bench

.PHONY: go runtime
go:
	@scripts/need-go

runtime: go
	@scripts/need crun:crun mkfs.ext4:e2fsprogs

clean:
	rm -rf bin cmd/belljar/agent/belljar-agent node_modules
