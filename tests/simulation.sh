#!/usr/bin/env bash
# The engine in its simulated world, over fresh seeds: FOREBAY_SIM_MINUTES of each kind of faults.
source "$(dirname "$0")/harness.sh"

MINUTES=${FOREBAY_SIM_MINUTES:-0.2}

# counted FILE FIGURE: what a run of the simulator says of a figure.
counted() { awk -v figure="$2" 'sub("^ *" figure "  *", "") { print; exit }' "$1"; }

for faults in none reported all; do
    first=$(($(between 1 1000000000) * 1000))
    "$FOREBAY" sim --seed "$first" --minutes "$MINUTES" --faults "$faults" --out "$DIR/plans" >summary 2>&1 || {
        cat summary "$DIR"/plans/* 2>/dev/null
        fail "seeds from $first on, faults $faults: a promise is broken"
    }
    sed 's/^/     /' summary
    grep -q '^no promise is broken' summary || fail "seeds from $first on say nothing"
    for figure in seeds events requests "bytes written by clients" "sectors checked" "process deaths" "power cuts of the cache"; do
        (($(counted summary "$figure") > 0)) || fail "seeds from $first on, faults $faults: no $figure"
    done
    # Three seeds at once do what they do one by one: the figures are counted.
    "$FOREBAY" sim --seed "$first" --seeds 3 --faults "$faults" >three || fail "seed $first does not hold twice"
    for seed in "$first" $((first + 1)) $((first + 2)); do
        "$FOREBAY" sim --seed "$seed" --faults "$faults" >"one.$((seed - first))" || fail "seed $seed does not hold twice"
    done
    for figure in seeds events requests "bytes written by clients" "sectors checked" "process deaths"; do
        sum=$(($(counted one.0 "$figure") + $(counted one.1 "$figure") + $(counted one.2 "$figure")))
        [[ $(counted three "$figure") == "$sum" ]] || fail "three seeds from $first on have $(counted three "$figure") $figure, one by one $sum"
    done
    pass "$(counted summary seeds) seeds from $first on, faults $faults, $(counted summary events) events"
done

printf 'forebay-sim plan 1\nnonsense\n' >bad.plan
refused 2 "line 2 of the plan" "$FOREBAY" sim --plan bad.plan
for plan in "$ROOT"/crates/lab/sim/plans/*.plan; do
    "$FOREBAY" sim --plan "$plan" >replayed || fail "$plan breaks a promise again"
    (($(counted replayed events) > 0)) || fail "$plan was not replayed"
done
pass "kept plans replay ($SECONDS s)"
