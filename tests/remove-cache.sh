#!/usr/bin/env bash
# A cache is removed from its volume for good: the backing alone is then, byte for byte, what was written, and usable
# without Forebay. The old cache is refused from then on.
source "$(dirname "$0")/harness.sh"

need python3 qemu-img

TARGET=(--target "nbd:unix:$NBD" --state state)

make_pair 24M 64M
serve
stamp 0 write "${TARGET[@]}" --operations 2000 --seed $RANDOM
# Destaging may just have caught up.
for _ in {1..20}; do
    (($(status dirty_bytes) == 0)) || break
    stamp 0 write "${TARGET[@]}" --operations 100 --seed $RANDOM
done
(($(status dirty_bytes) > 0)) || fail "nothing is ever dirty, so that there is nothing to see"
qemu-img convert -f raw -O raw "nbd+unix:///db?socket=$NBD" seen
fb flush db >/dev/null
[[ $(status dirty_bytes) == 0 ]] || fail "a flush leaves $(status dirty_bytes) dirty bytes"
cmp seen backing || fail "after a flush the backing is not what the volume shows"
stamp 0 write "${TARGET[@]}" --operations 500 --seed $RANDOM
qemu-img convert -f raw -O raw "nbd+unix:///db?socket=$NBD" seen
fb detach db --release >/dev/null
await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
wait "$DAEMON" || fail "the daemon ended with exit code $?"
DAEMON=
cmp seen backing || fail "the backing is not what the volume showed"
[[ $(stat -c %s backing) == $((64 << 20)) ]] || fail "the backing has another size"
stamp 0 verify --target file:backing --state state --quiet
pass "flush and release leave the backing as the volume was ($SECONDS s)"

refused 3 "removed from its volume" "$FOREBAY" serve --name db --cache cache --backing backing "${CONTROL[@]}"
stamp 0 write --target file:backing --state state --operations 100 --seed $RANDOM
refused 3 "removed from its volume" "$FOREBAY" serve --name db --cache cache --backing backing "${CONTROL[@]}"
serve_plain --backing backing --no-cache --nbd "unix:$NBD"
stamp 0 verify "${TARGET[@]}"
stop_daemon
"$FOREBAY" format cache --backing backing >/dev/null || fail "a removed cache cannot be formatted for its old backing"
serve
stamp 0 verify "${TARGET[@]}"
stop_daemon
pass "the old cache is refused, and may be made anew ($SECONDS s)"

need mkfs.ext4 e2fsck losetup
need_block_devices
make_pair 24M 128M
serve
attach_device
mkfs.ext4 -q "$DEVICE"
mkdir "$MOUNT"
mount "$DEVICE" "$MOUNT"
cp -r "$ROOT"/crates "$MOUNT"
refused 3 "mounted" "$FOREBAY" detach db --release "${CONTROL[@]}"
diff -r "$ROOT"/crates "$MOUNT"/crates >/dev/null || fail "a refused release does harm"
umount "$MOUNT"
fb detach db --release >/dev/null
await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
DAEMON=
e2fsck -fn backing >fsck.out 2>&1 || fail "the file system has faults: $(cat fsck.out)"
mount -o loop,ro backing "$MOUNT"
diff -r "$ROOT"/crates "$MOUNT"/crates >/dev/null || fail "files differ on the backing alone"
umount "$MOUNT"
pass "a file system on the backing alone is whole ($SECONDS s)"
