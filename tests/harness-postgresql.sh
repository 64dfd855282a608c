#!/usr/bin/env bash
# What tests with a PostgreSQL server share, beside harness.sh, which is read first.

BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[[ -x $BIN/postgres && -x $BIN/pgbench && -x $BIN/pg_amcheck && -x $BIN/pg_checksums ]] || skip "PostgreSQL is not installed"
id postgres >/dev/null 2>&1 || skip "there is no user postgres"

DATA=$MOUNT/data
SOCKETS=$DIR/sockets
install -d -o postgres "$SOCKETS"
POSTGRES=

as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
psql() { as_postgres "$BIN/psql" -h "$SOCKETS" -qAtX -v ON_ERROR_STOP=1 "$@"; }

# init_postgres FLAGS...: makes an empty database in $DATA; its settings come from standard input.
init_postgres() {
    install -d -o postgres "$DATA"
    as_postgres "$BIN/initdb" -D "$DATA" --data-checksums "$@" -A trust -U postgres >initdb.out 2>&1 ||
        fail "initdb: $(cat initdb.out)"
    cat >>"$DATA/postgresql.conf"
}

# Starts it in a session of its own, so that every process of it can be found; false if it does not answer.
start_postgres() {
    rm -f "$SOCKETS"/.s.*
    setsid setpriv --reuid postgres --regid postgres --init-groups "$BIN/postgres" -D "$DATA" \
        -k "$SOCKETS" -c listen_addresses= >"$DIR/postgres.log" 2>&1 </dev/null &
    POSTGRES=$!
    OWN+=("$POSTGRES")
    await "$PATIENCE" postgres_answers && ! ended "$POSTGRES"
}

postgres_answers() { ended "$POSTGRES" || "$BIN/pg_isready" -q -h "$SOCKETS"; }

postgres_does_not_start() { fail "PostgreSQL does not start: $(tail "$DIR/postgres.log" | cut -c 1-200)"; }

no_session() { ! pgrep -s "$POSTGRES" >/dev/null; }

# Ends it in the way that its state allows; its disk may be gone.
end_postgres() {
    kill "-$1" "$POSTGRES" 2>/dev/null || true
    if ! await 20 no_session; then
        pkill -KILL -s "$POSTGRES" || true
        await 20 no_session || fail "processes of PostgreSQL cannot be killed: $(pgrep -a -s "$POSTGRES")"
    fi
    wait "$POSTGRES" 2>/dev/null || true
    OWN=()
}

# kills_lose_no_commit SERVE POLICY...: a database on a file system on the volume that `SERVE POLICY` serves and attaches. Under each of the
# policies the daemon is killed while clients commit, and what the next one serves has every commit that was acknowledged, and a whole file system.
kills_lose_no_commit() {
    local serve=$1 policies=("${@:2}") client=$ROOT/tests/clients/postgresql_commits.py writer number
    rm -f acknowledged
    "$serve" "${policies[0]}"
    mkfs.ext4 -q -E lazy_itable_init=1,nodiscard "$DEVICE"
    mkdir -p "$MOUNT"
    mount "$DEVICE" "$MOUNT"
    init_postgres <<'CONF'
shared_buffers = 16MB
max_wal_size = 32MB
min_wal_size = 32MB
restart_after_crash = off
CONF
    sync -f "$MOUNT"
    start_postgres || postgres_does_not_start
    for ((number = 1; number <= ${#policies[@]}; number++)); do
        python3 "$client" write "$SOCKETS" acknowledged --clients 4 >client.out 2>client.err &
        writer=$!
        OWN+=("$writer")
        await "$PATIENCE" grep -q writing client.out || fail "$WHAT: the client does not write: $(cat client.err)"
        acknowledged_more "$writer"
        doze 200 1500
        see
        kill_daemon
        end_postgres QUIT
        wait "$writer" || fail "$WHAT: the client ended with an error: $(cat client.err)"
        unmount_dead
        # The last one is served as the first was.
        "$serve" "${policies[number % ${#policies[@]}]}"
        check_file_system
        start_postgres || postgres_does_not_start
        COMMITS=$(python3 "$client" check "$SOCKETS" acknowledged 2>&1) || fail "$WHAT: after kill $KILLS: $COMMITS"
    done
    end_postgres TERM
    umount "$MOUNT"
    fb flush db >/dev/null || fail "$WHAT: flush failed"
    fb detach db >/dev/null
    stop_daemon
    pass "$WHAT: $COMMITS commits of $(sort -u acknowledged | wc -l) acknowledged are there after ${#policies[@]} kills"
}
