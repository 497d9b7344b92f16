.PHONY: test check unit bench install

# Points at which a test ends or delays the server, and a clock that it sets: not in what users run.
TESTABLE = oncegate-server/crash-points

# Everything: installs what is missing, checks, and runs every test beside private servers.
test: install check
	scripts/with-postgres cargo test --workspace --features $(TESTABLE) -- --include-ignored

# What needs no running service.
check: install
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features $(TESTABLE) -- -D warnings
	cargo clippy -p oncegate-server -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo deny --log-level error check bans licenses sources

# Only what runs anywhere; names what it leaves out.
unit:
	cargo test --workspace --features $(TESTABLE)

# Durable decisions per second, beside their limits, on this folder's disk.
bench: install
	cargo build --release
	scripts/install-peers target/peers
	scripts/with-postgres sh -c \
		'./target/release/oncegate bench --folder target --peers target/peers --postgres "$$ONCEGATE_TEST_POSTGRES"'

install:
	scripts/install
