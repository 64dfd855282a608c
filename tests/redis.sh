#!/usr/bin/env bash
# Redis with `appendfsync always` on ext4 on an attached volume; the daemon below it is killed at random times under
# load. Afterwards the file system is sound and every acknowledged write is there.
source "$(dirname "$0")/harness.sh"

CYCLES=${FOREBAY_CYCLES:-12}
CLIENT=$ROOT/tests/clients/redis_writes.py

need python3 mkfs.ext4 e2fsck redis-server redis-check-aof
need_block_devices

SOCKET=$DIR/redis.sock
REDIS=

start_redis() {
    redis-server --port 0 --unixsocket "$SOCKET" --dir "$MOUNT" --appendonly yes --appendfsync always \
        --auto-aof-rewrite-min-size 1mb --auto-aof-rewrite-percentage 100 --save "" --daemonize no \
        >>"$DIR/redis.log" 2>&1 </dev/null &
    REDIS=$!
    OWN+=("$REDIS")
    await "$PATIENCE" redis_answers && ! ended "$REDIS" || fail "Redis does not start: $(tail "$DIR/redis.log")"
}

redis_answers() { ended "$REDIS" || [[ $(redis-cli -s "$SOCKET" ping) == PONG ]]; }

end_redis() {
    ended "$REDIS" || kill_process "$REDIS"
    OWN=()
}

start_volume() {
    serve "$@"
    attach_device
}

# ext4 may know of a file's new length before the data is there, whose write was under way and not acknowledged: the end of a log
# is zeroes then, which Redis takes for no log at all. Whether anything that was acknowledged is among them, the client knows.
drop_zeroes_at_end() {
    python3 - "$MOUNT"/appendonlydir/*.aof <<'PY'
import sys
for name in sys.argv[1:]:
    with open(name, "r+b") as log:
        whole = log.read()
        rest = whole.rstrip(b"\0")
        if len(rest) < len(whole):
            print(f"{name.rsplit('/')[-1]}: {len(whole) - len(rest)} zeroes at the end")
            log.truncate(len(rest))
PY
}

make_pair 32M 256M
start_volume
mkfs.ext4 -q "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
start_redis

for ((cycle = 1; cycle <= CYCLES; cycle++)); do
    python3 "$CLIENT" write "$SOCKET" acknowledged --clients 5 >client.out 2>client.err &
    client=$!
    OWN+=("$client")
    await "$PATIENCE" grep -q writing client.out || fail "the client does not write: $(cat client.err)"
    acknowledged_more "$client"
    doze 0 1600
    see
    kill_daemon
    end_redis
    wait "$client" || fail "the client ended with an error: $(cat client.err)"
    unmount_dead
    no_stuck_tasks
    choose_database_flags redis
    start_volume "${FLAGS[@]}"
    check_file_system
    zeroes=$(drop_zeroes_at_end)
    [[ -z $zeroes ]] || note "$zeroes"
    start_redis
    there=$(python3 "$CLIENT" check "$SOCKET" acknowledged 2>&1) || fail "after kill $KILLS: $there"
done

end_redis
for part in "$MOUNT"/appendonlydir/*.manifest; do
    redis-check-aof "$part" >aof.out 2>&1 || fail "redis-check-aof: $(cat aof.out)"
done
umount "$MOUNT"
fb detach db
stop_daemon
most_runs cached
[[ ! -e /sys/kernel/btf/vmlinux || $CYCLES == 1 ]] || ((SEEN[awaited] > 0)) || fail "no write was known to be waited for in $TRACKED runs that asked"
pass "$KILLS kills, $TRACKED runs that asked who waits for a write (${SEEN[awaited]} in the cache for that), $there writes of $(sort -u acknowledged | wc -l) acknowledged are there ($SECONDS s)"
