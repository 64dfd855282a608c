#!/usr/bin/env bash
# The guide's example of a consistency point with PostgreSQL, word for word: what docs/guide/consistency-points.md says is run here,
# while clients commit. Then the daemon is killed and the cache thrown away. The backing, after `forebay recover`, is a file
# system with no journal to replay; PostgreSQL starts on it and has everything that was committed before the point, and nothing
# that came after it; with the file that the example saves and the archived log it is a base backup, too.
source "$(dirname "$0")/harness.sh"

GUIDE=$ROOT/docs/guide/consistency-points.md
CLIENT=$ROOT/tests/clients/postgresql_commits.py

need python3 mkfs.ext4 e2fsck dumpe2fs losetup setpriv fsfreeze
need_block_devices
source "$ROOT/tests/harness-postgresql.sh"

# the_guide_says WORDS: the guide's block of commands with these words, for this volume and these directories.
the_guide_says() {
    awk -v words="$1" '/^```/ { if (inside && index(text, words)) { printf "%s", text; exit } inside = !inside; text = ""; next }
        inside { text = text $0 "\n" }' "$GUIDE" |
        sed -e "s#/srv/pg#$MOUNT#g" -e "s#/srv/backup/#$DIR/backup/#g" -e "s#/archive/#$DIR/archive/#g" -e 's#\bpg\b#db#g' \
            -e "s#/dev/sdb#$DIR/backing#g" >said
    [[ -s said ]] || fail "the guide has no commands with '$1'"
}

# Where the guide's commands find what they name: this daemon and this server.
mkdir bin backup
install -d -o postgres archive
# shellcheck disable=SC2016
printf '#!/bin/sh\ncase $1 in recover) ;; *) set -- "$@" --control "%s" ;; esac; exec "%s" "$@"\n' "$DIR/control" "$FOREBAY" >bin/forebay
printf '#!/bin/sh\nexec "%s" -h "%s" -d postgres "$@"\n' "$BIN/psql" "$SOCKETS" >bin/psql
chmod +x bin/*

as_the_guide_says() {
    the_guide_says "$1"
    PATH=$DIR/bin:$PATH bash -e said >out 2>err || fail "the guide's commands fail: $(cat said err)"
    ! grep -v "^NOTICE" err || fail "the guide's commands complain: $(cat err)"
}

# commits FILE: PostgreSQL starts on the backing alone and has what this file says was acknowledged.
commits() {
    start_postgres || postgres_does_not_start
    local there
    there=$(python3 "$CLIENT" check "$SOCKETS" "$1" 2>&1) || fail "$WHAT: $there"
    as_postgres "$BIN/pg_amcheck" -h "$SOCKETS" --heapallindexed postgres >amcheck.out 2>&1 || fail "$WHAT: $(cat amcheck.out)"
    THERE=$there
}

make_pair 96M 512M
serve --fuse "$DIR/volume" --write-policy journaled
attach_device
mkfs.ext4 -q -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
the_guide_says archive_command
init_postgres --wal-segsize=1 < <(cat said - <<'CONF'
shared_buffers = 4MB
restart_after_crash = off
CONF
)
start_postgres || postgres_does_not_start
psql -c "CREATE EXTENSION amcheck; CREATE TABLE after_the_point (n int)"
as_the_guide_says "group-ends=points"
python3 "$CLIENT" write "$SOCKETS" acknowledged --clients 4 >client.out 2>client.err &
client=$!
OWN+=("$client")
await "$PATIENCE" grep -q writing client.out || fail "the client does not write: $(cat client.err)"
acknowledged_more "$client"
doze 0 1000
cp acknowledged before
as_the_guide_says pg_backup_start
psql -c "INSERT INTO after_the_point VALUES (1)"
segment=$(psql -c "SELECT pg_walfile_name(pg_switch_wal())")
await "$PATIENCE" test -f "archive/$segment" || fail "the log is not archived"
grep -q "START WAL LOCATION" backup/nightly.backup_label || fail "no label file was saved: $(cat backup/*)"
(($(status backing_point) > 0)) || fail "the backing does not rest at the point: $(fb status db --json)"
is_cached $((1 << 20))
kill_daemon
rm cache
end_postgres QUIT
wait "$client" || fail "the client ended with an error: $(cat client.err)"
unmount_dead

as_the_guide_says "consistency point 17"
(($(grep -c "consistency point .* 'nightly'" out) == 2)) || fail "the label is not listed, or not recovered to: $(cat out)"
[[ $("$FOREBAY" recover backing) == *"consistency point"*"'nightly'"*" 0 blocks"* ]] || fail "the backing is not at the point: $(cat out)"

! dumpe2fs -h backing 2>&1 | grep needs_recovery || fail "the file system at the point has a journal to replay"
cp --sparse=always backing copy

WHAT="the backing at the point"
DEVICE=$(losetup -f --show backing)
check_file_system
commits before
[[ $(psql -c "SELECT count(*) FROM after_the_point") == 0 ]] || fail "$WHAT has what came after the point"
end_postgres TERM
umount "$MOUNT"
losetup -d "$DEVICE"
pass "PostgreSQL on the backing at the point: $THERE commits, at least all $(wc -l <before) that were acknowledged before it"

WHAT="the base backup"
DEVICE=$(losetup -f --show copy)
mount "$DEVICE" "$MOUNT"
as_the_guide_says recovery.signal
commits before
[[ $(psql -c "SELECT count(*) FROM after_the_point") == 1 ]] || fail "$WHAT lacks what was archived after the point"
end_postgres TERM
umount "$MOUNT"
losetup -d "$DEVICE"
DEVICE=
pass "the copy as a base backup, with the archived log: $THERE commits ($SECONDS s)"
