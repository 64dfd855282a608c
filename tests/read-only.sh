#!/usr/bin/env bash
# What can only be read is refused as a backing and as a cache, and can be looked at with --read-only, which changes nothing: the
# devices are byte for byte what they were, labels included, and the volume goes on afterwards as if nobody had looked.
source "$(dirname "$0")/harness.sh"

need python3 sha256sum chattr nbdinfo qemu-io nbdkit

TARGET=(--target "nbd:unix:$NBD" --state state)
ALL=(cache backing backing.forebay)
WRITABLE="--read-only"
stamps() { sha256sum "$@"; stat -c '%n %Y' "$@"; }
look() { serve_plain --read-only --nbd "unix:$NBD" "$@"; }

# no_writes: clients are told, and refused.
no_writes() {
    [[ $(status read_only) == True ]] || fail "the status does not say that the volume is read-only"
    nbdinfo "nbd+unix:///db?socket=$NBD" | grep -q 'is_read_only: true' || fail "NBD clients are not told"
    local command
    for command in "write -P 7 0 4096" "write -z 0 4096" "discard 0 4096"; do
        if qemu-io -f raw -c "$command" "nbd+unix:///db?socket=$NBD" >qemu.out 2>&1 && ! grep -qi "fail\|error" qemu.out; then
            fail "'$command' of a read-only volume succeeds: $(cat qemu.out)"
        fi
    done
    refused 3 "read-only" fb mark db
}

make_pair 24M 64M
serve --write-policy write-back
stamp 0 write "${TARGET[@]}" --operations 2000 --seed $RANDOM
kill_daemon
stamps "${ALL[@]}" >before
look --cache cache --backing backing
stamp 0 verify "${TARGET[@]}"
no_writes
refused 3 "stays in the cache" fb flush db
refused 3 "cannot be removed" fb detach db --release
stamp 0 verify "${TARGET[@]}"
if [[ $(id -u) == 0 && -e /dev/fuse && -e /dev/loop-control ]]; then
    attach_device
    [[ $(blockdev --getro "$DEVICE") == 1 ]] || fail "the block device of a read-only volume can be written to"
    fb detach db >/dev/null
fi
stop_daemon
look --cache cache --backing backing --destage-on-stop
kill_daemon
stamps "${ALL[@]}" | diff before - || fail "looking at a volume changes it"
refused 3 "that the backing lacks" "$FOREBAY" serve --name db --no-cache --read-only --backing backing
look --no-cache --accept-stale --backing backing
no_writes
stop_daemon
stamps "${ALL[@]}" | diff before - || fail "looking at a backing alone changes it"
serve
stamp 0 verify "${TARGET[@]}"
stamp 0 write "${TARGET[@]}" --operations 500 --seed $RANDOM
fb flush db >/dev/null
stop_daemon
pass "a volume that is looked at is not changed ($SECONDS s)"

# can_only_be_read PATH WORDS
can_only_be_read() {
    refused 3 "$2.*$WRITABLE" "$FOREBAY" serve --name db --cache cache --backing "$1"
    refused 3 "$2.*$WRITABLE" "$FOREBAY" serve --name db --no-cache --backing "$1"
    refused 3 "$2.*$WRITABLE" "$FOREBAY" format other --size 24M --backing "$1"
}

if [[ $(id -u) == 0 ]] && chattr +i backing 2>/dev/null; then
    can_only_be_read backing "may not be written to"
    look --cache cache --backing backing
    stamp 0 verify "${TARGET[@]}"
    stop_daemon
    chattr -i backing
fi
nbdkit --readonly --unix "$DIR/nbdkit" --pidfile nbdkit.pid file backing
OWN+=("$(cat nbdkit.pid)")
refused 3 "the export is read-only.*$WRITABLE" "$FOREBAY" serve --name db --no-cache --backing "nbd+unix:///?socket=$DIR/nbdkit"
look --no-cache --backing "nbd+unix:///?socket=$DIR/nbdkit"
stamp 0 verify "${TARGET[@]}"
no_writes
stop_daemon
pass "files and exports that can only be read ($SECONDS s)"

need losetup blockdev mkfs.ext4
need_block_devices
mkdir -p "$MOUNT"
truncate -s 64M disk
DISK=$(losetup --find --show disk)
mkfs.ext4 -q "$DISK"
mount "$DISK" "$MOUNT"
cp -r "$ROOT"/crates/core/format "$MOUNT"
umount "$MOUNT"
"$FOREBAY" format cache --force --backing "$DISK" >/dev/null || fail "format failed"
losetup -d "$DISK"
# Not `blockdev --setro`, which outlives the loop device's use.
DISK=$(losetup --find --show --read-only disk)
can_only_be_read "$DISK" "set read-only"
FAST=$(losetup --find --show --read-only cache)
truncate -s 64M backing
refused 3 "set read-only.*$WRITABLE" "$FOREBAY" serve --name db --cache "$FAST" --backing "$DISK"
refused 3 "set read-only.*$WRITABLE" "$FOREBAY" format "$FAST" --force --backing backing
stamps cache disk >before
for flags in "--cache $FAST" "--no-cache --accept-stale"; do
    # shellcheck disable=SC2086
    look $flags --backing "$DISK"
    attach_device
    mount -o ro "$DEVICE" "$MOUNT" || fail "a file system on a read-only disk cannot be mounted, with $flags"
    diff -r "$ROOT"/crates/core/format "$MOUNT"/format >/dev/null || fail "files differ, with $flags"
    umount "$MOUNT"
    fb detach db >/dev/null
    no_writes
    stop_daemon
done
stamps cache disk | diff before - || fail "looking at devices changes them"
losetup -d "$FAST"
losetup -d "$DISK"
pass "devices that can only be read ($SECONDS s)"
