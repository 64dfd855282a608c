#!/usr/bin/env bash
# Breaks the code in every small way that cargo-mutants knows, one at a time, and wants tests to notice: first those of the crate itself,
# then, for what they miss, those of the engine and the simulator. Hours on one machine, and no part of CI.
#
# CRATES  which crates (policy format control engine)
# SHARD   k/n: of n parts of the mutants the k-th, from 0 (0/1)
# OUT     a directory for what cargo-mutants tells of each (target/mutants)
#
# What no test can notice is listed with its reason in .cargo/mutants.toml. The exit code is 1 if a crate catches less than 95 % of
# the rest that compiles.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=27.1.0
CRATES=${CRATES:-policy format control engine}
SHARD=${SHARD:-0/1}
OUT=${OUT:-target/mutants}
GOAL_PERCENT=95

if [[ $(cargo mutants --version 2>/dev/null) != "cargo-mutants $VERSION" ]]; then
    cargo install --locked --version "$VERSION" cargo-mutants
fi

# mutate CRATE FLAGS... -- TEST_FLAGS...: ends well although tests missed some.
mutate() {
    local code=0
    cargo mutants -p "forebay-$1" --shard "$SHARD" --output "$OUT/$1" "${@:2}" || code=$?
    # 2: some are missed; 3: some never end, which is noticed.
    ((code == 0 || code == 2 || code == 3)) || exit "$code"
}

lines() { cat "$1" 2>/dev/null | wc -l; }

failed=0
summary=()
for crate in $CRATES; do
    found=$OUT/$crate/mutants.out
    rm -rf "${OUT:?}/$crate"
    mkdir -p "$OUT/$crate"
    mutate "$crate" --test-package "forebay-$crate"
    alone=$(lines "$found/missed.txt")
    viable=$((alone + $(lines "$found/caught.txt") + $(lines "$found/timeout.txt")))
    # The daemon alone uses the control socket.
    if ((alone > 0)) && [[ $crate != control ]]; then
        mutate "$crate" --iterate --test-package forebay-engine --test-package forebay-sim
    fi
    missed=$(lines "$found/missed.txt")
    summary+=("$crate: $((viable - missed)) of $viable noticed ($alone missed by the crate's own tests, $missed by all)")
    cat "$found/missed.txt"
    (((viable - missed) * 100 >= viable * GOAL_PERCENT)) || failed=1
done
printf '%s\n' "${summary[@]}"
((failed == 0)) || echo "less than $GOAL_PERCENT % of a crate's mutants are noticed"
exit "$failed"
