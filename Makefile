# The commands people type; CI calls the same ones. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help setup nextest build demo demo-seeds test lint golden peers bench bench-instructions bench-gpu test-gpu sim mutants faults soak connections snapshot fuzz fuzz-seeds garbage asan ucx bench-ucx rdma

help: ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: ## install what building needs: libtorch into .libtorch
	@scripts/libtorch.sh

# The whole workspace: then dependencies have the features that the tests want, and are built once for both commands.
build: setup ## build tq-run and tq-cli (the profile of the tests: dependencies optimised; the arithmetic is libtorch's)
	$(CARGO) build --workspace --bins

demo: build ## the main job: train the digits policy on-policy and draw its curve (seed 1)
	scripts/demo.sh on_policy 1

demo-seeds: build ## the main job with seeds 1, 2 and 3, and the mean of their rewards
	for seed in 1 2 3; do scripts/demo.sh on_policy $$seed; done
	scripts/demo-summary.sh on_policy

nextest:
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-nextest

test: setup nextest lint ## what CI runs: formatting, clippy, tests, doc tests, the quick end-to-end run
	$(CARGO) nextest run --workspace --no-fail-fast
	$(CARGO) test --workspace --doc --quiet

lint: setup ## formatting and clippy with warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

golden: setup nextest ## peers' recorded values (folder TQ_GOLDEN, default ../shared/golden): run and skipped per file
	@$(CARGO) nextest run --workspace -E 'binary(/^golden/)' --success-output immediate --no-fail-fast

bench: setup ## benchmarks; exits 1 on a missed budget unless docs/known-gaps.md lists it
	$(CARGO) build --release -p tq-benches
	@status=0; for name in plane near fields small flight catalog; do $(CARGO) run --quiet --release -p tq-benches --bin $$name || status=1; done; exit $$status

bench-instructions: ## instructions of the store's process for one small request (callgrind; exits 77 without valgrind)
	$(CARGO) run --quiet --release -p tq-benches --bin instructions

# Without a GPU it says so and exits with 77. It needs no libtorch, and its binary runs wherever there is a driver.
bench-gpu: ## copies between a store and a CUDA device beside bare copies of pinned memory; exits 77 without a device
	$(CARGO) build --release -p tq-benches --bin gpu
	@$(CARGO) run --quiet --release -p tq-benches --bin gpu

test-gpu: nextest ## what needs a CUDA device: every dtype there and back, copies whose cells go meanwhile, 1,000 segments
	$(CARGO) nextest run -p tq-cuda --run-ignored all --no-fail-fast --success-output immediate

sim: setup nextest ## 10,000 seeds each: schedules through the catalog, workers and faults around a served store; 20,000 histories beside a model
	TQ_SIM_SCHEDULES=10000 $(CARGO) nextest run --workspace -E 'package(transferqueue) and test(simulation)' --success-output immediate
	PROPTEST_CASES=20000 PROPTEST_RNG_SEED=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') \
	  $(CARGO) nextest run --workspace -E 'binary(catalog_model)' --success-output immediate

fuzz: ## fuzz every decoder of bytes from outside, FUZZ_SECONDS (600) each, under AddressSanitizer (docs/fuzzing.md)
	scripts/fuzz.sh

fuzz-seeds: ## write real messages into fuzz/corpus
	$(CARGO) test -p transferqueue --lib -- fuzzing::tests::write_seeds --ignored

garbage: setup nextest ## ten kinds of garbage on every port while runs go on: they end as runs without
	$(CARGO) nextest run --workspace -E 'binary(wire_garbage) | binary(garbage)' --success-output immediate -j 1

# The spine has one module with `unsafe` (unit/arena; a lint denies it elsewhere), which the target `arena` drives; and what it has
# Arrow do with bytes from outside is looked at.
asan: ## decode the whole fuzz corpus once under AddressSanitizer
	scripts/fuzz.sh --replay

# Its own packages and features: the other commands do not build UCX. Both packages in every command, so that what they depend on has
# one set of features and is built once.
UCX := -p tq-ucx -p transferqueue --features tq-ucx/ucx,transferqueue/ucx
ucx: nextest ## build UCX (gcc and make, two minutes) and test what is made of it: two processes, shared memory and TCP
	$(CARGO) clippy $(UCX) --all-targets -- -D warnings
	$(CARGO) nextest run $(UCX) -E 'package(tq-ucx) | test(ucx) | binary(ucx) | binary(ucx_descriptors)' --no-fail-fast
	$(CARGO) test $(UCX) --doc --quiet

# Neither InfiniBand nor KVM is needed: an emulated machine (Debian's kernel, installed nowhere) has Soft-RoCE. As root it installs its needs.
rdma: ## test verbs, and UCX over RDMA, in an emulated machine, with a link that is cut in mid-read; exits 77 where that cannot be had
	scripts/rdma.sh

bench-ucx: ## gets through UCX beside UCX alone; exits 1 on a missed budget unless docs/known-gaps.md lists it
	$(CARGO) run --quiet --release -p tq-benches --features ucx --bin ucx

connections: setup nextest ## 8,192 connections that write at once, and 100,000 clients that come and go
	$(CARGO) nextest run --workspace -E 'binary(wire_many)' --run-ignored only --success-output immediate -j 1

faults: setup nextest ## a run whose processes are killed (200 times, the store among them) and stopped at random
	$(CARGO) nextest run --workspace -E 'binary(faults)' --run-ignored only --success-output immediate

soak: setup nextest ## a run of an hour (TQ_SOAK_SECONDS) that must grow in nothing: memory, descriptors, leases, files
	$(CARGO) nextest run --workspace -E 'binary(soak)' --run-ignored only --no-capture

snapshot: setup nextest ## a snapshot of 1 GiB, restored and recovered, byte by byte
	$(CARGO) nextest run --workspace -E 'binary(large)' --run-ignored only --success-output immediate

mutants: ## one shard of the mutation run of the catalog (SHARD=k/n, 0/36 unless given); exits 1 below 85 % caught
	scripts/mutants.sh $(SHARD)

peers: setup ## beside peers, installed into target/peers: decoder blocks against transformers, the store against TransferQueue, Ray, Flight, Mooncake
	@status=0; for peer in transformers store; do scripts/peers-$$peer.sh || status=1; done; exit $$status
