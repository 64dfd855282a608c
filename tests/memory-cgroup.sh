#!/usr/bin/env bash
# A daemon that lacks CAP_SYS_RESOURCE may be made to wait for its own block device when memory runs short: whoever attaches is told, and so is the
# log. One that has it serves a writer in the same small memory cgroup.
source "$(dirname "$0")/harness.sh"

# What the daemon and the writer have together, in MiB: enough for the daemon's requests, and less than the file. Without the capability they
# hang within seconds; WITHOUT=1 shows that.
LIMIT_MIB=320

need setpriv mkfs.ext4 mount python3
need_block_devices

CGROUP=
FILE=
# Everybody is set free first: what waits for the daemon's file gets an error, and then can be killed.
free_all() {
    [[ -z $FILE ]] || umount -f "$FILE" 2>/dev/null || true
    [[ -z $CGROUP ]] || { xargs -r kill -KILL <"$CGROUP/cgroup.procs" || true; } 2>/dev/null
    return 0
}
remove_cgroup() {
    [[ -z $CGROUP ]] || await 20 rmdir "$CGROUP"
    CGROUP=
}
end() {
    local code=$?
    trap - EXIT ERR
    set +e
    free_all
    umount -l "$MOUNT" 2>/dev/null
    remove_cgroup
    (exit "$code")
    cleanup
}
trap end EXIT

warned() { grep -q "CAP_SYS_RESOURCE.*SYS_RESOURCE.*memory cgroup of its own" "$1"; }

make_pair 64M 1G
rm -f ready
setpriv --inh-caps=-sys_resource --bounding-set=-sys_resource \
    "$FOREBAY" serve "${CONTROL[@]}" --name db --cache cache --backing backing >ready 2>>"$LOG" </dev/null &
DAEMON=$!
await_ready
if grep -q CAP_SYS_RESOURCE "$LOG"; then
    fail "it is said before anything is attached"
fi
for time in first second; do
    DEVICE=$(fb attach db 2>attach.err) || fail "attach failed: $(cat attach.err)"
    [[ $DEVICE =~ ^/dev/loop[0-9]+$ ]] || fail "attach prints more than the device: $DEVICE"
    grep -q "^warning: " attach.err && warned attach.err || fail "$time attach: nothing is said: $(cat attach.err)"
done
grep WARN "$LOG" >log.warnings && warned log.warnings || fail "the log says nothing"
fb detach db
stop_daemon
pass "a daemon that may wait for itself says so ($SECONDS s)"

if (((0x$(awk '/^CapEff/ { print $2 }' /proc/self/status) >> 24 & 1) == 0)) && [[ -z ${WITHOUT:-} ]]; then
    note "SKIP: needs CAP_SYS_RESOURCE, which not even root has in some containers: a writer in the daemon's memory cgroup"
    exit 0
fi

if [[ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]]; then
    own=$(awk -F: '$2 == "memory" { print $3 }' /proc/self/cgroup)
    CGROUP=/sys/fs/cgroup/memory$own/forebay-$$
    mkdir "$CGROUP" 2>/dev/null || skip "no memory cgroup can be made"
    echo $((LIMIT_MIB << 20)) >"$CGROUP/memory.limit_in_bytes"
else
    CGROUP=/sys/fs/cgroup/forebay-$$
    mkdir "$CGROUP" 2>/dev/null || skip "no memory cgroup can be made"
    [[ -e $CGROUP/memory.max ]] || { rmdir "$CGROUP"; CGROUP=; skip "there are no memory cgroups"; }
    echo $((LIMIT_MIB << 20)) >"$CGROUP/memory.max"
fi

# inside COMMAND...: runs it in the cgroup.
inside() { bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$CGROUP" "$@"; }

rm -f ready
inside "$FOREBAY" serve "${CONTROL[@]}" --name db --cache cache --backing backing --fuse "$DIR/volume" >ready 2>>"$LOG" </dev/null &
DAEMON=$!
await_ready
FILE=$DIR/volume
DEVICE=$(fb attach db 2>attach.err) || fail "attach failed: $(cat attach.err)"
[[ ! -s attach.err ]] || [[ -n ${WITHOUT:-} ]] || fail "something is said although the capability is there: $(cat attach.err)"
mkfs.ext4 -q "$DEVICE"
mkdir -p "$MOUNT"
mount "$DEVICE" "$MOUNT"
(trap - ERR && inside dd if=/dev/zero of="$MOUNT/file" bs=1M count=448 conv=fsync status=none) &
WRITER=$!
OWN=("$WRITER")
# Slow is not stuck: as long as the device ends requests it goes on.
ended_requests() { awk '{ print $1 + $5 + $16 }' "/sys/block/${DEVICE#/dev/}/stat"; }
before=
since=$SECONDS
until ended "$WRITER"; do
    now=$(ended_requests)
    [[ $now == "$before" ]] || since=$SECONDS
    before=$now
    if ((SECONDS - since > 15)); then
        what=$(sleepers "$DAEMON" | grep -A 2 '(disk sleep)' || true)
        free_all
        fail "the writer hangs, and the daemon with it: $what"
    fi
    sleep 0.2
done
wait "$WRITER" || fail "the writer failed"
OWN=()
is_cached $((1 << 20))
umount "$MOUNT"
fb detach db
stop_daemon
remove_cgroup
pass "a writer in the daemon's memory cgroup of $LIMIT_MIB MiB ends ($SECONDS s)"
