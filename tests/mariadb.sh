#!/usr/bin/env bash
# MariaDB under sysbench's OLTP on ext4 on an attached volume with the rules `mariadb`: what a connection writes before its answer
# is critical, what InnoDB writes back is not. Then the daemon is killed under the load, and the server with it; InnoDB recovers,
# CHECK TABLE finds nothing, every acknowledged row is there.
source "$(dirname "$0")/harness.sh"

CYCLES=${FOREBAY_CYCLES:-2}
ROWS=1000

need python3 mkfs.ext4 e2fsck mariadbd mariadb mariadb-install-db mariadb-admin sysbench
need_block_devices
[[ -e /sys/kernel/btf/vmlinux ]] || skip "this kernel has no BTF"

SOCKET=$DIR/mariadb.sock
SERVER=

start_mariadb() {
    mariadbd --no-defaults --user=root --datadir="$MOUNT/data" --socket="$SOCKET" --skip-networking --pid-file="$DIR/mariadb.pid" \
        --innodb-buffer-pool-size=8M --innodb-log-file-size=4M --innodb-max-dirty-pages-pct-lwm=1 --innodb-flush-method=fsync >>"$DIR/mariadb.log" 2>&1 </dev/null &
    SERVER=$!
    OWN+=("$SERVER")
    await "$PATIENCE" mariadb_answers && ! ended "$SERVER" || fail "MariaDB does not start: $(tail "$DIR/mariadb.log")"
}

mariadb_answers() { ended "$SERVER" || mariadb-admin --no-defaults -S "$SOCKET" -u root ping >/dev/null; }

sql() { mariadb --no-defaults -S "$SOCKET" -u root -N -B "$@"; }

bench() { sysbench "$1" --mysql-socket="$SOCKET" --mysql-user=root --tables=2 --table-size=$ROWS --rand-seed="$RANDOM" "${@:2}"; }

# insert CLIENT FIRST: rows of its own from the next number on, one transaction each, whose numbers come out as they are acknowledged.
insert() {
    trap - ERR
    python3 -c 'import itertools, sys
for n in itertools.count(int(sys.argv[2])):
    print(f"INSERT INTO acknowledged VALUES ({sys.argv[1]}, {n}); SELECT {sys.argv[1]}, {n};")' "$1" "$2" 2>/dev/null |
        exec mariadb --no-defaults -S "$SOCKET" -u root -N -B -n sbtest >>acknowledged 2>>client.err
}

start_volume() {
    serve "$@"
    attach_device
}

# went TASK REASON [DATA]: so many writes of MariaDB went for this reason to where they went, or to the `cache` or `backing`, between before.json
# and now, of this kind of data if one is given.
went() {
    fb explain db --json >now.json
    python3 - "$@" <<'END'
import json, sys
reason, data = sys.argv[1], sys.argv[2:]
counts = lambda r: r["task"].startswith("mariadb") and reason in (r["reason"], "cache" if r["cached"] else "backing") and data in ([], [r["data"]])
count = lambda f: sum(r["writes"] for r in json.load(open(f))["rows"] if counts(r))
print(count("now.json") - count("before.json"))
END
}

waited() {
    fb waits db --json | python3 -c 'import json, sys
print(sum(r["count"] for r in json.load(sys.stdin) if r["kind"] == sys.argv[1]))' "$1"
}

make_pair 64M 512M
start_volume --admission cp+pi --rules mariadb
mkfs.ext4 -q "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
mariadb-install-db --no-defaults --user=root --datadir="$MOUNT/data" --auth-root-authentication-method=normal --skip-test-db \
    --skip-name-resolve >install.out 2>&1 || fail "mariadb-install-db: $(tail -n 5 install.out)"
start_mariadb
sql -e "CREATE DATABASE sbtest; CREATE TABLE sbtest.acknowledged (client INT, n INT, PRIMARY KEY (client, n))"
bench oltp_write_only prepare >sysbench.out 2>&1 || fail "sysbench: $(cat sysbench.out)"

WHAT=rules
fb explain db --json >before.json
bench oltp_read_write --threads=4 --events=400 --time=60 run >sysbench.out 2>&1 || fail "$WHAT: sysbench: $(cat sysbench.out)"
transactions=$(sed -n 's/^ *transactions: *\([0-9]*\).*/\1/p' sysbench.out)
fb explain db --json >now.json
direct=$(went direct)
# One write of the log is for at most four of them, one of each connection.
((transactions > 0 && direct * 8 > transactions)) || fail "$WHAT: of $transactions transactions only $direct writes are critical"
is_written_back() { (($(went not-critical database) > 0)); }
await "$PATIENCE" is_written_back || fail "$WHAT: no page was written back, so that it was not tested"
written_back=$(went not-critical database)
(($(went direct database) * 10 <= written_back)) || fail "$WHAT: writing pages back is critical: $(went direct database) direct, $written_back not"
pass "$WHAT: $direct writes of $transactions transactions were direct; $written_back of pages were not critical, and $(went direct database) were"
(($(waited journal) > 0 && $(waited condition) > 0)) || fail "$WHAT: no wait of a connection is known"

# acknowledged CLIENT: the last number that it was told of.
acknowledged() { awk -v client="$1" '$1 == client && $2 > last { last = $2 } END { print last + 0 }' acknowledged; }

check_mariadb() {
    local client last faults
    for client in 1 2; do
        last=$(acknowledged $client)
        # All up to there without a gap, and one more perhaps, which was asked for and not answered.
        [[ $(sql -e "SELECT COUNT(*) = MAX(n) AND MAX(n) BETWEEN $last AND $last + 1 FROM sbtest.acknowledged WHERE client = $client") == 1 ]] ||
            fail "$WHAT: client $client was told of $last rows, and there are $(sql -e "SELECT COUNT(*), MAX(n) FROM sbtest.acknowledged WHERE client = $client")"
    done
    faults=$(sql -e "CHECK TABLE sbtest.acknowledged, sbtest.sbtest1, sbtest.sbtest2 EXTENDED" | grep -v 'status.*OK$') || true
    [[ -z $faults ]] || fail "$WHAT: CHECK TABLE: $faults"
    [[ $(sql -e "SELECT COUNT(*) FROM sbtest.sbtest1") == "$ROWS" ]] || fail "$WHAT: rows of sysbench are missing"
}

: >acknowledged
for ((cycle = 1; cycle <= CYCLES; cycle++)); do
    WHAT="kill $cycle"
    bench oltp_read_write --threads=3 --time=60 run >sysbench.out 2>&1 &
    OWN+=($!)
    # What was asked for and not answered is there or not; what comes next has the number behind.
    for client in 1 2; do
        insert $client $(($(sql -e "SELECT COALESCE(MAX(n), 0) FROM sbtest.acknowledged WHERE client = $client") + 1)) &
        clients[client]=$!
        OWN+=($!)
    done
    acknowledged_more "${clients[1]}"
    doze 0 1500
    see
    kill_daemon
    kill_process "$SERVER"
    for pid in "${OWN[@]}"; do { kill_process "$pid"; } 2>/dev/null; done
    OWN=()
    unmount_dead
    no_stuck_tasks
    choose_database_flags mariadb
    start_volume "${FLAGS[@]}"
    check_file_system
    start_mariadb
    check_mariadb
done
most_runs cached
mariadb-admin --no-defaults -S "$SOCKET" -u root shutdown >/dev/null || fail "MariaDB does not stop"
await "$PATIENCE" ended "$SERVER" || fail "MariaDB does not stop"
umount "$MOUNT"
fb detach db
stop_daemon
pass "$KILLS kills; CHECK TABLE finds nothing, and all $(sort -u acknowledged | wc -l) acknowledged rows are there ($SECONDS s)"
