#!/usr/bin/env bash
# The engine in its simulated world, over fresh seeds: FOREBAY_SIM_MINUTES of each kind of faults.
source "$(dirname "$0")/harness.sh"

MINUTES=${FOREBAY_SIM_MINUTES:-0.2}

for faults in none reported all; do
    first=$(($(between 1 1000000000) * 1000))
    "$FOREBAY" sim --seed "$first" --minutes "$MINUTES" --faults "$faults" --out "$DIR/plans" >summary 2>&1 || {
        cat summary "$DIR"/plans/* 2>/dev/null
        fail "seeds from $first on, faults $faults: a promise is broken"
    }
    sed 's/^/     /' summary
    plan=$("$FOREBAY" sim --seed "$first" --faults "$faults") || fail "seed $first does not hold twice"
    grep -q '^no promise is broken' <<<"$plan" || fail "seed $first says nothing"
    pass "$(awk '$1 == "seeds" { print $2 }' summary) seeds from $first on, faults $faults"
done

printf 'forebay-sim plan 1\nnonsense\n' >bad.plan
refused 2 "line 2 of the plan" "$FOREBAY" sim --plan bad.plan
for plan in "$ROOT"/crates/sim/plans/*.plan; do
    "$FOREBAY" sim --plan "$plan" >/dev/null || fail "$plan breaks a promise again"
done
pass "kept plans replay ($SECONDS s)"
