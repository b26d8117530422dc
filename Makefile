# Covey's build. `make run` gives a working chat, `make test` passes the tests; the rest is for people who work on it.
# Needs Go 1.26 and a C compiler. Everything else is a Go module.

SHELL := /bin/bash
# One tag set for build, vet and test: another set would compile SQLite a second time (about a minute).
export GOFLAGS := $(GOFLAGS) -tags=sqlite_fts5
export CGO_ENABLED := 1

GOROOT  := $(shell go env GOROOT)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATIC  := web/static
CLIENT  := $(wildcard web/client/*.go web/client/*/*.go web/wire/*.go)

.PHONY: run build wasm test test-long check generate generated bench clean

run: build ## build, start the daemon with the bundled model and print the link
	bin/covey serve

build: wasm ## bin/covey, one file with the client inside
	go build -ldflags="-s -w -X main.version=$(VERSION)" -o bin/covey ./cmd/covey

wasm: $(STATIC)/app.wasm ## the browser client, compressed; prints its size

$(STATIC)/app.wasm: $(CLIENT) go.mod
	GOOS=js GOARCH=wasm CGO_ENABLED=0 go build -ldflags="-s -w" -trimpath -o $@ ./web/client
	cp $(GOROOT)/lib/wasm/wasm_exec.js $(STATIC)/wasm_exec.js
	go run ./web/precompress $(STATIC)/app.wasm $(STATIC)/wasm_exec.js

test: wasm check ## vet, staticcheck, generated files, then every test under the race detector
	go test -race -timeout 20m ./...

test-long: wasm ## the long forms of the suites (full sweeps, 100 kills, 100 prompts)
	COVEY_LONG=1 go test -timeout 120m ./...

check: generated
	go vet ./...
	GOOS=js GOARCH=wasm CGO_ENABLED=0 go vet ./web/client/... ./web/wire/...
	go tool staticcheck ./...
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt needed:"; gofmt -l $$(git ls-files '*.go'); exit 1; }

generate: ## templ pages to Go
	go tool templ generate -path web

generated: ## generated files equal what their sources give
	@before=$$(cat $$(git ls-files 'web/*_templ.go') /dev/null | sha256sum); \
	go tool templ generate -path web >/dev/null; \
	after=$$(cat $$(git ls-files 'web/*_templ.go') /dev/null | sha256sum); \
	test "$$before" = "$$after" || { echo "templ output was stale: commit what 'make generate' wrote"; exit 1; }

bench: build ## the figures of docs/benchmarks.md for this machine
	docs/benchmark.sh

clean:
	rm -rf bin artefacts $(STATIC)/app.wasm* $(STATIC)/wasm_exec.js*
