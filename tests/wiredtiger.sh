#!/usr/bin/env bash
# WiredTiger, MongoDB's engine, as MongoDB drives it (tests/clients/wiredtiger_load.py), on ext4 on an attached volume with the rules
# `mongodb`: client threads that sync each commit, then one thread that flushes the log for all of them. The rules know the real
# threads; who holds a pthread mutex for which a client waits inherits. Then the daemon is killed under the load, in both ways:
# WiredTiger recovers, verifies, and has all that was acknowledged.
source "$(dirname "$0")/harness.sh"

CYCLES=${FOREBAY_CYCLES:-2}
LOAD=$ROOT/tests/clients/wiredtiger_load.py
# Compiled once, and kept.
WIREDTIGER=${FOREBAY_WIREDTIGER:-$ROOT/target/wiredtiger}

need python3 gcc mkfs.ext4 e2fsck
need_block_devices
[[ -e /sys/kernel/btf/vmlinux ]] || skip "this kernel has no BTF"
"$ROOT/scripts/wiredtiger.sh" "$WIREDTIGER" >wiredtiger.out 2>&1 || skip "WiredTiger cannot be built: $(tail -n 5 wiredtiger.out)"

OPTIONS=(--records 4000 --cache-mib 2 --log-mib 4 --checkpoint 0.5)
mongod() {
    local command=("$WIREDTIGER/bin/mongod" "$LOAD" "$1" "$MOUNT/db" "${OPTIONS[@]}" "${@:2}")
    # In the background it takes the shell's place: what is waited for, and ended with the script, is itself.
    [[ $BASHPID == "$$" ]] || exec "${command[@]}"
    "${command[@]}"
}

CLIENTS=6
FIRST=1
# load SYNC SECONDS: runs it on the volume; its clients have numbers that none had before.
load() {
    mongod run --sync "$1" --seconds "$2" --threads $CLIENTS --seed "$RANDOM" --acknowledged "$DIR/acknowledged" --first-client "$FIRST"
}

# went TASK REASON: so many of its writes went for this reason to where they went, or to the `backing`, between before.json and now.json.
went() {
    python3 - "$@" <<'END'
import json, sys
task, reason = sys.argv[1:]
counts = lambda r: r["task"] == task and reason in (r["reason"], "cache" if r["cached"] else "backing")
count = lambda f: sum(r["writes"] for r in json.load(open(f))["rows"] if counts(r))
print(count("now.json") - count("before.json"))
END
}

# lent: writes that went to the cache because a client, or who works for one, waited for a pthread mutex.
lent() {
    python3 - <<'END'
import json
print(sum(r["writes"] for r in json.load(open("now.json"))["inherited"] if r["through"] == "futex" and r["waiter"].startswith("mongodb")))
END
}

waited() {
    fb waits db --json | python3 -c 'import json, sys
print(sum(r["count"] for r in json.load(sys.stdin) if r["kind"] == sys.argv[1]))' "$1"
}

start_volume() {
    serve "$@"
    attach_device
}

make_pair 64M 256M
# As slow as it has to be for anybody to wait.
start_volume --admission cp+pi+ioi --rules mongodb --decorate backing:delay:write:fixed=3ms
mkfs.ext4 -q "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
mongod load >load.out 2>&1 || fail "the records cannot be made: $(cat load.out)"

for sync in commit flusher; do
    WHAT="sync by $sync"
    fb explain db --json >before.json
    waits=$(waited futex)
    load $sync 3 >figures 2>load.out || fail "$WHAT: the load failed: $(cat load.out)"
    FIRST=$((FIRST + CLIENTS))
    fb explain db --json >now.json
    (($(went "mongodb connection" direct) + $(went "mongodb journal" direct) > 20)) || fail "$WHAT: nobody who works for a client is critical"
    case $sync in
        commit) (($(went "mongodb connection" direct) > 20)) || fail "$WHAT: clients that sync their commits are not critical" ;;
        flusher)
            (($(went "mongodb journal" direct) > 20)) || fail "$WHAT: the thread that flushes the log for all is not critical"
            # A client that comes to the end of a log file may make the next one, and syncs it and its directory by itself.
            own=$(went "mongodb connection" direct)
            ((own * 10 <= $(went "mongodb journal" direct))) || fail "$WHAT: clients write the log themselves ($own writes), so that it was not tested"
            ;;
    esac
    (($(went "mongodb background" direct) == 0)) || fail "$WHAT: a thread in the background is critical"
    (($(went "mongodb background" not-critical) > 20)) || fail "$WHAT: checkpoints and eviction have hardly written"
    (($(waited futex) > waits)) || fail "$WHAT: no client has waited for a pthread mutex"
    python3 -c 'import json; f = json.load(open("figures"))
exit(not (f["checkpoints"] > 0 and f["updates_per_second"] > 0) and f"{f}")' || fail "$WHAT: hardly anything was done"
    pass "$WHAT: $(went "mongodb connection" direct) writes of clients and $(went "mongodb journal" direct) of the flusher were direct, $(went "mongodb background" not-critical) in the background were not critical; $(($(waited futex) - waits)) waits for mutexes; $(python3 -c 'import json; f = json.load(open("figures")); print(f["operations"], "operations,", f["checkpoints"], "checkpoints")')"
done
(($(lent) > 0)) || fail "nobody who held a mutex for which a client waited has inherited, nor was what he had written reissued"
pass "$(lent) writes went to the cache for clients that waited for a mutex"

check() {
    mongod check --acknowledged "$DIR/acknowledged" 2>&1
}

for ((cycle = 1; cycle <= CYCLES; cycle++)); do
    sync=commit
    ((cycle % 2)) || sync=flusher
    WHAT="kill under sync by $sync"
    load $sync 60 >figures 2>load.err &
    client=$!
    OWN+=("$client")
    FIRST=$((FIRST + CLIENTS))
    await "$PATIENCE" grep -q running load.err || fail "$WHAT: the load does not begin: $(cat load.err)"
    acknowledged_more "$client"
    doze 0 1500
    see
    kill_daemon
    await "$PATIENCE" ended "$client" || fail "$WHAT: the load does not end, although its disk has failed: $(sleepers "$client")"
    code=0
    wait "$client" || code=$?
    OWN=()
    # WiredTiger ends the program by itself when its log cannot be synced (SIGABRT).
    [[ $code == 3 || $code == 134 ]] || fail "$WHAT: the load ended with $code: $(cat load.err)"
    unmount_dead
    no_stuck_tasks
    choose_database_flags mongodb
    start_volume "${FLAGS[@]}"
    check_file_system
    there=$(check) || fail "$WHAT: $there"
done
umount "$MOUNT"
fb detach db
stop_daemon
most_runs cached
pass "$KILLS kills; after each WiredTiger verifies, and all that was acknowledged is there: $there ($SECONDS s)"
