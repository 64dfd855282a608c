#!/usr/bin/env bash
# Media that want 4096-byte blocks: what is made on the volume can be used on the backing alone, by its cache's removal or without a
# cache; clients that send sectors of 512 bytes are served all the same.
source "$(dirname "$0")/harness.sh"

need python3 losetup sfdisk mkfs.xfs mkfs.btrfs nbdinfo blockdev blkdiscard
need_block_devices

TARGET=(--target "nbd:unix:$NBD" --state state)
mkdir -p "$MOUNT"

# loop_device BLOCK FILE [FLAGS]: a loop device with such sectors.
loop_device() { losetup --find --show --sector-size "$1" "${@:3}" "$2"; }

logical_block_of() { blockdev --getss "$1"; }

# expect WANTED GOT WHAT
expect() { [[ $1 == "$2" ]] || fail "$3 is $2, not $1"; }

truncate -s 400M disk
DISK=$(loop_device 4096 disk)
serve_disk() { serve_plain --cache cache --backing "$DISK" --nbd "unix:$NBD" "$@"; }
serve_disk_alone() { serve_plain --no-cache --backing "$DISK" --nbd "unix:$NBD" "$@"; }
release() {
    fb detach db --release >/dev/null
    await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
    DAEMON=
}

"$FOREBAY" format cache --size 24M --backing "$DISK" >/dev/null || fail "format failed"
serve_disk
expect 4096 "$(status logical_block_bytes)" "logical_block_bytes of a volume on a disk with such blocks"
expect 4096 "$(nbdinfo --json "nbd+unix:///db?socket=$NBD" | python3 -c 'import json, sys
print(json.load(sys.stdin)["exports"][0]["block_size_minimum"])')" "the least request that NBD clients are told"
attach_device
expect 4096 "$(logical_block_of "$DEVICE")" "the block device's sector size"
mkfs.xfs -q "$DEVICE"
mount "$DEVICE" "$MOUNT"
cp -r "$ROOT"/crates/core/format "$MOUNT"
umount "$MOUNT"
release
whole() {
    mount -o "$2" "$1" "$MOUNT" || fail "XFS of the volume cannot be mounted from $1"
    diff -r "$ROOT"/crates/core/format "$MOUNT"/format >/dev/null || fail "files differ on $1"
    umount "$MOUNT"
}
whole "$DISK" rw
serve_disk_alone
expect 4096 "$(status logical_block_bytes)" "logical_block_bytes without a cache"
attach_device
whole "$DEVICE" rw
fb detach db >/dev/null
stop_daemon
whole "$DISK" ro
pass "XFS made through the cache is whole on a 4Kn disk alone, and without a cache ($SECONDS s)"

"$FOREBAY" format cache --force --backing "$DISK" >/dev/null || fail "format failed"
serve_disk
attach_device
printf ',64M,L\n,,L\n' | sfdisk --quiet --no-reread --no-tell-kernel --label gpt "$DEVICE" || fail "no partition table can be written"
sfdisk --dump "$DEVICE" | grep -o 'start=.*' >partitions
release
sfdisk --dump "$DISK" | grep -o 'start=.*' | diff partitions - >/dev/null || fail "the disk alone has another partition table"
serve_disk_alone
attach_device
sfdisk --dump "$DEVICE" | grep -o 'start=.*' | diff partitions - >/dev/null || fail "without a cache there is another partition table"
fb detach db >/dev/null
stop_daemon
pass "so is a partition table ($SECONDS s)"

blkdiscard --force "$DISK" 2>/dev/null
serve_disk_alone
# The daemon serves without a cache. This client knows nothing of 4096-byte blocks.
stamp 0 write "${TARGET[@]}" --operations 3000 --seed $RANDOM
stamp 0 verify "${TARGET[@]}"
stop_daemon
pass "clients that send 512 bytes are served without a cache, too ($SECONDS s)"

# What is known of a volume counts, whatever it lies on; and it can be told.
"$FOREBAY" format cache --force --backing "$DISK" --volume-size 300M --logical-block 512 >/dev/null || fail "format failed"
for flags in "" "--logical-block 4096" "" "--logical-block 512" ""; do
    # shellcheck disable=SC2086
    serve_disk $flags
    case "$flags" in *4096) wanted=4096 ;; *) [[ -n $flags ]] && wanted=512 ;; esac
    expect "${wanted:-512}" "$(status logical_block_bytes)" "logical_block_bytes with '$flags'"
    stop_daemon
done
rm -f state*
blkdiscard --force "$DISK" --length 300M 2>/dev/null
serve_disk
stamp 0 write "${TARGET[@]}" --operations 1000 --seed $RANDOM
fb flush db >/dev/null
stamp 0 verify "${TARGET[@]}"
kill_daemon
"$FOREBAY" format cache --force --backing "$DISK" --volume-size 300M >/dev/null || fail "format failed"
serve_disk
expect 512 "$(status logical_block_bytes)" "logical_block_bytes of a volume that has had such blocks before"
stop_daemon
refused 2 "multiple of 4096" "$FOREBAY" format cache --force --backing "$DISK" --volume-size 307201K
losetup -d "$DISK"
if DISK=$(loop_device 8192 disk 2>/dev/null); then
    refused 3 "at most 4096" "$FOREBAY" serve --name db --no-cache --backing "$DISK"
    truncate -s 64M backing
    refused 1 "more than 4096" "$FOREBAY" format "$DISK" --force --backing backing
    losetup -d "$DISK"
fi
pass "a volume's logical block is recorded, and can be told ($SECONDS s)"

# A cache on such a disk, with a backing that has sectors of 512 bytes.
rm -f backing backing.* state*
truncate -s 32M fast
truncate -s 64M backing
FAST=$(loop_device 4096 fast)
"$FOREBAY" format "$FAST" --backing backing >/dev/null || fail "format failed"
serve_plain --cache "$FAST" --backing backing --nbd "unix:$NBD"
expect 512 "$(status logical_block_bytes)" "logical_block_bytes of a volume on a file of this file system"
stamp 0 write "${TARGET[@]}" --operations 1000 --seed $RANDOM
is_cached $((1 << 20))
kill_daemon
serve_plain --cache "$FAST" --backing backing --nbd "unix:$NBD"
stamp 0 verify "${TARGET[@]}"
stop_daemon
losetup -d "$FAST"

truncate -s 300M btrfs.img
mkfs.btrfs -q btrfs.img >/dev/null 2>&1
mount -o loop btrfs.img "$MOUNT" || skip "no btrfs"
truncate -s 64M "$MOUNT"/disk
rm -f cache state*
"$FOREBAY" format cache --size 24M --backing "$MOUNT"/disk >/dev/null || fail "format failed"
for flags in "--cache cache" "--no-cache --accept-stale"; do
    # shellcheck disable=SC2086
    serve_plain $flags --backing "$MOUNT"/disk --nbd "unix:$NBD"
    expect 4096 "$(status logical_block_bytes)" "logical_block_bytes of a volume on a file of btrfs, with $flags"
    stamp 0 write "${TARGET[@]}" --operations 500 --seed $RANDOM
    fb flush db >/dev/null
    stamp 0 verify "${TARGET[@]}"
    stop_daemon
done
umount "$MOUNT"
pass "caches on such disks, and files of btrfs ($SECONDS s)"
