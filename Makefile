# Covey's build. `make run` gives a working chat, `make test` passes the tests; the rest is for people who work on it.
# Needs Go 1.26 and a C compiler. Everything else is a Go module.

SHELL := /bin/bash
# With nvcc the program has its CUDA engine (tag cuda), otherwise it runs on the CPU only. Include and library paths go through
# the environment variables that Go's build cache does not know, so that SQLite is not compiled a second time (a minute).
CUDA_CACHE := .cache/cuda
NVCC := $(firstword $(wildcard $(CUDA_CACHE)/nvidia/cu13/bin/nvcc) $(shell command -v nvcc))
ifneq ($(NVCC),)
CUDA_HOME := $(abspath $(dir $(NVCC))/..)
CUDA_TAG := ,cuda
export C_INCLUDE_PATH := $(CURDIR)/cuda/libcuda/include:$(CUDA_HOME)/include
export LIBRARY_PATH := $(CURDIR)/$(CUDA_CACHE)/lib
endif
export GOFLAGS := $(GOFLAGS) -tags=sqlite_fts5$(CUDA_TAG)
export CGO_ENABLED := 1
# What kernels are compiled for: one architecture for daily work, all in a release. Others run from PTX.
CUDA_ARCHS ?= sm_90a
CUDA_RELEASE := sm_80 sm_86 sm_89 sm_90a sm_100 sm_120

GOROOT  := $(shell go env GOROOT)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATIC  := web/static
CLIENT  := $(wildcard web/client/*.go web/client/*/*.go web/wire/*.go)

.PHONY: run build release cuda cuda-toolchain sanitize asan tsan test-arm wasm test test-long check generate generated bench clean

run: build ## build, start the daemon with the bundled model and print the link
	bin/covey serve

build: wasm cuda ## bin/covey, one file with the client inside
	go build -ldflags="-s -w -X main.version=$(VERSION)" -o bin/covey ./cmd/covey

release: ## bin/covey with kernels for every architecture
	$(MAKE) build CUDA_ARCHS="$(CUDA_RELEASE)"

cuda: ## kernels and the stand-in for the driver's library, if there is nvcc
ifneq ($(NVCC),)
	cuda/build.sh $(CUDA_HOME) $(CUDA_CACHE)/lib $(CUDA_ARCHS)
else
	@echo "no nvcc: building without CUDA; 'make cuda-toolchain' installs it for this folder"
endif

# NVIDIA's compiler as Python wheels (75 MB), for building only; nothing of it is committed or linked.
CUDA_WHEELS := nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.88 nvidia-cuda-cccl==13.0.85
cuda-toolchain: ## nvcc 13.0 into .cache/cuda
	@mkdir -p .cache/wheels $(CUDA_CACHE)
	test "$$(ls .cache/wheels/nvidia_*.whl 2>/dev/null | wc -l)" -ge 5 || python3 -m pip download -q --no-deps --only-binary=:all: -d .cache/wheels $(CUDA_WHEELS)
	for wheel in .cache/wheels/nvidia_*.whl; do python3 -m zipfile -e $$wheel $(CUDA_CACHE); done
	chmod +x $(CUDA_CACHE)/nvidia/cu13/bin/* $(CUDA_CACHE)/nvidia/cu13/nvvm/bin/*
	$(CUDA_CACHE)/nvidia/cu13/bin/nvcc --version | tail -2

sanitize: cuda ## the device's conformance suite under compute-sanitizer; needs a device
	cuda/sanitize.sh $(CUDA_HOME) $(CUDA_CACHE)/lib $(CUDA_ARCHS)

# The C code under AddressSanitizer and UndefinedBehaviorSanitizer in one build: calls instead of code at each access, and no
# marking of scopes, compile ten times as fast where kernels are unrolled. Programs are freed by finalizers, which do not run at
# exit: leaks are not looked for.
asan: ## the CPU engine's suite with its C code under AddressSanitizer and UndefinedBehaviorSanitizer
	ASAN_OPTIONS=detect_leaks=0 CGO_LDFLAGS=-fsanitize=undefined \
	CGO_CFLAGS="-fsanitize=undefined -fno-sanitize-recover=undefined -fno-sanitize-address-use-after-scope --param asan-instrumentation-with-call-threshold=0" \
	go test -asan -short -timeout 60m ./engine/canon

tsan: ## the CPU engine's suite with its C code under ThreadSanitizer, which wants addresses that are not scattered
	CGO_CFLAGS=-fsanitize=thread CGO_LDFLAGS=-fsanitize=thread setarch -R go test -short -timeout 60m ./engine/canon

# Emulation is some five times slower, so wide products and the longest sequences are left out.
test-arm: ## the CPU engine's suite for 64-bit Arm, emulated; needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user
	GOARCH=arm64 CC=aarch64-linux-gnu-gcc go test -short -timeout 25m -exec 'qemu-aarch64 -L /usr/aarch64-linux-gnu' -skip 'TestProductsEqualTheRule/21,(32|576|2880)|TestAttentionEqualsTheRule/3x64' ./engine/canon

wasm: $(STATIC)/app.wasm ## the browser client, compressed; prints its size

$(STATIC)/app.wasm: $(CLIENT) go.mod
	GOOS=js GOARCH=wasm CGO_ENABLED=0 go build -ldflags="-s -w" -trimpath -o $@ ./web/client
	cp $(GOROOT)/lib/wasm/wasm_exec.js $(STATIC)/wasm_exec.js
	go run ./web/precompress $(STATIC)/app.wasm $(STATIC)/wasm_exec.js

test: wasm cuda check ## vet, staticcheck, generated files, then every test under the race detector
	go test -race -timeout 20m ./...

test-long: wasm cuda asan tsan ## the long forms of the suites (full sweeps, 100 kills, 100 prompts), and the C code's sanitizers
	COVEY_LONG=1 go test -timeout 120m ./...

check: generated cuda
	go vet ./...
ifneq ($(CUDA_TAG),)
	GOFLAGS="$(subst $(CUDA_TAG),,$(GOFLAGS))" go vet ./cuda ./cmd/covey
endif
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
