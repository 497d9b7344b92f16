.PHONY: test check unit bench install

# Everything: installs what is missing, checks, and runs every test beside private servers.
test: install check
	scripts/with-postgres cargo test --workspace -- --include-ignored

# What needs no running service.
check: install
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo deny --log-level error check bans licenses sources

# Only what runs anywhere; names what it leaves out.
unit:
	cargo test --workspace

# Durable decisions per second, beside their limits, on this folder's disk.
bench: install
	cargo build --release
	scripts/with-postgres sh -c './target/release/oncegate bench --folder target --postgres "$$ONCEGATE_TEST_POSTGRES"'

install:
	scripts/install
