#!/usr/bin/env bash
# `make up` and `make down`: from nothing to a mounted volume, safe to run twice, and after the daemon was killed the data
# is there again.
source "$(dirname "$0")/harness.sh"

need_block_devices
export FOREBAY_DATA=$DIR/data FOREBAY_NAME=up$$ FOREBAY_CACHE_SIZE=64M FOREBAY_BACKING_SIZE=512M FOREBAY
MOUNTED=$FOREBAY_DATA/mnt

up() { "$ROOT/scripts/up.sh" >"$DIR/up" 2>&1 || fail "up failed: $(cat "$DIR/up")"; }
down() { "$ROOT/scripts/down.sh" >"$DIR/down" 2>&1 || fail "down failed: $(cat "$DIR/down")"; }
daemon() { cat "$FOREBAY_DATA/daemon.pid"; }

up
DAEMON=$(daemon)
LOG=$FOREBAY_DATA/daemon.log
mountpoint -q "$MOUNTED" || fail "nothing is mounted: $(cat "$DIR/up")"
dd if=/dev/urandom of="$MOUNTED/file" bs=1M count=8 conv=fsync status=none
SUM=$(md5sum <"$MOUNTED/file")
"$FOREBAY" status "$FOREBAY_NAME" --json >status || fail "no status"
python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["cached_bytes"] < 1 << 20)' <status || fail "nothing is cached: $(cat status)"
up
[[ $(daemon) == "$DAEMON" ]] || fail "a second make up started a second daemon"
grep -q "already serving" "$DIR/up" || fail "a second make up does not say that it serves already: $(cat "$DIR/up")"

kill_process "$DAEMON"
up
DAEMON=$(daemon)
[[ $(md5sum <"$MOUNTED/file") == "$SUM" ]] || fail "the file differs after the daemon was killed"

down
ended "$DAEMON" || fail "the daemon still runs after make down"
DAEMON=
mountpoint -q "$MOUNTED" && fail "still mounted after make down"
down
up
DAEMON=$(daemon)
[[ $(md5sum <"$MOUNTED/file") == "$SUM" ]] || fail "the file differs after make down and make up"
down
DAEMON=
pass "up twice, up after a kill, down twice; the data was there each time"
