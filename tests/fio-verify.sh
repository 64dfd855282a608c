#!/usr/bin/env bash
# fio with verified data over NBD and over the attached device: requests from 512 B to 1 MiB that are aligned to nothing
# but sectors, at depths 1 to 64, with a cache much smaller than the data, so that cleaning, a full cache and reads of
# what is not cached all happen; under both write policies, both durabilities, and both choices for a full cache.
source "$(dirname "$0")/harness.sh"

need fio python3
fio --enghelp=nbd >/dev/null 2>&1 || skip "this fio cannot speak NBD"

# Data in MiB; the cache has 16.
DATA_MB=${FOREBAY_DATA_MB:-64}
# What makes a backing slow enough for a cache to fill up before the depth of the queue does.
SLOW=(--decorate backing:delay:write:fixed=40ms)

# run_fio TARGET_ARGS...: writes everything at random places and verifies it.
run_fio() {
    timeout -k 5 300 fio --name=verify "$@" --rw=randwrite --size="${DATA_MB}M" --iodepth="$DEPTH" --bsrange="$SIZES" \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --randrepeat=0 --randseed="$(between 1 1000000)" \
        --output=fio.out --minimal || fail "$WHAT: $(grep -v '^[0-9];' fio.out | tail -n 5)"
}

# describe WHERE POLICY DURABILITY ON_FULL DEPTH SIZES [slow]
describe() {
    WHAT=$* POLICY=(--write-policy "$2" --durability "$3" --on-full "$4") DEPTH=$5 SIZES=$6
    [[ ${7:-} != slow ]] || POLICY+=("${SLOW[@]}")
    SECONDS=0
    make_pair 16M "${DATA_MB}M"
}

judge() {
    local missed full
    missed=$(status read_bytes_missed)
    full=$(($(status stalls) + $(status writes_bypassed)))
    ((missed > DATA_MB << 18)) || fail "$WHAT: only $missed bytes were read from the backing: the cache was not too small"
    note "$full writes found no room"
    ((full > 0)) || fail "$WHAT: the cache was never full"
    is_cached $((4 << 20))
    (($(status read_bytes_hit) > 0)) || fail "$WHAT: nothing was read from the cache"
    [[ $(status errors) == 0 && $(status checksum_failures) == 0 ]] || fail "$WHAT: errors: $(fb status db)"
    [[ $(status state) != degraded ]] || fail "$WHAT: the volume is degraded"
}

over_nbd() {
    describe "over NBD:" "$@"
    serve "${POLICY[@]}"
    run_fio --ioengine=nbd --uri="nbd+unix:///db?socket=$NBD"
    judge
    stop_daemon
    pass "$WHAT ($SECONDS s)"
}

over_device() {
    describe "over the attached device:" "$@"
    serve "${POLICY[@]}"
    attach_device
    run_fio --ioengine=libaio --filename="$DEVICE" --direct=1
    judge
    fb detach db
    stop_daemon
    pass "$WHAT ($SECONDS s)"
}

over_nbd write-back write wait 64 512-1M
over_nbd write-back flush bypass 16 512-1M
over_nbd write-back write bypass 1 512-1M slow
over_nbd write-back flush wait 64 512-64k slow
over_nbd write-through write wait 64 512-1M
over_nbd write-through flush bypass 4 512-1M

need_block_devices
over_device write-back write wait 64 512-1M
over_device write-back flush bypass 16 512-256k
over_device write-through write bypass 4 512-1M
over_device write-back write wait 1 512-1M slow

# Stale data is not noticed by fio's checksums: the same path once more under a client that stamps every sector, with
# workers that write to parts of the same blocks.
SECONDS=0
make_pair 16M "${DATA_MB}M"
serve
attach_device
stamp 0 write --target "file:$DEVICE" --state state --threads 24 --seconds 3 --seed $RANDOM
stamp 0 verify --target "file:$DEVICE" --state state
is_cached $((4 << 20))
fb detach db
kill_daemon
serve
stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet
stop_daemon
pass "over the attached device, stamped: $(figure sectors_compared) sectors right ($SECONDS s)"
