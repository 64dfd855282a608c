#!/usr/bin/env bash
# Formatting, clippy and documentation. Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== format"
cargo fmt --all --check
echo "== clippy"
cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
echo "== documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items --quiet
