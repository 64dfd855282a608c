#!/usr/bin/env bash
# The cache is thrown away at random instants (P4): PostgreSQL and files that are changed durably, on ext4 with a journal of
# 8 MiB, on an attached volume. The daemon is killed and the cache file deleted; from then on there is the backing alone.
# After `forebay recover` it must mount (the file system replays its journal), e2fsck, pg_amcheck and PostgreSQL's checksums must
# find nothing, and what is there must be a state that there was (tests/clients/dated_work.py: nothing is there that began after
# something was done that is missing), no older than what `forebay status` had said just before and `recover` says. Under
# `write-back` recover refuses, and the same must find faults.
#
# `+sync` behind `ordered:ORDER` or `journaled` is `--admission sync`: what is written back in the background goes past the cache, and
# what was in the cache and what went past it have to be in one order. It needs BTF, for the tracker knows what is synchronous.
#
# FOREBAY_INSTANTS is the number of instants for each policy: 1 by default, 30 in `make soak`; POLICIES are those that are tried.
# Where PostgreSQL does not start the files are looked at all the same.
source "$(dirname "$0")/harness.sh"

INSTANTS=${FOREBAY_INSTANTS:-1}
POLICIES=${POLICIES-ordered:completion ordered:barrier journaled journaled:flushes journaled:points ordered:completion+sync ordered:barrier+sync journaled+sync}
# Instants within which write-back has to show faults.
WRITE_BACK_MAX=${FOREBAY_WRITE_BACK:-8}
CLIENT=$ROOT/tests/clients/dated_work.py
CLIENTS=6

need python3 mkfs.ext4 e2fsck losetup setpriv
need_block_devices
source "$ROOT/tests/harness-postgresql.sh"

mkdir "$MOUNT"
MISSING=0

# A file system with a database, made once, on no volume.
make_image() {
    truncate -s 512M image
    mkfs.ext4 -q -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 image
    DEVICE=$(losetup -f --show image)
    mount "$DEVICE" "$MOUNT"
    init_postgres --wal-segsize=1 <<'CONF'
shared_buffers = 4MB
max_wal_size = 2MB
min_wal_size = 2MB
checkpoint_completion_target = 0.1
checkpoint_timeout = 30s
restart_after_crash = off
CONF
    start_postgres || postgres_does_not_start
    psql -c "CREATE EXTENSION amcheck"
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -i -q -s 1 postgres >pgbench.out 2>&1 || fail "pgbench: $(cat pgbench.out)"
    python3 "$CLIENT" prepare "$SOCKETS" "$MOUNT" --clients "$CLIENTS"
    end_postgres TERM
    umount "$MOUNT"
    losetup -d "$DEVICE"
    DEVICE=
}

# later TIME KEYS OBJECT: the later one of a time in seconds and of one in RFC 3339 (or null) somewhere in a JSON object.
later() {
    python3 - "$@" <<'PY'
import datetime, functools, json, sys
at, keys, object = float(sys.argv[1]), sys.argv[2].split("."), json.loads(sys.argv[3])
point = functools.reduce(lambda o, key: o[key], keys, object)
point = datetime.datetime.fromisoformat(point.replace("Z", "+00:00")).timestamp() if point else 0.0
print(max(point, at))
PY
}

# policy_flags CHOICE: $FLAGS are those of `forebay serve` for this choice of a policy.
policy_flags() {
    local policy=${1%+*}
    case $policy in
        # Small groups, so that a loss often comes in the middle of one that is being applied.
        journaled) FLAGS=(--write-policy journaled --group-size "$(any_of 256K 1M 4M)" --group-age "$(any_of 200ms 1s)") ;;
        # The client's hints: its flushes are points, or points are declared (`mark_points`).
        journaled:*) FLAGS=(--write-policy journaled --group-ends "${policy#*:}" --group-age 200ms) ;;
        *:*) FLAGS=(--write-policy "${policy%%:*}" --order "${policy#*:}") ;;
        *) FLAGS=(--write-policy "$policy") ;;
    esac
    if [[ $1 == *+sync ]]; then
        FLAGS+=(--admission sync)
    fi
}

# Declares points until the daemon is gone.
mark_points() {
    while fb mark db; do
        sleep 0.2
    done >marks 2>&1
}

# run_until_lost CHOICE MS_MIN IOPS: load on a fresh volume whose backing takes IOPS operations a second, until at a random
# instant, MS_MIN after the load's beginning or later, the cache is lost. $AS_OF is the time as of which the backing said to be;
# $CACHED and $PAST grow by the writes that `+sync` had in the cache and past it.
run_until_lost() {
    local client load marks= asked said stale cached past
    policy_flags "$1"
    cp --sparse=always image backing
    rm -f backing.* cache log
    "$FOREBAY" format cache --size 96M --backing backing >/dev/null
    serve_plain --cache cache --backing backing --fuse "$DIR/volume" "${FLAGS[@]}" \
        --decorate "backing:throttle:iops=$3"
    attach_device
    mount "$DEVICE" "$MOUNT"
    start_postgres || postgres_does_not_start
    python3 "$CLIENT" load "$SOCKETS" "$MOUNT" log --clients "$CLIENTS" >client.out 2>client.err &
    client=$!
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -n -c 2 -T 60 postgres >pgbench.out 2>&1 &
    load=$!
    OWN+=("$client" "$load")
    if [[ $1 == journaled:points ]]; then
        mark_points &
        marks=$!
        OWN+=("$marks")
    fi
    await "$PATIENCE" grep -q writing client.out || fail "the client does not write: $(cat client.err)"
    doze "$2" 6000
    asked=$(date +%s.%N)
    said=$(fb status db --json)
    kill_daemon
    rm cache
    if [[ $1 != write-back ]]; then
        [[ $said == *'"backing_consistent": true'* || $said == *'"backing_consistent":true'* ]] ||
            fail "the backing was not consistent under $1: $said"
    fi
    if [[ $1 == *+sync ]]; then
        cached=$(because sync "$said")
        past=$(because not-sync "$said")
        CACHED=$((CACHED + cached)) PAST=$((PAST + past))
    fi
    stale=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["staleness_seconds"])' "$said")
    AS_OF=$(later "$(python3 -c 'import sys; print(float(sys.argv[1]) - float(sys.argv[2]))' "$asked" "$stale")" recovery_point "$said")
    end_postgres QUIT
    wait "$client" || fail "the client ended with an error: $(cat client.err)"
    wait "$load" || true
    if [[ -n $marks ]]; then
        wait "$marks"
        grep -q '^[0-9]' marks || fail "no point was declared: $(cat marks)"
    fi
    unmount_dead
}

# because REASON STATUS: how many writes went where they went for that reason.
because() { python3 -c 'import json, sys; print(json.loads(sys.argv[2])["writes_by_reason"].get(sys.argv[1], 0))' "$@"; }

# recover_backing: a backing gets what its journal has committed, which under `ordered` is nothing. A recovery that is killed is
# begun anew; one that has ended has nothing left to do.
recover_backing() {
    if ((RANDOM % 3 == 0)); then
        "$FOREBAY" recover backing >/dev/null 2>&1 &
        OWN=($!)
        doze 0 30
        kill_process "${OWN[0]}"
        OWN=()
    fi
    RECOVERED=$("$FOREBAY" recover backing --json) || fail "$WHAT: recover failed"
    AS_OF=$(later "$AS_OF" as_of.time "$RECOVERED")
    [[ $("$FOREBAY" recover backing --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["blocks_applied"])') == 0 ]] ||
        fail "$WHAT: a second recovery finds something to do"
}

# Whether the backing alone is what it should be, under a loop device or served without its cache, which has to be asked for
# twice. Faults are lines in the file `faults`.
judge() {
    local served=false
    : >faults
    if ((RANDOM % 2)); then
        refused 3 "accept-stale" "$FOREBAY" serve --name db "${CONTROL[@]}" --no-cache --backing backing
        serve_plain --no-cache --accept-stale --backing backing --fuse "$DIR/volume"
        attach_device
        served=true
    else
        DEVICE=$(losetup -f --show backing)
    fi
    judge_device
    if [[ $served == true ]]; then
        stop_daemon
    else
        losetup -d "$DEVICE"
    fi
    DEVICE=
}

judge_device() {
    if ! mount "$DEVICE" "$MOUNT" 2>mount.err; then
        echo "mount: $(tail -n 1 mount.err)" >>faults
        return 0
    fi
    umount "$MOUNT"
    e2fsck -fn "$DEVICE" >fsck.out 2>&1 || echo "e2fsck: $(awk '!/^Pass|^e2fsck|^$/ && n++ < 3' ORS=';' fsck.out)" >>faults
    mount "$DEVICE" "$MOUNT"
    judge_database
    umount "$MOUNT"
}

judge_database() {
    local only=() found
    if ! start_postgres; then
        echo "PostgreSQL does not start: $(grep -v 'starting up' "$DIR/postgres.log" | grep 'PANIC\|FATAL' | tail -n 1)" >>faults
        end_postgres QUIT
        only=(--only files)
    fi
    # The check of a broken database or file system may fail in any way.
    if found=$(python3 "$CLIENT" check "$SOCKETS" "$MOUNT" log --as-of "$AS_OF" "${only[@]}" 2>check.err); then
        python3 -c 'import json, sys; [print("order:", f) for f in json.loads(sys.argv[1])["faults"]]' "$found" >>faults
        FOUND=$found
    else
        echo "check: $(tail -n 1 check.err)" >>faults
    fi
    ((${#only[@]} == 0)) || return 0
    as_postgres "$BIN/pg_amcheck" -h "$SOCKETS" --heapallindexed postgres >amcheck.out 2>&1 ||
        echo "pg_amcheck: $(head -n 1 amcheck.out)" >>faults
    end_postgres TERM
    as_postgres "$BIN/pg_checksums" --check -D "$DATA" >checksums.out 2>&1 ||
        echo "pg_checksums: $(grep -m 1 -i 'error\|fail' checksums.out)" >>faults
}

found() { python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$FOUND" "$1"; }

make_image

# was_tried CHOICE THERE: something of the load is on the backing, and where it is to go two ways, it went both.
was_tried() {
    (($2 > 0)) && { [[ $1 != *+sync ]] || ((CACHED > 0 && PAST > 0)); }
}

for choice in $POLICIES; do
    if [[ $choice == *+sync && ! -e /sys/kernel/btf/vmlinux ]]; then
        [[ ${CI:-} != true ]] || fail "this kernel has no BTF"
        note "$choice is left out: this kernel has no BTF"
        continue
    fi
    missing=0 there=0 CACHED=0 PAST=0
    # On a slow machine a few more, later ones, until something of the load is there.
    for ((instant = 1; instant <= INSTANTS + 4; instant++)); do
        if ((instant > INSTANTS)) && was_tried "$choice" "$there"; then
            break
        fi
        WHAT="$choice, instant $instant"
        FOUND=
        if ((instant <= INSTANTS)); then
            run_until_lost "$choice" 1000 "$(any_of 300 1000 3000)"
        else
            run_until_lost "$choice" 5000 3000
        fi
        recover_backing
        judge
        [[ ! -s faults ]] || fail "$WHAT: $(cat faults)"
        more_there=$(found there)
        more_missing=$(found missing)
        there=$((there + more_there)) missing=$((missing + more_missing))
        note "$WHAT: $FOUND"
    done
    ((there > 0)) || fail "$choice: none of the load's work was on the backing"
    was_tried "$choice" "$there" || fail "$choice: $CACHED writes were in the cache and $PAST went past it, so that nothing was tried"
    MISSING=$((MISSING + missing))
    pass "$choice: the cache was lost at $INSTANTS instants; $there pieces of work were there, $missing missing, none out of order"
done
((MISSING > 0)) || fail "nothing was ever missing, so that nothing was tried"

broken=0 tried=0
while ((tried < WRITE_BACK_MAX && (broken == 0 || ${FOREBAY_INSTANTS:-0} > 2))); do
    tried=$((tried + 1))
    FOUND=
    run_until_lost write-back 3500 120
    refused 3 "not consistent" "$FOREBAY" recover backing
    judge
    note "write-back, instant $tried: ${FOUND:-nothing could be looked at}"
    if [[ -s faults ]]; then
        broken=$((broken + 1))
        note "write-back, instant $tried: $(head -n 3 faults | cut -c 1-200)"
    fi
done
((broken > 0)) || fail "write-back: no fault after $tried losses of the cache; this test cannot fail"
figure_line "losses of the cache" $((INSTANTS * $(wc -w <<<"$POLICIES") + tried))
pass "write-back: faults after $broken of $tried losses of the cache ($SECONDS s)"
