#!/usr/bin/env bash
# A backing that moves from group to group (P4): the daemon records what it writes to the backing and to the journal beside it,
# of a `journaled` volume, while a client stamps every sector, with a cache much smaller than what is written. For every instant
# of the record, and whatever a kill or a power cut would leave then: what `forebay recover` would make of the backing is a state in
# which nothing is missing that came before something that is there, and nothing reaches the backing that no committed group
# holds. The same record must be found out of order if the journal is left out of account. Then the cache is
# thrown away a few times, for real, and `forebay recover` and the judge look at what is left.
#
# N is the number of requests: 6,000 by default, 100,000 in `make soak`.
source "$(dirname "$0")/harness.sh"

N=${N:-6000}

rm -f state record acks
make_pair 8M 32M
serve --write-policy journaled --group-size 1M --group-age 100ms --decorate "backing:record:file=record"
stamp 0 write --target "nbd:unix:$NBD" --state state --acks acks --operations "$N" --threads 4 --largest 8 \
    --mix 94,0,0,6 --seed $RANDOM
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

rm cache
"$FOREBAY" recover backing --list | tee listed
"$FOREBAY" recover backing | tee recovered
grep -q "is consistent: group" recovered || fail "forebay recover says nothing of a group"
[[ $(tail -1 listed | grep -o "group [0-9]*") == $(grep -o "group [0-9]*" recovered) ]] ||
    fail "recover went to another group than the last one listed"
pass "the backing alone: $(cut -d: -f2- recovered)"
