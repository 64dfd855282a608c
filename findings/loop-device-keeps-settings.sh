#!/usr/bin/env bash
# A loop device keeps what its last user set, whoever uses it next (seen on Linux 6.18.44 with losetup of util-linux 2.38.1):
#
#   1. `queue/write_cache` at "write through": for the next file, too, the kernel drops every flush, so that fsync() on the device returns without
#      making anything durable. The shown value tells nothing before: a free device always shows "write through".
#   2. Partitions that were added by hand (addpart, partx, partprobe): they stand on the next file, with places and sizes of the last one.
#   3. `blockdev --setro`: the next file cannot be written through the device.
#   4. `queue/discard_max_bytes` at 0: on the next file it cannot be raised any more, to no number that the kernel takes, because the device then has no granularity and
#      numbers must be multiples of that. Only removing the device and adding it anew helps.
#
# Needs root, loop devices and util-linux. Exit code 0: all is as described; 1: something has changed; 77: cannot run here.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

[[ $(id -u) == 0 && -e /dev/loop-control ]] || { echo "SKIP: needs root and loop devices"; exit 77; }
for program in losetup blockdev addpart python3; do
    command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 77; }
done
echo "Linux $(uname -r), $(losetup --version)"

DIR=$(mktemp -d)
# A device of its own, which goes again.
control() { python3 -c 'import fcntl, os, sys
print(fcntl.ioctl(os.open("/dev/loop-control", os.O_RDWR), int(sys.argv[1], 16), int(sys.argv[2])))' "$@"; }
NUMBER=$(control 0x4C80 -1)
DEVICE=/dev/loop$NUMBER
QUEUE=/sys/block/loop$NUMBER/queue
free() { losetup --detach "$DEVICE"; while [[ -e /sys/block/loop$NUMBER/loop/backing_file ]]; do sleep 0.05; done; }
end() {
    { losetup --detach "$DEVICE"; sleep 0.2; control 0x4C81 "$NUMBER"; } >/dev/null 2>&1 || true
    rm -rf "$DIR"
}
trap end EXIT
truncate -s 16M "$DIR/first" "$DIR/second"

changed=0
# seen WHAT EXPECTED SHOWN
seen() {
    echo "$1: '$3'"
    [[ $2 == "$3" ]] || { echo "CHANGED: it was '$2'"; changed=1; }
}

losetup "$DEVICE" "$DIR/first"
seen "write_cache of the first file" "write back" "$(cat "$QUEUE/write_cache")"
echo "write through" >"$QUEUE/write_cache"
addpart "$DEVICE" 1 2048 4096
blockdev --setro "$DEVICE"
echo 0 >"$QUEUE/discard_max_bytes"
free

losetup "$DEVICE" "$DIR/second"
seen "1. write_cache of the second file" "write through" "$(cat "$QUEUE/write_cache")"
seen "2. its partition, of the first file" 4096 "$(cat "/sys/block/loop$NUMBER/loop${NUMBER}p1/size" 2>/dev/null || echo gone)"
seen "3. it is read-only" 1 "$(blockdev --getro "$DEVICE")"
taken=none
for bytes in 512 4096 65536 4294963200 4294966784 4294967296; do
    if echo "$bytes" 2>/dev/null >"$QUEUE/discard_max_bytes"; then taken=$bytes; fi
done
seen "4. discard_max_bytes, of which the driver has $(cat "$QUEUE/discard_max_hw_bytes"), after trying to raise it" 0 "$(cat "$QUEUE/discard_max_bytes")"
seen "   numbers that were taken" none "$taken"
free
exit "$changed"
