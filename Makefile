# Everything that people and CI do with this repository. ARGS goes to the program behind a target:
#   make test ARGS='late_finisher'    make demo ARGS=--json    make bench ARGS='--only drain'

CARGO ?= cargo
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix test-upgrade lint fmt-check clippy policy docs bench bench-smoke

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the demo: a small business, a killed worker, and nothing lost
	@scripts/ensure.sh server
	@$(CARGO) run --locked -p outhaul-cli --bin outhaul -- demo $(ARGS)

test: ## Run all tests on a private PostgreSQL server
	@scripts/ensure.sh server pooler
	@scripts/test.sh $(ARGS)

test-matrix: ## Run the tests of the library on PostgreSQL 14 to 18 (MAJORS="14 18" for some)
	@scripts/ensure.sh server pooler
	@scripts/test-matrix.sh $(ARGS)

test-upgrade: ## Let the release before and this one work one queue while the schema is migrated (minutes)
	@scripts/ensure.sh server
	@scripts/test-upgrade.sh $(ARGS)

lint: fmt-check clippy policy ## Check format, lints, licences, duplicates and texts

fmt-check:
	@$(CARGO) fmt --all --check

clippy:
	@$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings

policy:
	@for script in scripts/*.sh .ci/run; do bash -n $$script || exit 1; done
	@$(CARGO) run --quiet --locked -p xtask -- dependencies
	@$(CARGO) run --quiet --locked -p xtask -- texts

docs: ## Build the documentation of the crates, with warnings as errors
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --lib --no-deps --all-features

bench: ## Measure everything against plain SQL (up to 40 minutes, a quiet machine)
	@scripts/ensure.sh server
	@$(CARGO) run --profile measure --locked -p lab --bin bench -- $(ARGS)

bench-smoke: ## Show in under 3 minutes that every measurement runs
	@scripts/ensure.sh server
	@$(CARGO) run --profile measure --locked -p lab --bin bench -- --smoke $(ARGS)
