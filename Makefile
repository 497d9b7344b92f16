.PHONY: audit nightly sbom unsafe test check unit bench power chaos chaos-asynchronous chaos-controls chaos-build install

# Points at which a test ends or delays the server, and a clock that it sets: not in what users run.
TESTABLE = oncegate-server/crash-points

# Everything: installs what is missing, checks, and runs every test beside private servers.
test: install check
	scripts/with-postgres --in-memory cargo test --workspace --features $(TESTABLE) -- --include-ignored
	$(MAKE) chaos MINUTES=2
	$(MAKE) chaos-controls

# What needs no running service.
check: install
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features $(TESTABLE) -- -D warnings
	cargo clippy -p oncegate-server -- -D warnings
	cargo clippy -p oncegate-server --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo deny --log-level error check bans licenses sources
	scripts/unsafe-crates >/dev/null

# Known weaknesses of the crates and the npm modules that are used. Needs the network.
audit: install
	cargo deny --log-level error check advisories
	npm audit --prefix examples/workers/node --omit=dev
	npm audit --prefix crates/oncegate-server/tests/browser --omit=dev
	npm audit --prefix bench/peers --omit=dev

# The crates of the server, as a bill of materials (CycloneDX).
sbom:
	scripts/sbom target/oncegate.cdx.json

# Lists the crates of the server that use `unsafe`. Fails if docs/unsafe.md has no review of one.
unsafe:
	scripts/unsafe-crates

# Only what runs anywhere; names what it leaves out.
unit:
	cargo test --workspace --features $(TESTABLE)

# Power cuts on SQLite, with their figures.
CUTS = 1000
power:
	ONCEGATE_TEST_CUTS=$(CUTS) cargo test -p oncegate-sqlite --test power -- --nocapture power_cut

# Two servers on one store under load and faults, and a check of all that they answer. Each store has its own MINUTES.
#   make chaos MINUTES=60              make chaos STORE=postgres SEED=17
STORE ?= both
MINUTES ?= 2
CHAOS = target/debug/oncegate-lab chaos --server target/debug/oncegate

chaos: chaos-build
	$(CHAOS) --store $(STORE) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Asynchronous standbys are promoted, and commits are lost: the servers must tell of it each time.
chaos-asynchronous: chaos-build
	$(CHAOS) --store postgres --asynchronous --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Promises that are broken on purpose: each must be found within two minutes.
chaos-controls: chaos-build
	scripts/chaos-controls

# What does not fit into `make test`: an hour of chaos on each store, promotions of asynchronous standbys, and 1,000 power cuts.
nightly: install
	$(MAKE) chaos MINUTES=60
	$(MAKE) chaos-asynchronous MINUTES=10
	$(MAKE) chaos-controls
	$(MAKE) power

# All targets, as the tests are built: then little is left to build.
chaos-build:
	cargo build --workspace --all-targets --features $(TESTABLE)

# Durable decisions per second, beside their limits, on this folder's disk.
bench: install
	cargo build --profile dist -p oncegate-server
	scripts/install-peers target/peers
	scripts/with-postgres sh -c \
		'./target/dist/oncegate bench --folder target --peers target/peers --postgres "$$ONCEGATE_TEST_POSTGRES"'

install:
	scripts/install
