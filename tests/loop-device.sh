#!/usr/bin/env bash
# A loop device that sends no flush, as a former user left it, and that cannot be made to: attach is refused with one sentence and leaves nothing
# behind. Then the same device again with /sys writable: it is attached, and flushes arrive.
source "$(dirname "$0")/harness.sh"

need losetup unshare python3
need_block_devices

# Somebody's loop device; he made it drop flushes, and still has it open, so that it cannot be made anew.
FORMER=
cure() {
    [[ -z $FORMER ]] || { exec 9<&-; echo "write back" >"/sys/block/$FORMER/queue/write_cache"; FORMER=; }
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
    exec 9<"$device"
}

is_left() { grep -qF "$DIR/" /sys/block/loop*/loop/backing_file /proc/self/mountinfo 2>/dev/null; }

# A daemon that cannot change anything below /sys.
start_confined() {
    rm -f ready
    unshare --mount bash -c 'mount -o remount,bind,ro /sys && exec "$@"' confined \
        "$FOREBAY" serve "${CONTROL[@]}" --name db --cache cache --backing backing >ready 2>>"$LOG" </dev/null &
    DAEMON=$!
    await_ready
}

make_pair 16M 32M
start_confined
# Other programs take free loop devices, too.
for _ in {1..20}; do
    spoil
    code=0
    DEVICE=$("$FOREBAY" attach db "${CONTROL[@]}" --log off 2>attach.err) || code=$?
    [[ $code == 0 && $DEVICE != "/dev/$FORMER" ]] || break
    fb detach db
    cure
done
[[ $code != 0 ]] || fail "$DEVICE drops flushes, and is attached"
[[ $code == 3 && $(wc -l <attach.err) == 1 ]] || fail "attach ends with $code: $(cat attach.err)"
grep -q "^error: /dev/$FORMER would send no flush.*write_cache" attach.err || fail "no clear sentence: $(cat attach.err)"
await 20 eval '! is_left' || fail "something is left behind: $(losetup -a) $(cat /proc/self/mountinfo)"
[[ $(status device) == None && $(status state) == healthy ]] || fail "the volume is not as it was"
stop_daemon
pass "a device that cannot be made to send flushes is refused ($SECONDS s)"

serve_plain --cache cache --backing backing
attach_device
flushes=$(status flushes)
for _ in 1 2 3; do
    dd if=/dev/zero of="$DEVICE" bs=4K count=1 conv=fsync,notrunc status=none
done
(($(status flushes) >= flushes + 3)) || fail "of three flushes $(($(status flushes) - flushes)) arrive"
[[ $(cat "/sys/block/${DEVICE#/dev/}/queue/write_cache") == "write back" ]] || fail "the device drops flushes"
fb detach db
stop_daemon
pass "where it can, flushes arrive ($SECONDS s)"
