#!/usr/bin/env bash
# Formatting, clippy and documentation. Warnings are errors; all three are run, whatever the first one says.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
echo "== format"
if ! cargo fmt --all -- --check -l; then
    echo "these files are not formatted; run: make fmt"
    failed=1
fi
echo "== clippy"
cargo clippy --locked --workspace --all-targets --quiet -- -D warnings || failed=1
echo "== documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items --quiet || failed=1
exit $failed
