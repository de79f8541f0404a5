# Every target is safe to repeat; what is already there is not fetched, built or packaged again.

# Where cargo puts its output, and where the models and tools that the scripts fetch are kept.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
MODELS     := $(or $(SKIPPY_MODEL_CACHE),$(CURDIR)/.cache/models)
BIN        := $(TARGET_DIR)/release/skippy-stage
CARGO_DENY := 0.20.2

# What `make serve` serves: the model in assets/, or `smollm2` or `gemma3`, which are fetched and packaged first.
MODEL ?= bundled
BUNDLED := assets/skippy-kjv-6m

# Passed on to `skippy-stage serve`: make serve ARGS="--bind 127.0.0.1:8000 --split 2,5"
ARGS ?=

# One profile for everything that includes the engine, so that llama.cpp is compiled once.
CARGO_FLAGS := --locked --release

.NOTPARALLEL:
.PHONY: help serve build test fmt clippy test-rust test-kernels test-doc test-python test-node test-models lint bench release setup setup-test clean-cache

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: build ## build, and serve the bundled model on 127.0.0.1:9337; MODEL=smollm2 serves a fetched one
ifeq ($(MODEL),bundled)
	@exec $(BIN) serve $(BUNDLED) $(ARGS)
else
	@scripts/package-model.sh $(MODEL) >/dev/null
	@exec $(BIN) serve .cache/packages/$(MODEL) $(ARGS)
endif

build: setup ## build the release binaries
	cargo build $(CARGO_FLAGS) --bins

test: fmt clippy test-rust test-kernels test-doc test-python test-node ## everything that must pass before a change lands

fmt: setup-test
	cargo fmt --check

clippy: setup-test
	cargo clippy $(CARGO_FLAGS) --all-targets -- -D warnings
	cargo clippy $(CARGO_FLAGS) --all-targets --no-default-features -- -D warnings
	cargo clippy $(CARGO_FLAGS) --all-targets --no-default-features --features otlp -- -D warnings

test-rust: setup-test test-models
	SKIPPY_TEST_MODELS=$(MODELS) cargo test $(CARGO_FLAGS)
	SKIPPY_KERNELS=portable cargo test $(CARGO_FLAGS) --test it -- dsa_parity dsa_mutations
	SKIPPY_KERNELS=portable cargo test $(CARGO_FLAGS) --lib -- ggml
	cargo test $(CARGO_FLAGS) --no-default-features --features otlp --lib -- otlp spans

test-kernels: setup-test ## the kernels under sanitizers, with every variant that this machine can run
	cargo build $(CARGO_FLAGS) --bins
	scripts/check-kernels.sh

test-doc: setup-test
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --no-deps

test-python: setup-test test-models ## the official OpenAI client and promtool against a real server process
	cargo build $(CARGO_FLAGS) --bins
	SKIPPY_BIN=$(BIN) scripts/test-python.sh

test-node: setup-test ## the official OpenAI client for JavaScript against a real server process
	cargo build $(CARGO_FLAGS) --bins
	SKIPPY_BIN=$(BIN) scripts/test-node.sh

test-models: ## fetch the real models that the tests use, checksums verified
	@scripts/fetch-model.sh smollm2 gemma3 >/dev/null

lint: setup-test ## licences, duplicates and sources of all dependencies; shell scripts
	@cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny@$(CARGO_DENY)
	cargo deny --all-features check licenses bans sources
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh .ci/run; \
	else echo "shellcheck is not installed: scripts not checked"; fi

bench: build test-models ## against llama.cpp used the plain way: serving, loading, attention; drafts on and off
	$(BIN) bench speculation $(BUNDLED) --prompts assets/prompts.json
	$(BIN) bench phase-e
	$(BIN) bench resolver
	@scripts/package-model.sh smollm2 >/dev/null
	$(BIN) bench decode .cache/packages/smollm2 --gguf $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
	$(BIN) bench load .cache/packages/smollm2 --gguf $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf --split 10,20

release: setup ## a folder in dist/ that runs on other machines; builds ggml for each kind of processor
	@scripts/release.sh

setup: ## install the build tools that are missing
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh test

clean-cache: ## forget fetched models, packages and tools
	rm -rf .cache
