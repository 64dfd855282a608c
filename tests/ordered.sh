#!/usr/bin/env bash
# A backing that is consistent at every instant (P4): the daemon records what it writes to the backing of an `ordered` volume
# while a client stamps every sector, with a cache much smaller than what is written. For every instant of the record, and
# whatever a kill or a power cut would leave then: of two writes of which one came before the other, the later is on the
# backing only if the earlier is. The same judge must find `write-back` out of order, and a record in which a few neighbours are
# exchanged.
#
# N is the number of requests of each run: 6,000 by default, 100,000 in `make soak`.
source "$(dirname "$0")/harness.sh"

N=${N:-6000}

# load POLICY ORDER: a recorded run of N requests at depth 4, a flush each 16 or so, over 8,192 blocks.
load() {
    rm -f state record acks
    make_pair 8M 32M
    serve --write-policy "$1" --order "$2" --decorate "backing:record:file=record"
    stamp 0 write --target "nbd:unix:$NBD" --state state --acks acks --operations "$N" --threads 4 --largest 8 \
        --mix 94,0,0,6 --seed $RANDOM
    see
    went_to_cache 2
    stop_daemon
    ! grep "the record .* ends" "$LOG" || fail "the record is not whole"
}

for order in completion barrier; do
    load ordered $order
    stamp 0 order --record record --acks acks --order $order
    instants=$(figure instants)
    ((instants > 100)) || fail "$instants instants are too few: $STAMPED"
    (($(figure on_backing_during_the_run) * 2 > $(figure writes_before_others))) ||
        fail "less than half of the writes were on the backing before the load ended: $STAMPED"
    note "ordered by $order: $STAMPED"
    stamp 1 order --record record --acks acks --order $order --swaps 1
    (($(figure swapped) == 2)) || fail "nothing was exchanged: $STAMPED"
    pass "ordered by $order: consistent at all $instants instants of $N requests; one exchange of neighbours is noticed"
done

load write-back barrier
stamp 1 order --record record --acks acks --order barrier
pass "write-back is out of order at $(figure violations) of $(figure instants) instants"
