#!/usr/bin/env bash
# Two volumes of one consistency group, each with a daemon of its own, and a writer that writes to either of them only after its write
# before was acknowledged (tests/clients/dependent_writes.py). At a random instant both daemons are killed and both caches are
# lost. `forebay recover` over both backings must bring them to one point: everything up to some write is there, and nothing later.
# The same must be found broken when each volume goes its own way. Refusals are looked at, and rounds that a killed member cut short.
#
# FOREBAY_INSTANTS is the number of instants, 4 by default.
source "$(dirname "$0")/harness.sh"

INSTANTS=${FOREBAY_INSTANTS:-4}
CLIENT=$ROOT/tests/clients/dependent_writes.py
need python3

# start NAME FLAGS...: the daemon of volume NAME.
start() {
    local name=$1
    shift
    "$FOREBAY" serve --name "$name" --cache "$name.cache" --backing "$name.img" --nbd "unix:$DIR/$name.nbd" \
        --control "$DIR/$name.sock" --write-policy journaled --group-age 100ms "$@" >"$name.ready" 2>>"$LOG" &
    PIDS[$name]=$!
    OWN=("${PIDS[@]}")
    await "$PATIENCE" grep -q ready "$name.ready" || fail "$name does not start"
}

# make_pairs: two new volumes.
make_pairs() {
    local name
    for name in data log; do
        rm -f "$name".*
        truncate -s 8M "$name.img"
        "$FOREBAY" format "$name.cache" --size 16M --backing "$name.img" >/dev/null
    done
}

# stop NAME: its daemon is killed.
stop() {
    kill_process "${PIDS[$1]}"
    unset "PIDS[$1]"
    OWN=("${PIDS[@]}")
}

common_point() {
    "$FOREBAY" status "$1" --json --control "$DIR/$1.sock" | python3 -c 'import json, sys; print(json.load(sys.stdin)["common_point"])'
}

has_common_point() { (($(common_point data) > 0)); }

declare -A PIDS
GROUP=(--consistency-group shop --members "data=$DIR/data.sock,log=$DIR/log.sock")

# run_until_lost FLAGS...: load until at a random instant both die and both caches are lost. $ACKNOWLEDGED writes were acknowledged.
run_until_lost() {
    local writer
    make_pairs
    start data "$@"
    start log "$@"
    python3 "$CLIENT" write "$SEED" "$DIR/data.nbd" "$DIR/log.nbd" >acknowledged &
    writer=$!
    if [[ ${1:-} == --consistency-group ]]; then
        await "$PATIENCE" has_common_point || fail "no common point is declared"
    fi
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    if ((RANDOM % 2)) && [[ ${1:-} == --consistency-group ]]; then
        # A member that dies in the middle of it all comes back with its cache: a round may have been cut short.
        stop log
        await "$PATIENCE" ended "$writer"
        rm -f log.nbd log.sock
        start log "$@"
        "$FOREBAY" mark data --label again --control "$DIR/data.sock" >marked || fail "no common point after a member came back"
    fi
    stop data
    stop log
    await "$PATIENCE" ended "$writer" || fail "the writer goes on without volumes"
    ACKNOWLEDGED=$(cat acknowledged)
    rm data.cache log.cache
}

written=0
for ((instant = 1; instant <= INSTANTS; instant++)); do
    WHAT="instant $instant"
    run_until_lost "${GROUP[@]}"
    ! "$FOREBAY" recover log.img >refused 2>&1 || fail "one member is recovered alone: $(cat refused)"
    grep -q "consistency group 'shop' of data, log" refused || fail "the refusal does not name the members: $(cat refused)"
    "$FOREBAY" recover log.img data.img >recovered 2>&1 || fail "$(cat recovered)"
    upto=$(python3 "$CLIENT" judge "$SEED" data.img log.img 2>broken) || fail "across both volumes: $(cat broken); $(cat recovered)"
    ((upto <= ACKNOWLEDGED + 1)) || fail "write $upto is there, and $ACKNOWLEDGED were acknowledged"
    [[ $("$FOREBAY" recover data.img log.img | tail -1) == $(tail -1 recovered) ]] || fail "another recovery ends elsewhere"
    written=$((written + upto))
    note "$(tail -1 recovered), at write $upto of $ACKNOWLEDGED"
done
((written > 100 * INSTANTS)) || fail "only $written writes were on the backings"
pass "two volumes at one point after $INSTANTS losses of both caches, $written writes there"

broken=0
for ((instant = 1; instant <= 10 && !broken; instant++)); do
    run_until_lost
    # A volume that was killed before its first group is not known to be consistent.
    "$FOREBAY" recover data.img && "$FOREBAY" recover log.img || continue
    python3 "$CLIENT" judge "$SEED" data.img log.img 2>found >/dev/null || broken=1
done
((broken)) || fail "two volumes that go their own ways are never found apart: nothing was tested"
pass "without a consistency group: $(cat found)"

make_pairs
start data "${GROUP[@]}"
start log "${GROUP[@]}"
first=$("$FOREBAY" mark data log --label first --control "$DIR/data.sock" 2>&1) || true
grep -q "serves no volume 'log'" <<<"$first" || fail "volumes of two daemons are named at one: $first"
point=$("$FOREBAY" mark log --label "by the second" --control "$DIR/log.sock")
[[ $(common_point data) == "$point" && $(common_point log) == "$point" ]] || fail "the members are not at point $point"
! "$FOREBAY" set log write-policy=write-back --control "$DIR/log.sock" 2>refused || fail "a member leaves its consistency group unasked"
stop log
! "$FOREBAY" mark data --control "$DIR/data.sock" 2>refused || fail "a point without a member"
# With one member away the other goes on when it has to, and says so.
"$FOREBAY" flush data --control "$DIR/data.sock" >/dev/null
stop data
"$FOREBAY" recover data.img --alone >alone || fail "a member cannot be recovered alone"
pass "refusals, a point by either member, a member alone"
