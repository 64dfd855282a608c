#!/usr/bin/env bash
# From nothing to a mounted volume: installs what is missing, builds, makes a cache and a sparse backing, serves,
# attaches, formats ext4 if the volume is blank, mounts. Whatever is there already is kept; running it twice is safe.
set -euo pipefail
source "$(dirname "$0")/demo.sh"

CACHE_SIZE=${FOREBAY_CACHE_SIZE:-1G}
BACKING_SIZE=${FOREBAY_BACKING_SIZE:-16G}

scripts/setup.sh run
if [[ $FOREBAY == "$BUILT" ]]; then
    say "building (release)"
    cargo build --release --locked --quiet -p forebay
fi

mkdir -p "$DATA"
# As the daemon would make it: sockets are for their owner alone.
[[ -d $RUN ]] || (umask 077 && mkdir -p "$RUN")
if [[ ! -e $BACKING ]]; then
    truncate -s "$BACKING_SIZE" "$BACKING"
    say "made a sparse backing of $BACKING_SIZE: $BACKING"
fi
if [[ ! -e $CACHE ]]; then
    "$FOREBAY" format "$CACHE" --backing "$BACKING" --size "$CACHE_SIZE" >/dev/null
    say "made a cache of $CACHE_SIZE: $CACHE"
fi

if pid=$(daemon_pid); then
    say "already serving (process $pid)"
else
    if mounted; then
        # A daemon that was killed leaves a mount behind on which every request fails.
        umount -l "$MOUNT" || die "$MOUNT is mounted by a daemon that is gone, and cannot be unmounted"
    fi
    ready="$DATA/daemon.ready"
    rm -f "$ready"
    setsid "$FOREBAY" serve --name "$NAME" --cache "$CACHE" --backing "$BACKING" --control "$CONTROL" \
        --nbd "unix:$NBD" </dev/null >"$ready" 2>>"$LOG" &
    pid=$!
    echo "$pid" >"$PID_FILE"
    until grep -q '^ready' "$ready"; do
        kill -0 "$pid" 2>/dev/null || { tail -n 5 "$LOG" >&2; die "the daemon did not start; its log is $LOG"; }
        sleep 0.05
    done
    say "serving '$NAME' (process $pid, log $LOG)"
fi

control=()
[[ $RUN == "$DATA" ]] && control=(--control "$CONTROL")

if [[ $(id -u) != 0 || ! -e /dev/fuse || ! -e /dev/loop-control ]]; then
    say "no kernel block device without root, /dev/fuse and loop devices; the volume is served by NBD instead"
    say "done. Try next:"
    echo "    qemu-img info 'nbd+unix:///$NAME?socket=$NBD'"
    echo "    fio --name=sync --ioengine=nbd --uri='nbd+unix:///$NAME?socket=$NBD' --rw=randwrite --bs=4k --size=256M"
    echo "    target/release/forebay status $NAME ${control[*]}"
    echo "    make down"
    exit 0
fi

if mounted; then
    say "already mounted on $MOUNT"
else
    device=$("$FOREBAY" attach "$NAME" --control "$CONTROL")
    say "attached as $device"
    if type=$(blkid -p -o value -s TYPE "$device"); then
        [[ $type == ext4 ]] || die "$device holds '$type', not ext4; it is left alone"
    else
        # blkid ends with 2 if it finds nothing; only then is the volume blank.
        [[ $? == 2 ]] || die "cannot tell what $device holds; it is left alone"
        mkfs.ext4 -q "$device"
        say "made an ext4 file system"
    fi
    mkdir -p "$MOUNT"
    mount "$device" "$MOUNT"
    say "mounted on $MOUNT"
fi
say "done. Try next:"
echo "    fio --name=sync --directory=$MOUNT --rw=randwrite --bs=4k --size=256M --fsync=1 --runtime=10"
echo "    target/release/forebay status $NAME"
echo "    target/release/forebay flush $NAME"
echo "    make down"
