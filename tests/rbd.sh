#!/usr/bin/env bash
# A backing that is an image of a Ceph cluster: a real one of one node, in a network namespace of the script's own. The record of what the
# daemon sent is judged at every instant, as in ordered.sh and journaled.sh. The daemon is killed under load and started again, which
# needs nobody's help. A second daemon is refused. The OSD is silent, restarted and full, the monitor silent, and rights are taken away, which clients do not notice.
# Another host takes over from a daemon that is cut off and has clients: the backing is at the consistency point that was declared, exactly, and
# nothing of the first host comes when it is back. PostgreSQL loses nothing when the daemon is killed. In the end the pool is deleted.
#
# N is the number of requests of a recorded run: 1,500 by default.
if [[ -z ${FOREBAY_RBD_NET:-} ]]; then
    [[ $(id -u) != 0 ]] || exec unshare --net env FOREBAY_RBD_NET=own "$0" "$@"
fi
source "$(dirname "$0")/harness.sh"

N=${N:-1500}
NODE=$ROOT/scripts/ceph-one-node.sh
CEPH=$DIR/ceph
[[ $(id -u) == 0 ]] || skip "only root has network namespaces"
need ceph-mon ceph-osd ceph rbd ip nsenter qemu-io python3 mkfs.ext4 e2fsck losetup setpriv
need_block_devices
source "$ROOT/tests/harness-postgresql.sh"
source "$ROOT/tests/harness-hosts.sh"

end_cluster() {
    local code=$?
    trap - EXIT ERR
    set +e
    ceph_signal CONT
    "$NODE" down "$CEPH" >/dev/null 2>&1
    end_other_host
    (exit "$code")
    cleanup
}
trap end_cluster EXIT

# ceph_signal SIGNAL [DAEMON]: to one of the cluster's daemons, or to all.
ceph_signal() {
    local file
    for file in "$CEPH"/${2:-*}.pid; do
        kill "-$1" "$(cat "$file")" 2>/dev/null || true
    done
}

make_store_address
"$NODE" up "$CEPH" --auth --address "$ADDRESS" >/dev/null || fail "the cluster does not start"
source "$CEPH/env"
# An OSD in memory that is to be started again has to write down what it holds.
ceph config set osd osd_fast_shutdown false || fail "the cluster cannot be configured"
note "a cluster after $SECONDS s"

make_other_host

# new_pair NAME BYTES FORMAT_FLAGS...: a new image and a cache for it.
new_pair() {
    local name=$1 bytes=$2
    shift 2
    rm -f cache
    # That user has the rights that the guide names, and no others.
    BACKING="rbd:rbd/$name,conf=$CEPH_CONF,id=forebay,timeout=2s"
    rbd create "$name" --size "$bytes" || fail "rbd create failed"
    "$FOREBAY" format "$DIR/cache" --backing "$BACKING" "$@" >formatted || fail "format failed"
    grep -q "label lies behind the volume" formatted || fail "the image has no label: $(cat formatted)"
}

serve_image() { serve_plain --cache "$DIR/cache" --backing "$BACKING" --nbd "unix:$NBD" "$@"; }

write_stamps() { stamp "$1" write --target "nbd:unix:$NBD" --state state --seed $RANDOM "${@:2}"; }

# judge_image NAME STATE: what Ceph's own program reads.
judge_image() {
    rm -f exported
    rbd export --no-progress "$1" exported || fail "$WHAT: rbd export failed"
    stamp 0 verify --target "file:$DIR/exported" --state "$2" --quiet
}

# logged WORDS: the daemon has said so since the log was emptied.
logged() { grep -q -- "$1" "$LOG"; }
wants_line() { await "$PATIENCE" logged "$1" || fail "$WHAT: the daemon does not log '$1'"; }
is_state() { [[ " $* " == *" $(status state) "* ]]; }
wants_state() { await "$PATIENCE" is_state "$@" || fail "$WHAT: the volume is $(status state)"; }

# --- every instant of what is sent

recorded() {
    rm -f state record acks
    new_pair "$1" 48M --size 8M --volume-size 32M
    serve_image --decorate backing:record:file=record "${@:2}"
    write_stamps 0 --acks acks --operations "$N" --threads 4 --largest 8 --mix 94,0,0,6
    see
    went_to_cache 2
    kill_daemon
}

WHAT=ordered
recorded ordered --write-policy ordered --order completion
stamp 0 order --record record --acks acks --order completion
(($(figure instants) > 100)) || fail "$(figure instants) instants are too few: $STAMPED"
stamp 1 order --record record --acks acks --order completion --swaps 1
pass "ordered: consistent at all $(figure instants) instants"

WHAT=journaled
recorded groups --write-policy journaled --group-size 1M --group-age 100ms
rbd info groups.journal >/dev/null || fail "the journal is not in an image beside the backing"
stamp 0 order --record record --acks acks --journal
(($(figure instants) > 100 && $(figure groups) > 3)) || fail "too little was tried: $STAMPED"
pass "journaled: a group's end at all $(figure instants) instants"
stamp 1 order --record record --acks acks

# --- one owner, also after a kill

WHAT="one owner"
rm -f state
: >"$LOG"
new_pair owned 48M --size 24M --volume-size 40M
for cycle in 1 2 3; do
    serve_image --write-policy write-back
    if ((cycle > 1)); then
        stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet
        (($(grep -c "the lock of the RBD image was broken.*spec=rbd:rbd/owned," "$LOG") == cycle - 1)) || fail "the lock of the killed daemon was not found"
    fi
    if ((cycle < 3)); then
        kill_daemon_under_writer 300 1200 --target "nbd:unix:$NBD" --state state --largest 64 --threads 4
    fi
done
refused 3 "in use by another process of this host (process $DAEMON)" "$FOREBAY" serve --name two --no-cache --accept-stale \
    --backing "$BACKING" --control "$DIR/control2" --nbd "unix:$DIR/nbd2"
refused 3 "in use by another process of this host" "$FOREBAY" recover "$BACKING"
refused 3 "in use by the Ceph client at $ADDRESS:0/.*give --takeover" "$DIR/there" recover "$BACKING"
kill_daemon
# The other host knows nothing of the dead one's process, and the label says that its cache has not been emptied.
refused 3 "in use by the Ceph client" "$DIR/there" recover "$BACKING"
pass "a killed daemon's image is its host's again at once, and nobody else's"

# --- a sick cluster

WHAT=sick
# fresh NAME: a volume on a new image, all of it in the cache, so that no write of a part of a block has to read the image.
fresh() {
    rm -f state
    : >"$LOG"
    new_pair "$1" 48M --size 128M --volume-size 40M
    serve_image --write-policy write-back
    qemu-io -f raw -c "write -P 0 0 20M" -c "write -P 0 20M 20M" "nbd+unix:///?socket=$NBD" >filled || fail "$WHAT: $(cat filled)"
    fb flush db >/dev/null || fail "$WHAT: flush failed"
}
# The cluster takes everything again; a flush that was asked for while it did not may tell so.
takes_all() { fb flush db >/dev/null 2>&1; }
absorbed() { write_stamps 0 --operations 250 --largest 64 --threads 4 --mix 92,0,4,4; }
fresh sick
absorbed
fb flush db >/dev/null || fail "flush failed"

WHAT="the OSD is silent"
ceph_signal STOP osd.0
absorbed
fb flush db >/dev/null 2>&1 &
flush=$!
OWN+=("$flush")
wants_line "the cluster does not answer in time"
wants_state degraded
sleep 2
! ended "$flush" || fail "$WHAT: a flush ended, which nothing can be known of"
absorbed
ceph_signal CONT osd.0
wait "$flush" || fail "$WHAT: the flush failed after all"
wants_state healthy
fb flush db >/dev/null || fail "$WHAT: nothing goes to the backing"
judge_image sick state
pass "$WHAT for a while: no client notices, no flush ends, nothing is lost"

WHAT="the OSD is restarted"
stop_osd() {
    ceph_signal TERM osd.0
    await "$PATIENCE" ended "$(cat "$CEPH/osd.0.pid")" || fail "the OSD does not end"
}
start_osd() { ceph-osd --setuser root --setgroup root -i 0 >/dev/null 2>&1 || fail "the OSD does not start"; }
stop_osd
absorbed
start_osd
absorbed
await "$PATIENCE" takes_all || fail "$WHAT: nothing goes to the backing"
judge_image sick state
pass "$WHAT: no client notices, nothing is lost"

WHAT="the monitor is silent"
ceph_signal STOP mon.a
absorbed
fb flush db >/dev/null || fail "$WHAT: nothing goes to the backing"
refused 1 "no monitor of the cluster answers" "$FOREBAY" recover "rbd:rbd/owned,conf=$CEPH_CONF,id=forebay,timeout=1s"
ceph_signal CONT mon.a
judge_image sick state
pass "$WHAT: the volume goes on, and a start says so"

WHAT="the cluster is full"
ratios() {
    ceph osd set-full-ratio "$3" && ceph osd set-backfillfull-ratio "$2" && ceph osd set-nearfull-ratio "$1"
} >/dev/null 2>&1
stop_daemon
# What takes no more room than before is written all the same, so that nothing is there before.
rm -f state
: >"$LOG"
new_pair full 48M --size 128M --volume-size 40M
serve_image --write-policy write-back
ratios 0.0000001 0.0000002 0.0000003 || fail "the ratios cannot be set"
is_full() { ceph health detail | grep -q 'full osd(s)'; }
await "$PATIENCE" is_full || fail "the cluster does not become full"
absorbed
fb flush db >/dev/null 2>&1 &
flush=$!
wants_line "no space left on the device"
reason_has() { [[ $(status reason) == *"$1"* ]]; }
await "$PATIENCE" reason_has "no space left" || fail "$WHAT: it is told as: $(status reason)"
absorbed
# Reads are answered meanwhile, and writes that wait are not: neither hides why.
for _ in {1..10}; do
    reason_has "no space left" || fail "$WHAT: it is told as: $(status reason), $(status state)"
    sleep 0.5
done
ratios 0.85 0.9 0.95
wait "$flush" || true
await "$PATIENCE" takes_all || fail "$WHAT: nothing goes to the backing"
judge_image full state
stop_daemon
pass "$WHAT: no client notices, the log says so, and all is there when it has room"

WHAT="rights are taken away"
# What somebody may do is in a ticket, which is looked at when he connects.
ceph config set mon auth_service_ticket_ttl 4 || fail "the cluster cannot be configured"
may() {
    ceph auth caps client.forebay mon 'profile rbd' osd "$1 pool=rbd" >/dev/null 2>&1 || fail "rights cannot be set"
    stop_osd
    # The ticket from before.
    sleep 4
    start_osd
}
fresh rights
absorbed
may "profile rbd-read-only"
fb flush db >/dev/null 2>&1 &
flush=$!
wants_line "operation not permitted"
wants_state degraded
absorbed
may "profile rbd"
wait "$flush" || true
await "$PATIENCE" takes_all || fail "$WHAT: nothing goes to the backing"
wants_state healthy
judge_image rights state
kill_daemon
ceph config rm mon auth_service_ticket_ttl || fail "the cluster cannot be configured"
pass "$WHAT: no client notices, the log says so, and all is there when they are given back"

# --- another host takes over from one that is cut off and has clients

WHAT=takeover
new_pair taken 200M --size 256M --volume-size 32M
judge() { judge_image taken "$1"; }
taken_over_while_cut_off journaled "in use by the Ceph client at $THERE:0/.*give --takeover"
pass "another host is at the point that was declared, exactly, and the first writes nothing more and answers with errors alone"

# --- PostgreSQL

WHAT=PostgreSQL
new_pair postgresql 300M --size 48M --volume-size 280M
serve_database() {
    serve_plain --cache "$DIR/cache" --backing "$BACKING" --fuse "$DIR/volume" --write-policy "$1"
    attach_device
}
kills_lose_no_commit serve_database write-back journaled

# --- the pool is deleted

WHAT="the pool is deleted"
fresh gone
absorbed
ceph osd pool delete rbd rbd --yes-i-really-really-mean-it >/dev/null 2>&1 || fail "the pool cannot be deleted"
absorbed
! fb flush db >/dev/null 2>&1 || fail "$WHAT: a flush has nothing to go to, and ends well"
wants_line "operation not permitted\|the image was deleted"
wants_state degraded fenced
kill_daemon
pass "$WHAT: a flush fails, and the log says why ($SECONDS s)"
