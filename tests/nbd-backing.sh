#!/usr/bin/env bash
# A backing that is an export of an NBD server, under `journaled`: with its journal in a second export of that server, and in the room
# behind the volume's end. The record of what the daemon sent is judged at every instant, as in journaled.sh. Then, really: a
# consistency point is declared, writing goes on, the server is killed and started again under the load, which nobody may notice, the
# daemon is killed, the cache is thrown away. `forebay recover` must bring the export to the point, exactly.
#
# N is the number of requests: 2,000 by default.
source "$(dirname "$0")/harness.sh"

N=${N:-2000}
need nbdkit

EXPORTS=$DIR/exports
SERVER=$DIR/server
BACKING="nbd+unix:///backing?socket=$SERVER"
mkdir "$EXPORTS"

start_server() {
    rm -f "$SERVER"
    nbdkit --foreground --exit-with-parent --unix "$SERVER" file dir="$EXPORTS" 2>>"$LOG" &
    NBDKIT=$!
    OWN=("$NBDKIT")
    await "$PATIENCE" test -S "$SERVER" || fail "nbdkit does not start"
}

# new_pair BYTES: exports of this size for the backing and for a journal, and a cache; the volume has 32 MiB.
new_pair() {
    rm -f cache "$EXPORTS"/*
    truncate -s "$1" "$EXPORTS/backing"
    truncate -s 32M "$EXPORTS/journal"
    "$FOREBAY" format cache --size 8M --backing "$BACKING" --volume-size 32M >formatted || fail "format failed"
    grep -q "label lies behind the volume" formatted || fail "the export has no label: $(cat formatted)"
}

serve_export() {
    serve_plain --cache cache --backing "$BACKING" --nbd "unix:$NBD" --write-policy journaled --group-size 1M "${JOURNAL[@]}" "$@"
}

write_stamps() { stamp "$1" write --target "nbd:unix:$NBD" --state state --seed $RANDOM "${@:2}"; }

# every_instant: the record of a load, to which the cache is lost at any instant.
every_instant() {
    rm -f state record acks
    new_pair "$1"
    serve_export --group-age 100ms --decorate backing:record:file=record
    refused 3 "in use" "$FOREBAY" recover "$BACKING" "${JOURNAL[@]}"
    write_stamps 0 --acks acks --operations "$N" --threads 4 --largest 8 --mix 94,0,0,6
    see
    kill_daemon
    stamp 0 order --record record --acks acks --journal
    (($(figure instants) > 100 && $(figure groups) > 3)) || fail "$WHERE: too little was tried: $STAMPED"
    pass "$WHERE: a group's end at all $(figure instants) instants"
    stamp 1 order --record record --acks acks
}

# lose_cache: the daemon dies under load, after a point, and the cache with it.
lose_cache() {
    local writer code=0
    rm -f state cache
    new_pair "$1"
    # A cache that holds what comes after the point, so that no group is cut before the next one.
    "$FOREBAY" format cache --size 64M --backing "$BACKING" --volume-size 32M --force >/dev/null
    serve_export --group-ends points
    write_stamps 0 --operations "$N" --largest 32
    fb mark db --label whole >point
    cp state state.point
    "$FOREBAY_STAMP" write --target "nbd:unix:$NBD" --state state --operations 300 --threads 4 --largest 16 --seed $RANDOM >stamp.out 2>&1 &
    writer=$!
    kill_process "$NBDKIT"
    start_server
    wait "$writer" || code=$?
    [[ $code == 0 ]] || fail "$WHERE: a client noticed that the server was started again: $(cat stamp.out)"
    kill_daemon
    rm cache
    "$FOREBAY" recover "$BACKING" "${JOURNAL[@]}" --list >listed || fail "recover --list failed"
    grep -q "consistency point $(cat point) 'whole'" listed || fail "$WHERE: the point is not listed: $(cat listed)"
    "$FOREBAY" recover "$BACKING" "${JOURNAL[@]}" >recovered || fail "recover failed"
    grep -q "consistency point $(cat point) 'whole'" recovered || fail "$WHERE: not at the point: $(cat recovered)"
    serve_plain --no-cache --accept-stale --backing "$BACKING" "${JOURNAL[@]}" --nbd "unix:$NBD"
    stamp 0 verify --target "nbd:unix:$NBD" --state state.point --quiet
    stamp 1 verify --target "nbd:unix:$NBD" --state state --quiet
    stop_daemon
    pass "$WHERE: the point that was declared, exactly, after the server was killed and the cache lost"
}

# swap_in NAME: the export of this name is another disk from here on, until swap_out.
swap_in() {
    kill_process "$NBDKIT"
    mv "$EXPORTS/$1" "$DIR/away"
    truncate -s "$(stat -c %s "$DIR/away")" "$EXPORTS/$1"
    start_server
}

swap_out() {
    cmp -n "$(stat -c %s "$EXPORTS/$1")" "$EXPORTS/$1" /dev/zero || fail "$WHERE: another disk was written to"
    kill_process "$NBDKIT"
    mv "$DIR/away" "$EXPORTS/$1"
    start_server
}

# another_disk NAME: the export of this name is another disk for a while; nobody writes to that, and nothing is lost.
another_disk() {
    rm -f state
    : >"$LOG"
    new_pair "$size"
    serve_export --group-age 100ms
    write_stamps 0 --operations 200
    # A cache that is full of what the backing lacks would let nobody write.
    fb flush db >/dev/null || fail "$WHERE: the backing takes nothing"
    swap_in "$1"
    # What has to read from the backing fails; what the cache takes does not.
    write_stamps 0 --operations 200 --largest 4 --allow any:eio
    await "$PATIENCE" grep -q "not what was opened" "$LOG" || fail "$WHERE: the log says nothing of another disk"
    # Operations that waited for the server have failed by now.
    fails() { (($(status backing_errors) > 0)); }
    await "$PATIENCE" fails || fail "$WHERE: nothing that goes to the backing fails"
    swap_out "$1"
    fb flush db >/dev/null || fail "$WHERE: nothing goes to the right disk"
    stop_daemon
    stamp 0 verify --target "file:$EXPORTS/backing" --state state --quiet
    pass "$WHERE: another disk in the place of the $1 is not written to"
}

# release_another_disk: the cache has nothing that the backing lacks, and is to be removed while another disk is in the backing's place.
release_another_disk() {
    rm -f state
    new_pair "$size"
    serve_export
    write_stamps 0 --operations 200
    fb flush db >/dev/null
    swap_in backing
    if fb detach db --release >detached 2>&1; then
        fail "$WHERE: the cache was removed from another disk"
    fi
    swap_out backing
    ended "$DAEMON" || kill_process "$DAEMON"
    DAEMON=
    serve_export
    stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet
    fb detach db --release >/dev/null || fail "$WHERE: the cache cannot be removed"
    await "$PATIENCE" ended "$DAEMON" || fail "$WHERE: the daemon stays without its volume"
    DAEMON=
    stamp 0 verify --target "file:$EXPORTS/backing" --state state --quiet
    pass "$WHERE: a cache is not removed from another disk ($(cat detached))"
}

start_server
for WHERE in "a second export" "behind the volume"; do
    JOURNAL=()
    size=64M
    if [[ $WHERE == "a second export" ]]; then
        JOURNAL=(--journal "nbd+unix:///journal?socket=$SERVER")
        size=$((32 * 1024 + 12))K
    fi
    every_instant "$size"
    lose_cache "$size"
    another_disk backing
done
went_to_cache 2
WHERE="a second export" size=$((32 * 1024 + 12))K
JOURNAL=(--journal "nbd+unix:///journal?socket=$SERVER")
another_disk journal
release_another_disk

refused 3 "cannot be a cache" "$FOREBAY" format "nbd+unix:///journal?socket=$SERVER" --backing "$EXPORTS/backing"
refused 1 "no such export" "$FOREBAY" recover "nbd+unix:///absent?socket=$SERVER"
refused 1 "cannot connect to" "$FOREBAY" recover "nbd+unix:///backing?socket=$DIR/nobody"
pass "refusals: a cache on NBD, an export and a server that are not there"
