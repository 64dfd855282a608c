# One command each for what people and CI do here. `make help` lists them.

CARGO ?= cargo
PREFIX ?= /usr/local

export SOAK_MINUTES ?= 10

.PHONY: help setup build up down test cheats mutants bench soak histories kernel lint fmt install clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: ## Install what building and running need (Debian and Ubuntu)
	@scripts/setup.sh run

build: ## Build the release binary, target/release/forebay
	$(CARGO) build --release --locked -p forebay

up: ## From nothing to a mounted, cached volume under ./forebay-data
	@scripts/up.sh

down: ## Unmount it and stop the daemon; the data stays
	@scripts/down.sh

test: ## All that CI runs: lint, unit and integration tests, the scripts in tests/
	@scripts/setup.sh test
	@scripts/test.sh

cheats: ## Products that cheat, and the scripts of tests/ that must notice (half an hour)
	@bash tests/cheats.sh

mutants: ## Break the code in every small way; tests must notice (hours). SHARD=k/n does the k-th of n parts, CRATES="policy format" those crates
	@scripts/mutants.sh

bench: build ## Run the benchmarks at full length (hours; admission-*, priority and distributed need root); reports in ./forebay-bench
	target/release/forebay bench volume --out forebay-bench
	target/release/forebay bench engine --out forebay-bench
	target/release/forebay bench cliffs --out forebay-bench
	target/release/forebay bench policies --out forebay-bench
	target/release/forebay bench admission-postgresql --out forebay-bench
	target/release/forebay bench admission-redis --out forebay-bench
	target/release/forebay bench priority --out forebay-bench
	target/release/forebay bench distributed --out forebay-bench

soak: ## The long forms of the tests: SOAK_MINUTES of simulation, all sweeps, a full cache of 8 GiB, 30 lost caches a policy, over 1,000 power cuts
	@scripts/soak.sh

histories: ## The histories of 21,000 simulated worlds are the kept ones; UPDATE_HISTORIES=1 keeps those found
	FOREBAY_ALL_HISTORIES=1 $(CARGO) test --locked -p forebay-sim --test simulation histories

kernel: build ## The tracker on another kernel, and on device-mapper, in a virtual machine
	@scripts/other-kernel.sh $(DEB)

lint: ## Formatting, clippy, documentation; warnings are errors
	@scripts/lint.sh

fmt: ## Format the code
	$(CARGO) fmt

install: build ## Install binary, manual pages, completions, systemd unit under PREFIX
	@scripts/install.sh "$(PREFIX)"

clean: ## Remove what was built (not ./forebay-data)
	$(CARGO) clean
