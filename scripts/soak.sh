#!/usr/bin/env bash
# The long forms of the tests, one after the other, whatever the one before said; at the end one summary of all. The exit
# code is 1 if one has failed. Shorter forms, for a test of this script:
#
# SOAK_MINUTES  of simulation over fresh seeds, all kinds of faults together (10)
# SOAK_SHARE    one case in so many of each sweep (1: all)
# SOAK_PATHS    images of each small world (20000)
# SOAK_CACHE_MB size of the full cache (8192)
# SOAK_ORDERED  requests of each run whose backing is judged at every instant (100000)
# SOAK_LOSSES   instants for each policy at which the cache is thrown away below a database (30)
# SOAK_CUTS     crashes of the real binary, in SOAK_RUNS recorded runs (1200 in 12)
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked -p forebay
cargo build --release --locked -p forebay-stamp
cargo test --locked -p forebay-sim --test simulation --no-run
export FOREBAY=$PWD/target/release/forebay FOREBAY_STAMP=$PWD/target/release/forebay-stamp

said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=()

# step NAME COMMAND...: what it says goes to the terminal, and is kept for the summary.
step() {
    local name=$1 code
    shift
    echo "== $name"
    "$@" 2>&1 | tee -a "$said" && code=0 || code=$?
    case $code in
        0) ;;
        77) failed+=("$name (skipped)") ;;
        *) failed+=("$name") ;;
    esac
}

# Three kinds of faults share the time.
minutes=$(awk -v m="${SOAK_MINUTES:-10}" 'BEGIN { print m / 3 }')
step "simulation" env FOREBAY_SIM_MINUTES="$minutes" tests/simulation.sh
step "sweeps" env FOREBAY_SIM_SHARE="${SOAK_SHARE:-1}" \
    cargo test --locked -p forebay-sim --test simulation -- --nocapture sweeps
step "rare planted bugs" \
    cargo test --locked -p forebay-sim --test simulation -- --nocapture --ignored rare_mutations
step "small worlds" env FOREBAY_SIM_PATHS="${SOAK_PATHS:-20000}" \
    cargo test --locked -p forebay-sim --test simulation -- --nocapture small_worlds
step "a full cache" env FOREBAY_CACHE_MB="${SOAK_CACHE_MB:-8192}" tests/restart-8g.sh
step "order at every instant" env N="${SOAK_ORDERED:-100000}" tests/ordered.sh
step "groups at every instant" env N="${SOAK_ORDERED:-100000}" tests/journaled.sh
step "losses of the caches of a consistency group" env FOREBAY_INSTANTS="${SOAK_LOSSES:-30}" tests/consistency-group.sh
step "losses of the cache" env FOREBAY_INSTANTS="${SOAK_LOSSES:-30}" tests/lost-cache.sh
step "power cuts of the binary" env N="${SOAK_CUTS:-1200}" RUNS="${SOAK_RUNS:-12}" tests/power-cuts.sh

echo "== summary"
awk '
    match($0, /^ +[a-z].*  [0-9]+$/) {
        value = $NF
        name = $0
        sub(/  [0-9]+$/, "", name)
        sub(/^ +/, "", name)
        if (!(name in sum)) order[++count] = name
        sum[name] += value
    }
    END { for (i = 1; i <= count; i++) printf "%28s  %.0f\n", order[i], sum[order[i]] }
' "$said"
if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
printf '%28s  %s\n' "tests that failed" 0
echo "all is right ($SECONDS s)"
