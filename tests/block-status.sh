#!/usr/bin/env bash
# Block status: what copies a volume by its map has all of it; a map of an empty volume of 64 TiB is made as quickly as by other servers; and who maps
# a volume again and again, over NBD or by SEEK_DATA on the FUSE file, does not hold up who writes to it.
source "$(dirname "$0")/harness.sh"

need nbdinfo nbdcopy nbdkit fio python3 pgrep
fio --enghelp=nbd >/dev/null 2>&1 || skip "this fio cannot speak NBD"
WALK=("$ROOT/tests/clients/walk_holes.py")
URI="nbd+unix:///db?socket=$NBD"
FILE=$DIR/volume
FUSE=()
if [[ $(id -u) == 0 && -e /dev/fuse ]]; then
    FUSE=(--fuse "$FILE")
fi
# Each measurement's seconds and rounds: the goals are measured with more of both.
EACH=${FOREBAY_SECONDS_EACH:-1}
ROUNDS=${FOREBAY_ROUNDS:-3}

# --- a copy by the map

copy_is_whole() {
    WHAT="a copy by the map"
    make_pair 16M 512M
    # Here and there, some of it from before.
    fio --name=before --filename=backing --rw=randwrite --bs=64k --size=512M --io_size=8M --randseed="$(between 1 1000000)" \
        --end_fsync=1 --output=fio.out || fail "$WHAT: $(cat fio.out)"
    serve --destage-on-stop "${FUSE[@]}"
    fio --name=here --ioengine=nbd --uri="$URI" --rw=randwrite --bsrange=4k-64k --size=512M --io_size=24M --iodepth=16 \
        --randseed="$(between 1 1000000)" --output=fio.out || fail "$WHAT: $(cat fio.out)"
    # Blocks go to the backing and leave the cache while the map is made.
    fio --name=there --ioengine=nbd --uri="$URI" --rw=randread --bs=64k --size=512M --io_size=32M --iodepth=16 --output=fio2.out &
    OWN=($!)
    nbdcopy --synchronous "$URI" copy || fail "$WHAT: nbdcopy failed"
    nbdinfo --map --totals "$URI" >totals || fail "$WHAT: no map"
    is_cached $((1 << 20))
    wait "${OWN[0]}" || fail "$WHAT: $(cat fio2.out)"
    OWN=()
    local walked data extents
    if ((${#FUSE[@]})); then
        walked=$("${WALK[@]}" "$FILE") || fail "$WHAT: the FUSE file cannot be walked"
        read -r data extents <<<"$walked"
        note "$extents extents of data, $((data >> 20)) MiB"
        ((data < 256 << 20)) || fail "$WHAT: holes are not found in the FUSE file"
    fi
    stop_daemon
    cmp copy backing || fail "$WHAT differs from the volume"
    local allocated
    allocated=$(du --block-size=1M copy | cut -f 1)
    ((allocated < 256)) || fail "$WHAT: $allocated MiB are allocated: holes are not found"
    pass "$WHAT has all that was written and $allocated MiB allocated of 512"
}

# --- an empty volume

seconds() {
    local begun=$EPOCHREALTIME
    "$@" >map.out || fail "$WHAT: $* failed"
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", b - a }'
}

# ext4 ends a file at 16 TiB; memory has no such limit.
empty_volume() {
    WHAT="an empty volume of 64 TiB"
    local memory ours others fuse
    memory=$(mktemp -d /dev/shm/forebay-status.XXXXXX) || { note "$WHAT: no /dev/shm to have it in"; return; }
    OWN_DIRS+=("$memory")
    truncate -s 64T "$memory/backing" || { note "$WHAT: /dev/shm takes no such file"; return; }
    nbdkit --exit-with-parent --foreground --readonly --unix "$DIR/plain" file "$memory/backing" &
    OWN=($!)
    await 20 test -S plain || fail "$WHAT: nbdkit does not start"
    others=$(seconds nbdinfo --map "nbd+unix:///?socket=$DIR/plain")
    sort map.out >map.plain
    kill_process "${OWN[0]}"
    OWN=()
    "$FOREBAY" format cache --size 16M --backing "$memory/backing" --force >/dev/null || fail "$WHAT: format failed"
    serve_plain --cache cache --backing "$memory/backing" --nbd "unix:$NBD" "${FUSE[@]}"
    ours=$(seconds timeout $((2 * PATIENCE)) nbdinfo --map "$URI")
    [[ $(awk '{ print $3 }' map.out | sort -u) == 3 && $(awk '{ sum += $2 } END { printf "%.0f", sum }' map.out) == 70368744177664 ]] ||
        fail "$WHAT: wrong map: $(head -n 3 map.out)"
    if ((${#FUSE[@]})); then
        fuse=$(seconds timeout "$PATIENCE" "${WALK[@]}" "$FILE")
        [[ $(cat map.out) == "0 0" ]] || fail "$WHAT: data is found in its FUSE file: $(cat map.out)"
        note "$fuse s by SEEK_DATA on the FUSE file"
    fi
    stop_daemon
    note "$ours s, and $others s with nbdkit"
    awk -v ours="$ours" -v others="$others" 'BEGIN { exit !(ours < 10 * others + 1) }' || fail "$WHAT takes $ours s to map, nbdkit $others s"
    pass "$WHAT is mapped in $(awk -v a="$ours" -v b="$others" 'BEGIN { printf "%.1f", a / b }') times nbdkit's time"
}

# --- beside writers

# writes SECONDS FIO_ARGS...: 4 KiB writes a second.
writes() {
    local seconds=$1
    shift
    fio --name=writer "$@" --rw=randwrite --bs=4k --size=4T --norandommap --randseed="$(between 1 1000000)" --iodepth=1 --time_based \
        --runtime="$seconds" --output-format=json --output=fio.out >/dev/null 2>fio.err || fail "$WHAT: $(cat fio.err fio.out)"
    python3 -c 'import json; print(int(json.load(open("fio.out"))["jobs"][0]["write"]["iops"]))'
}

# map_forever COMMAND...: four clients that map the volume again and again.
map_forever() {
    for _ in 1 2 3 4; do
        "$@" >/dev/null 2>&1 &
        OWN+=($!)
    done
}

end_clients() {
    local client started
    for client in "${OWN[@]}"; do
        started=$(pgrep -P "$client") || true
        kill_process "$client"
        # shellcheck disable=SC2086
        kill -KILL $started 2>/dev/null || true
    done
    OWN=()
}

map_again_and_again() { while :; do nbdinfo --map "$URI"; done; }

# beside WHERE FIO_ARGS... -- COMMAND...
beside() {
    WHAT="writers beside four clients that map $1"
    shift
    local fio=() alone=0 beside=0 ratio round
    while [[ $1 != -- ]]; do fio+=("$1"); shift; done
    shift
    # A machine that is busy with something else may make any round a bad one: then there are more.
    for ((round = 1; round <= 4 * ROUNDS; round++)); do
        alone=$((alone + $(writes "$EACH" "${fio[@]}")))
        map_forever "$@"
        beside=$((beside + $(writes "$EACH" "${fio[@]}")))
        end_clients
        ratio=$(awk -v a="$alone" -v b="$beside" 'BEGIN { printf "%.2f", b / a }')
        if ((round >= ROUNDS)) && awk -v r="$ratio" -v min="$RATIO_MIN" 'BEGIN { exit r < min }'; then
            break
        fi
    done
    note "$((alone / round)) writes a second alone, $((beside / round)) beside them"
    ((round <= 4 * ROUNDS)) || fail "$WHAT: $ratio of what they do alone"
    pass "$WHAT: $ratio of what they do alone"
}

writers() {
    make_pair 256M 4T
    serve "${FUSE[@]}"
    # Something to map.
    writes 1 --ioengine=nbd --uri="$URI" >/dev/null
    RATIO_MIN=0.5 beside "it over NBD" --ioengine=nbd --uri="$URI" -- map_again_and_again
    if ((${#FUSE[@]})); then
        # The kernel holds the file's lock for each search, however short it is: there is no more to be had.
        RATIO_MIN=0.05 beside "its FUSE file" --ioengine=psync --direct=1 --filename="$FILE" -- "${WALK[@]}" "$FILE" --forever
    fi
    stop_daemon
}

copy_is_whole
empty_volume
writers
