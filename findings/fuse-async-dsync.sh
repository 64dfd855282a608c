#!/usr/bin/env bash
# Linux forgets O_DSYNC for asynchronous direct writes to a file on FUSE.
#
# fio writes 20 blocks to a file of fuse-overlayfs, a FUSE file system, with --direct=1 --sync=dsync. With a synchronous engine the kernel sends
# an FSYNC after each WRITE. With io_uring or libaio it sends none: the writes end, and what they wrote is not durable.
# RWF_DSYNC does the same as O_DSYNC.
#
# Seen with Linux 6.18.44, fuse-overlayfs 1.10 (libfuse 3.14.0) and fio 3.33 of Debian 12:
#   pvsync2   20 WRITE, 20 FSYNC
#   io_uring  20 WRITE,  0 FSYNC
#   libaio    20 WRITE,  0 FSYNC
# Ends with 0 if that is seen, with 1 if not, and with 77 if it cannot be tried here. Needs root, /dev/fuse and apt-get.
set -euo pipefail

OVERLAY=1.10-1
LIBFUSE=3.14.0-4
FIO=3.33-3

[[ $(id -u) == 0 && -e /dev/fuse ]] || { echo "SKIP: needs root and /dev/fuse"; exit 77; }
command -v apt-get >/dev/null || { echo "SKIP: needs apt-get"; exit 77; }

dir=$(mktemp -d)
mounted=
cleanup() {
    [[ -z $mounted ]] || umount "$dir/mnt" || umount -l "$dir/mnt"
    rm -rf "$dir"
}
trap cleanup EXIT
mkdir "$dir"/{debs,root,lower,data,work,mnt}
# The sandbox that apt-get downloads with may not write to a folder of root.
chmod 755 "$dir"
(cd "$dir/debs" && apt-get -o APT::Sandbox::User=root download -qq "fuse-overlayfs=$OVERLAY" "libfuse3-3=$LIBFUSE" "fio=$FIO" libaio1) ||
    { echo "SKIP: fuse-overlayfs $OVERLAY, libfuse3 $LIBFUSE and fio $FIO are not to be had"; exit 77; }
for deb in "$dir"/debs/*.deb; do
    dpkg -x "$deb" "$dir/root"
done
LD_LIBRARY_PATH=$(find "$dir/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
export LD_LIBRARY_PATH PATH="$dir/root/usr/bin:$PATH"

echo "Linux $(uname -r), fuse-overlayfs $OVERLAY, libfuse3 $LIBFUSE, $(fio --version)"
head -c 80K /dev/zero >"$dir/data/file"

fuse-overlayfs -d -o "lowerdir=$dir/lower,upperdir=$dir/data,workdir=$dir/work" "$dir/mnt" >>"$dir/log" 2>&1 &
for _ in {1..100}; do
    mountpoint -q "$dir/mnt" && { mounted=yes; break; }
    sleep 0.05
done
[[ $mounted ]] || { echo "SKIP: cannot mount FUSE: $(cat "$dir/log")"; exit 77; }

outcome=0
for wanted in "pvsync2 20 20" "io_uring 20 0" "libaio 20 0"; do
    read -r engine writes fsyncs <<<"$wanted"
    : >"$dir/log"
    fio --name=job --filename="$dir/mnt/file" --rw=write --bs=4k --size=80k --direct=1 --sync=dsync \
        --ioengine="$engine" --thread >"$dir/fio.log" 2>&1 || { cat "$dir/fio.log"; exit 1; }
    seen_writes=$(grep -c 'opcode: WRITE' "$dir/log" || true)
    seen_fsyncs=$(grep -c 'opcode: FSYNC' "$dir/log" || true)
    printf '%-9s %2d WRITE, %2d FSYNC\n' "$engine" "$seen_writes" "$seen_fsyncs"
    [[ "$seen_writes $seen_fsyncs" == "$writes $fsyncs" ]] || outcome=1
done
exit "$outcome"
