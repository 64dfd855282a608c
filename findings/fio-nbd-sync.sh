#!/usr/bin/env bash
# fio's `nbd` engine forgets `sync` (seen with fio 3.33, nbdkit 1.32.5, libnbd 1.14.2 of Debian 12):
#
#   1. `--sync=1` asks for durable writes. Over NBD it sends writes without FUA, and no FLUSH: the same as without it, and fio says
#      nothing. A latency of "synchronous writes" that is measured like that is the latency of volatile ones.
#   2. `--fsync=1` does send a FLUSH after each write but the last, so that engine and server both can.
#
# Needs fio with the `nbd` engine and nbdkit with its filter `log`. Exit code 0: all is as described; 1: something has changed; 77: cannot run here.
set -euo pipefail

for program in fio nbdkit; do
    command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 77; }
done
fio --enghelp 2>/dev/null | grep -qw nbd || { echo "SKIP: this fio has no engine nbd"; exit 77; }
echo "$(fio --version), $(nbdkit --version)"

DIR=$(mktemp -d)
end() {
    [[ ! -s $DIR/pid ]] || kill "$(cat "$DIR/pid")" 2>/dev/null || true
    rm -rf "$DIR"
}
trap end EXIT
WRITES=50
changed=0

# counted FLAG: what 50 writes of 4 KiB with this flag send: writes, those with FUA, flushes.
counted() {
    rm -f "$DIR"/{log,pid,socket}
    nbdkit --pidfile "$DIR/pid" --unix "$DIR/socket" --filter=log memory 64M logfile="$DIR/log"
    until [[ -s $DIR/pid ]]; do sleep 0.05; done
    fio --name=w --ioengine=nbd --uri="nbd+unix:///?socket=$DIR/socket" --rw=randwrite --bs=4k --size=64M --io_size=$((WRITES * 4))k \
        --iodepth=1 "$@" >"$DIR/out" 2>&1 || { cat "$DIR/out"; exit 1; }
    kill "$(cat "$DIR/pid")"
    while kill -0 "$(cat "$DIR/pid")" 2>/dev/null; do sleep 0.05; done
    rm -f "$DIR/pid"
    # Each request has a line when it begins and one when it ends.
    local begun='^[^.]*\.[0-9]* connection=[0-9]* '
    echo "$(grep -c "${begun}Write id=" "$DIR/log" || true) writes," \
        "$(grep "${begun}Write id=" "$DIR/log" | grep -c 'fua=1' || true) with FUA," \
        "$(grep -c "${begun}Flush id=" "$DIR/log" || true) flushes"
}

# seen WHAT EXPECTED SHOWN
seen() {
    echo "$1: $3"
    [[ $2 == "$3" ]] || { echo "CHANGED: it was $2"; changed=1; }
}

seen "without a flag" "50 writes, 0 with FUA, 0 flushes" "$(counted --direct=1)"
seen "1. --sync=1" "50 writes, 0 with FUA, 0 flushes" "$(counted --direct=1 --sync=1)"
seen "2. --fsync=1" "50 writes, 0 with FUA, 49 flushes" "$(counted --direct=1 --fsync=1)"
exit $changed
