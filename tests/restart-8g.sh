#!/usr/bin/env bash
# A cache that is full of dirty data: how long it is from the start of the process, after a kill, to the first read
# that is served (printed, not asserted), and how much memory each cached block takes (at most 24 bytes, P7).
# FOREBAY_CACHE_MB is its size; `make soak` uses 8192.
source "$(dirname "$0")/harness.sh"

need fio python3

CACHE_MB=${FOREBAY_CACHE_MB:-512}
# Memory that does not grow with the cache, in bytes.
CONSTANT=$((1 << 20))
# The log has headers, summaries and a reserve besides data: most of all with random blocks in small batches.
DATA_MB=$((CACHE_MB * 70 / 100))

make_pair "${CACHE_MB}M" "$((CACHE_MB * 4))M"
# A backing that takes nothing: whatever is written stays dirty.
serve --durability flush --decorate backing:inject:write:eio --decorate backing:inject:zero:eio
timeout -k 5 1200 fio --name=fill --ioengine=nbd --uri="nbd+unix:///db?socket=$NBD" --rw=randwrite --bs=4k --iodepth=64 \
    --size="$((CACHE_MB * 4))M" --io_size="${DATA_MB}M" --randrepeat=0 --fsync_on_close=1 --output=fio.out ||
    fail "fio: $(tail -n 5 fio.out)"
DIRTY=$(status dirty_bytes)
((DIRTY >= DATA_MB << 20)) || fail "only $DIRTY bytes are dirty"
OFFSET=$((CACHE_MB << 20))

# first_read WHAT: starts a daemon and tells how long it took.
first_read() {
    local told
    told=$(python3 "$ROOT/tests/clients/first_read.py" "$NBD" "$OFFSET" "$FOREBAY" serve --name db \
        --cache cache --backing backing --nbd "unix:$NBD" "${CONTROL[@]}" 2>&1) || fail "$1: $told"
    read -r MS DAEMON <<<"$told"
    OWN=("$DAEMON")
    note "$1: the first read is served $MS ms after the start of the process"
}

judge_memory() {
    local bytes blocks
    bytes=$(status index_bytes) blocks=$(status index_blocks)
    ((blocks * 4096 >= DIRTY)) || fail "$1: only $blocks blocks are cached"
    ((bytes <= blocks * 24 + CONSTANT)) || fail "$1: $bytes bytes of memory for $blocks cached blocks"
    note "$1: $(status index_bytes_per_block | cut -c 1-5) bytes of memory for each of $blocks cached blocks; $(($(status memory_bytes) >> 20)) MiB in all"
}

# The process is no child of this shell, which has nothing to wait for but its end.
end_daemon() {
    kill "-$1" "$DAEMON"
    await "$PATIENCE" ended "$DAEMON" || fail "the daemon does not end"
    DAEMON=
    OWN=()
}

judge_memory "filled"
kill_daemon
first_read "after a kill, $((DIRTY >> 20)) MiB dirty"
judge_memory "recovered"
end_daemon TERM
first_read "after a clean stop"
end_daemon KILL
pass "a full cache of $CACHE_MB MiB comes back ($SECONDS s)"
