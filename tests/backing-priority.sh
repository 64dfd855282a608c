#!/usr/bin/env bash
# What somebody waits for is told to the backing. On a block device the kernel's own trace shows the I/O priority of each request: what
# is destaged has a low one, what a client reads has not. On an export of another Forebay with a critical address, that server's own
# figures show over which connection a write came. Then that server is killed under the load, which nobody may notice.
source "$(dirname "$0")/harness.sh"

need python3

write_stamps() { stamp 0 write --target "nbd:unix:$NBD" --state state --seed $RANDOM --operations 400 "$@"; }

# --- a block device

WHAT="block device"
need_block_devices
need losetup
TRACING=$DIR/tracing
TRACE=$TRACING/instances/forebay-$$
mkdir "$TRACING"
# An instance outlives its mount.
end_tracing() {
    local code=$?
    trap - ERR
    set +e
    [[ ! -d $TRACE ]] || rmdir "$TRACE"
    (exit "$code")
    cleanup
}
if mount -t tracefs none "$TRACING" 2>/dev/null; then
    trap end_tracing EXIT
    mkdir "$TRACE"
    truncate -s 64M disk
    LOOP=$(losetup -f --show disk)
    "$FOREBAY" format cache --size 16M --backing "$LOOP" --volume-size 32M >/dev/null || fail "format failed"
    serve_plain --cache cache --backing "$LOOP" --nbd "unix:$NBD" --write-policy write-back
    IFS=: read -r major minor <"/sys/block/${LOOP#/dev/}/dev"
    echo "dev == $((major << 20 | minor))" >"$TRACE/events/block/block_rq_issue/filter"
    echo 1 >"$TRACE/events/block/block_rq_issue/enable"
    write_stamps --threads 4
    fb flush db >/dev/null
    # What is not cached is read from the backing.
    stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet
    echo 0 >"$TRACE/events/block/block_rq_issue/enable"
    python3 - "$TRACE/trace" <<'END' >seen || fail "$WHAT: $(cat seen)"
import re, sys
seen = {}
for line in open(sys.argv[1]):
    request = re.search(r"block_rq_issue: \S+ (\S+) .* (\S+),(\d+),(\d+) \[", line)
    if request and "F" not in request[1][:1]:
        way, level = request[1][0], f"{request[2]},{request[4]}"
        seen.setdefault(way, {}).setdefault(level, 0)
        seen[way][level] += 1
print(seen)
low = "be,7"
destaged, read = seen.get("W", {}), seen.get("R", {})
# The label's writes are waited for.
sys.exit(not (destaged.get(low, 0) > 0 and sum(read.values()) > 0 and low not in read))
END
    stop_daemon
    losetup -d "$LOOP"
    pass "$WHAT: the kernel sees the I/O priority: $(cat seen)"
else
    [[ ${CI:-} != true ]] || fail "tracefs cannot be mounted"
    note "SKIP $WHAT: tracefs cannot be mounted"
fi

# --- an export of another Forebay

WHAT="NBD export"
STORE=$DIR/store
BACKING="nbd+unix:///store?socket=$STORE.nbd&critical=$STORE.critical"
SERVER=

start_store() {
    "$FOREBAY" serve --name store --control "$STORE.control" --cache store.cache --backing store.img --nbd "unix:$STORE.nbd" \
        --critical-nbd "unix:$STORE.critical" --admission cp >store.ready 2>>"$LOG" </dev/null &
    SERVER=$!
    OWN=("$SERVER")
    store_is_ready() { grep -q '^ready' store.ready || ended "$SERVER"; }
    await "$PATIENCE" store_is_ready && ! ended "$SERVER" || fail "the store does not start: $(tail -n 3 "$LOG")"
}

# came REASON: writes that the store counts under it.
came() {
    "$FOREBAY" status store --json --control "$STORE.control" | python3 -c '
import json, sys
print(json.load(sys.stdin)["writes_by_reason"][sys.argv[1]])' "$1"
}

truncate -s 64M store.img
"$FOREBAY" format store.cache --size 32M --backing store.img >/dev/null || fail "format failed"
start_store
rm -f state cache
"$FOREBAY" format cache --size 16M --backing "$BACKING" --volume-size 32M >/dev/null || fail "format failed"
serve_plain --cache cache --backing "$BACKING" --nbd "unix:$NBD" --write-policy write-back
waited=$(came direct) not=$(came not-critical)
write_stamps --threads 4
fb flush db >/dev/null
(($(came not-critical) > not)) || fail "$WHAT: nothing that is destaged came over the ordinary connection"
(($(came direct) - waited <= $(came not-critical) - not)) || fail "$WHAT: what is destaged came over the critical connection"
stop_daemon
waited=$(came direct)
serve_plain --cache cache --backing "$BACKING" --nbd "unix:$NBD" --write-policy write-through --critical
write_stamps --threads 4
(($(came direct) > waited + 100)) || fail "$WHAT: what clients wait for did not come over the critical connection"
pass "$WHAT: $(came direct) writes came over the critical connection, and $(came not-critical) over the other one"

"$FOREBAY_STAMP" write --target "nbd:unix:$NBD" --state state --seconds 4 --threads 4 --largest 64 --seed $RANDOM >stamp.out 2>&1 &
writer=$!
for ((n = 0; n < 2; n++)); do
    doze 100 500
    ! ended "$writer" || fail "$WHAT: the client ended before the store was killed: $(cat stamp.out)"
    kill_process "$SERVER"
    start_store
done
wait "$writer" || fail "$WHAT: a client noticed that the store was killed: $(cat stamp.out)"
stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet
fb flush db >/dev/null || fail "$WHAT: a flush fails"
stop_daemon
kill -TERM "$SERVER"
await "$PATIENCE" ended "$SERVER" || fail "$WHAT: the store does not stop"
pass "$WHAT: nobody noticed that the store was killed twice"

# A server that does not promise what two connections need is told at once.
if command -v nbdkit >/dev/null; then
    truncate -s 64M plain.img
    nbdkit --exit-with-parent --unix plain --filter=multi-conn file plain.img multi-conn-mode=disable --foreground 2>>"$LOG" &
    OWN+=($!)
    await "$PATIENCE" test -S plain || fail "nbdkit does not start"
    refused 1 "critical= cannot be used with it" "$FOREBAY" serve --name db "${CONTROL[@]}" --no-cache --nbd "unix:$NBD" \
        --backing "nbd+unix:///?socket=$DIR/plain&critical=$DIR/other"
    pass "an export that is not for several connections is refused with a critical address"
fi
