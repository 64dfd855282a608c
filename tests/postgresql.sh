#!/usr/bin/env bash
# PostgreSQL on ext4 on an attached volume; the daemon below it is killed at random times under load. Afterwards the
# file system is sound, every acknowledged commit is there, no transaction is there by half, and pg_amcheck finds nothing.
source "$(dirname "$0")/harness.sh"

CYCLES=${FOREBAY_CYCLES:-8}
CLIENT=$ROOT/tests/clients/postgresql_commits.py

need python3 mkfs.ext4 e2fsck losetup setpriv
need_block_devices
source "$ROOT/tests/harness-postgresql.sh"

check_postgres() {
    local there
    there=$(python3 "$CLIENT" check "$SOCKETS" acknowledged 2>&1) || fail "after kill $KILLS: $there"
    [[ $(psql -c "SELECT sum(abalance) = (SELECT sum(delta) FROM pgbench_history)
        AND sum(abalance) = (SELECT sum(bbalance) FROM pgbench_branches) FROM pgbench_accounts") != f ]] ||
        fail "after kill $KILLS: pgbench's sums differ"
    as_postgres "$BIN/pg_amcheck" -h "$SOCKETS" --heapallindexed postgres >amcheck.out 2>&1 ||
        fail "after kill $KILLS: pg_amcheck: $(cat amcheck.out)"
    COMMITS=$there
}

start_volume() {
    serve --fuse "$DIR/volume" "$@"
    attach_device
}

make_pair 64M 768M
start_volume --admission cp --rules postgresql
mkfs.ext4 -q "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
init_postgres <<'CONF'
shared_buffers = 32MB
max_wal_size = 48MB
min_wal_size = 32MB
checkpoint_timeout = 30s
restart_after_crash = off
CONF
# PostgreSQL does not make its configuration durable, and the kill will take what the kernel has not written.
sync -f "$MOUNT"
start_postgres || postgres_does_not_start
as_postgres "$BIN/pgbench" -h "$SOCKETS" -i -q -s 1 postgres >pgbench.out 2>&1 || fail "pgbench: $(cat pgbench.out)"
psql -c "CREATE EXTENSION amcheck"
# A backend is critical by what it is, and nobody becomes one by a title.
install -o nobody /dev/null "$MOUNT/impostor"
setpriv --reuid=nobody --clear-groups bash -c 'exec -a "postgres: x" dd if=/dev/zero of="$1" bs=4K count=64 oflag=dsync status=none' bash "$MOUNT/impostor"
fb explain db --json | python3 -c 'import json, sys
rows = json.load(sys.stdin)["rows"]
count = lambda task, critical: sum(r["writes"] for r in rows if r["task"] == task and (r["reason"] == "direct") == critical)
by = {r["rule"].split(":")[0] for r in rows if r["task"] == "postgres backend"}
sys.exit(not (count("postgres backend", True) and by == {"postgresql"} and count("dd", False) >= 64 and not count("dd", True)) and f"{rows}")' ||
    fail "a backend of PostgreSQL is not critical, or an impostor is"
pass "backends of PostgreSQL are critical, and a task that calls itself one is not"

for ((cycle = 1; cycle <= CYCLES; cycle++)); do
    python3 "$CLIENT" write "$SOCKETS" acknowledged --clients 6 >"client.out" 2>client.err &
    client=$!
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -n -c 2 -T 60 postgres >>"$DIR/pgbench.out" 2>&1 &
    load=$!
    OWN+=("$client" "$load")
    await "$PATIENCE" grep -q writing client.out || fail "the client does not write: $(cat client.err)"
    acknowledged_more "$client"
    doze 0 2200
    see
    kill_daemon
    end_postgres QUIT
    wait "$client" || fail "the client ended with an error: $(cat client.err)"
    wait "$load" || true
    unmount_dead
    no_stuck_tasks
    if ((cycle % 3 == 0)); then
        start_daemon --cache cache --backing backing --fuse "$DIR/volume"
        doze 0 100
        kill_daemon
    fi
    choose_database_flags postgresql
    start_volume "${FLAGS[@]}"
    check_file_system
    start_postgres || postgres_does_not_start
    check_postgres
done

most_runs cached
[[ ! -e /sys/kernel/btf/vmlinux || $CYCLES == 1 ]] || ((SEEN[awaited] > 0)) || fail "no write was known to be waited for in $TRACKED runs that asked"
(($(psql -c "SELECT count(*) FROM pgbench_history") > 0)) || fail "pgbench has done nothing"

# What is on the backing in the end needs no Forebay.
end_postgres TERM
umount "$MOUNT"
fb flush db >/dev/null
[[ $(status dirty_bytes) == 0 ]] || fail "a flush leaves $(status dirty_bytes) dirty bytes"
fb detach db --release >/dev/null
await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
DAEMON=
DEVICE=$(losetup -f --show backing)
check_file_system
start_postgres || postgres_does_not_start
check_postgres
end_postgres TERM
umount "$MOUNT"
losetup -d "$DEVICE"
pass "$KILLS kills, $TRACKED runs that asked who waits for a write (${SEEN[awaited]} in the cache for that), $COMMITS commits of $(sort -u acknowledged | wc -l) acknowledged are there ($SECONDS s)"
