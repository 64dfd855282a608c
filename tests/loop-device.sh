#!/usr/bin/env bash
# A loop device that drops flushes, as a former user left it, and a daemon that cannot change that, since /sys is read-only for it. No volume gets that
# device as it is, whether the former user still has it open or not: flushes arrive, and nothing is left behind.
source "$(dirname "$0")/harness.sh"

need losetup unshare python3
need_block_devices

FORMER=
cure() {
    exec 9<&-
    [[ -z $FORMER ]] || echo "write back" >"/sys/block/$FORMER/queue/write_cache"
    FORMER=
}
end() {
    local code=$?
    trap - EXIT ERR
    set +e
    cure
    (exit "$code")
    cleanup
}
trap end EXIT

spoil() {
    truncate -s 1M other
    local device
    device=$(losetup --find --show other)
    FORMER=${device#/dev/}
    echo "write through" >"/sys/block/$FORMER/queue/write_cache"
    losetup --detach "$device"
    [[ $1 != open ]] || exec 9<"$device"
}

is_left() { cat /sys/block/loop*/loop/backing_file "/proc/$DAEMON/mountinfo" 2>/dev/null | grep -qF "$DIR/db.volume"; }
nothing_is_left() { ! is_left; }

make_pair 16M 32M
rm -f ready
unshare --mount bash -c 'mount -o remount,bind,ro /sys && exec "$@"' confined \
    "$FOREBAY" serve "${CONTROL[@]}" --name db --cache cache --backing backing >ready 2>>"$LOG" </dev/null &
DAEMON=$!
await_ready
for user in gone open; do
    spoil "$user"
    DEVICE=$(fb attach db 2>attach.err) || fail "$user: attach failed: $(cat attach.err)"
    flushes=$(status flushes)
    for _ in 1 2 3; do
        dd if=/dev/zero of="$DEVICE" bs=4K count=1 conv=fsync,notrunc status=none
    done
    arrived=$(($(status flushes) - flushes))
    ((arrived >= 3)) || fail "$user: of three flushes $arrived arrive: $DEVICE, $FORMER before"
    fb detach db
    await 20 nothing_is_left || fail "$user: something is left behind"
    pass "flushes arrive, with a former user that is $user ($SECONDS s)"
    cure
done
grep -q "^warning: the kernel refuses a setting of $DEVICE (max_sectors_kb=" attach.err || fail "nothing is said of speed: $(cat attach.err)"
stop_daemon
