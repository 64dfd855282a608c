#!/usr/bin/env bash
# A backing that moves from group to group (P4): the daemon records what it writes to the backing and to the journal beside it,
# of a `journaled` volume, while a client stamps every sector, with a cache much smaller than what is written. For every instant
# of the record, and whatever a kill or a power cut would leave then: what `forebay recover` would make of the backing is a state in
# which nothing is missing that came before something that is there, and nothing reaches the backing that no committed group
# holds. The same record must be found out of order if the journal is left out of account. Then the cache is thrown away a few times, for
# real, under a writer whose writes wait for each other: `forebay recover` must bring what is left to a state that there was.
#
# N is the number of requests: 6,000 by default, 100,000 in `make soak`; FOREBAY_INSTANTS of the times the cache is lost.
source "$(dirname "$0")/harness.sh"

N=${N:-6000}
LOSSES=${FOREBAY_INSTANTS:-3}
CLIENT=$ROOT/tests/clients/dependent_writes.py
need python3

recovered() { python3 -c 'import json, sys; print(json.load(open("recovered"))[sys.argv[1]])' "$1"; }

rm -f state record acks
make_pair 8M 32M
serve --write-policy journaled --group-size 1M --group-age 100ms --decorate "backing:record:file=record"
stamp 0 write --target "nbd:unix:$NBD" --state state --acks acks --operations "$N" --threads 4 --largest 8 \
    --mix 94,0,0,6 --seed $RANDOM
see
went_to_cache 2
kill_daemon
! grep "the record .* ends" "$LOG" || fail "the record is not whole"

stamp 0 order --record record --acks acks --journal
instants=$(figure instants)
((instants > 100)) || fail "$instants instants are too few: $STAMPED"
(($(figure between_groups) == 0)) || fail "something is on the backing that no group has committed: $STAMPED"
(($(figure groups) > 3)) || fail "too few groups: $STAMPED"
(($(figure on_backing_during_the_run) * 2 > $(figure writes_before_others))) ||
    fail "less than half of the writes were on the backing before the load ended: $STAMPED"
note "$STAMPED"
pass "journaled: a group's end at all $instants instants of $N requests"

stamp 1 order --record record --acks acks
pass "without its journal the backing is out of order at $(figure violations) of $(figure instants) instants"

# --- the cache is lost, really

# A backing that is slow and a writer that waits for each write, so that a group is being applied when the daemon dies; what is in
# the cache is far more than a group.
applied=0
for ((loss = 1; loss <= LOSSES; loss++)); do
    WHAT="loss $loss"
    make_pair 16M 8M
    serve --write-policy journaled --group-size 256K --group-age 100ms --decorate backing:delay:write:fixed=100ms
    python3 "$CLIENT" write "$SEED" "$NBD" >acknowledged &
    writer=$!
    OWN=("$writer")
    is_applying() { (($(status groups) > loss)); }
    await "$PATIENCE" is_applying || fail "$WHAT: no group is committed"
    doze 0 400
    see
    kill_daemon
    await "$PATIENCE" ended "$writer" || fail "$WHAT: the writer goes on without a volume"
    OWN=()
    rm cache
    "$FOREBAY" recover backing --list >listed || fail "$WHAT: recover --list failed"
    "$FOREBAY" recover backing --json >recovered || fail "$WHAT: recover failed"
    applied=$((applied + $(recovered blocks_applied)))
    upto=$(python3 "$CLIENT" judge "$SEED" backing 2>broken) || fail "$WHAT: $(cat broken recovered)"
    ((upto > 0 && upto <= $(cat acknowledged) + 1)) || fail "$WHAT: write $upto is there, and $(cat acknowledged) were acknowledged"
    "$FOREBAY" recover backing >again || fail "$WHAT: a second recovery fails"
    grep -q "is consistent: group" again || fail "$WHAT: forebay recover says nothing of a group: $(cat again)"
    [[ $(tail -1 listed | grep -o "group [0-9]*") == $(grep -o "group [0-9]*" again) ]] ||
        fail "$WHAT: recover went to another group than the last one listed"
    "$FOREBAY" recover backing --json >recovered || fail "$WHAT: a third recovery fails"
    [[ $(recovered blocks_applied) == 0 ]] || fail "$WHAT: a recovery after the first finds something to do"
    note "write $upto of $(cat acknowledged): $(cut -d: -f2- again)"
done
most_runs cached
((applied > 0)) || fail "no group was being applied when a cache was lost, so that recover was not tested"
pass "the backing alone after $LOSSES losses of the cache: at a group's end, $applied blocks by recover ($SECONDS s)"
