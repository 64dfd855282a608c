#!/usr/bin/env bash
# All that CI runs. Every executable tests/*.sh is a test: it ends with exit code 0 (passed), 77 (skipped, after saying
# why) or another (failed). With CI=true a skip is a failure. FOREBAY is the binary that scripts test.
set -euo pipefail
cd "$(dirname "$0")/.."

# It takes minutes of a processor, for which other work leaves time. Whoever needs it waits for it, and says why if it fails.
nice -n 19 scripts/versitygw.sh target/versitygw >/dev/null 2>&1 &

scripts/lint.sh

echo "== cargo test"
cargo test --locked --workspace

cargo build --locked --quiet --workspace --bins
export FOREBAY="$PWD/target/debug/forebay"

# As above.
nice -n 19 scripts/wiredtiger.sh target/wiredtiger >/dev/null 2>&1 &

passed=0 failed=0 skipped=0
for script in tests/*.sh; do
    [[ -x $script ]] || continue
    echo "== $script"
    code=0
    "$script" || code=$?
    case $code in
        0) passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)); echo "FAILED: $script (exit code $code)" ;;
    esac
done

if [[ ${CI:-} == true && $skipped -gt 0 ]]; then
    echo "a test was skipped, and in CI none may be" >&2
    failed=$((failed + skipped)) skipped=0
fi
if ((passed + failed + skipped)); then
    echo "scripts: $passed passed, $failed failed, $skipped skipped"
fi
((failed == 0))
