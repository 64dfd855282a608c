#!/usr/bin/env bash
# The file system below the backing is full, or its files may not grow: the log and the status say why and where, the volume goes on by
# itself when there is room, a start needs no journal that its policy has no use for, and a stop ends although a writer waits.
source "$(dirname "$0")/harness.sh"

need python3 losetup dd
[[ $(id -u) == 0 ]] || skip "only root can mount a file system to fill it"

TARGET=(--target "nbd:unix:$NBD" --state state)
SERVE=(--cache cache --backing small/backing --nbd "unix:$NBD")

# A file system of 12 MiB below a backing of 96 MiB.
mkdir small
mount -t tmpfs -o size=12M tmpfs small
make_pair 16M 96M cache small/backing

fails() { [[ $(status state) == full && $(status backing_errors) -gt 0 ]]; }
fill() {
    "$FOREBAY_STAMP" write "${TARGET[@]}" --seed $RANDOM --mix 100,0,0,0 --operations 600 >stamp.out 2>stamp.err &
    OWN=($!)
    await "$PATIENCE" fails || fail "the volume is $(status state) with $(status backing_errors) errors"
}

serve_plain "${SERVE[@]}"
fill
await "$PATIENCE" grep -q "no space left on the device" "$LOG" || fail "the log does not say why"
grep "no space left on the device" "$LOG" | grep -q "writing to a device at byte [0-9]*.*make room" || fail "nor where, nor what to do"
[[ $(status reason) == *"no space left on the device"* ]] || fail "the status says '$(status reason)'"
code=0
fb flush db >/dev/null 2>flush.err || code=$?
[[ $code == 1 && $(<flush.err) == *"no space left on the device"* ]] || fail "flush ends with $code: $(<flush.err)"
pass "what fails is named with its cause and place ($SECONDS s)"

# --- a start in a full file system

kill_daemon
wait "${OWN[0]}" || true
OWN=()
rm -f small/backing.journal
head -c 12M /dev/zero >small/rest 2>/dev/null || true
serve_plain "${SERVE[@]}"
grep -q "served without a journal" "$LOG" || fail "nothing says that there is no journal"
kill_daemon
refused 1 "no space left on the device.*another --write-policy" "$FOREBAY" serve --name db "${SERVE[@]}" --write-policy journaled "${CONTROL[@]}"
serve_plain "${SERVE[@]}"
rm small/rest
mount -o remount,size=200M small
await "$PATIENCE" eval '[[ $(status reason) == None && $(status state) == healthy ]]' || fail "it does not go on by itself: $(status reason)"
fb flush db >/dev/null
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
pass "a start needs no journal that is not asked for, and it goes on when there is room ($SECONDS s)"

# --- what has no room is not begun

refused 1 "small/new needs .* more, and its file system has .* free" "$FOREBAY" format small/new --size 400M --backing small/backing --force
"$FOREBAY" format small/cache --size 32M --backing small/second --backing-size 16M >/dev/null
refused 1 "small/cache needs .* more, and its file system has .* free" "$FOREBAY" grow small/cache --size 400M
[[ $(stat -c %s small/cache) == $((32 << 20)) ]] || fail "a cache that cannot grow has another size"
(($(stat -c %b small/cache) * 512 >= 32 << 20)) || fail "a cache does not have its room"
head -c 60M /dev/zero >small/rest
refused 1 "reserving its room: no space left on the device" "$FOREBAY" serve --name second --cache small/cache --backing small/second \
    --write-policy journaled "${CONTROL[@]}"
[[ ! -e small/new && ! -e small/second.journal ]] || fail "something is left of what was not begun: $(ls small)"
rm small/cache small/second small/second.forebay small/rest
pass "what has no room is not begun ($SECONDS s)"

# --- a limit of the process

rm -f state
make_pair 16M 96M cache small/backing
run_limited() {
    rm -f ready
    # The limit falls upon the backing alone: the log goes to its file, which has its size already.
    prlimit --fsize=$((40 << 20)) "$FOREBAY" serve "${CONTROL[@]}" --name db "${SERVE[@]}" >ready 2>>"$LOG" </dev/null &
    DAEMON=$!
    await_ready
}
run_limited
fill
await "$PATIENCE" grep -q "the file may not become so large" "$LOG" || fail "the log does not say why"
ended "$DAEMON" && fail "the daemon died of a write beyond the limit"
stop_daemon
wait "${OWN[0]}" || true
OWN=()
serve_plain "${SERVE[@]}"
fb flush db >/dev/null
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
pass "a file that may not grow is an error, not the end ($SECONDS s)"

# --- a stop while a writer of the block device waits

need_block_devices
rm -f state
mount -o remount,size=12M small 2>/dev/null || { umount small; mount -t tmpfs -o size=12M tmpfs small; }
make_pair 16M 96M cache small/backing
serve_plain "${SERVE[@]}"
attach_device
dd if=/dev/urandom of="$DEVICE" bs=1M count=90 conv=fsync >dd.out 2>&1 &
OWN=($!)
await "$PATIENCE" fails || fail "the volume is $(status state) with $(status backing_errors) errors"
before=$(wc -l <"$LOG")
kill -TERM "$DAEMON"
await "$PATIENCE" ended "$DAEMON" || fail "the daemon does not stop: $(sleepers "$DAEMON")"
code=0
wait "$DAEMON" || code=$?
DAEMON=
[[ $code == 1 ]] || fail "a stop that fails a writer ends with $code"
tail -n +"$before" "$LOG" | grep -q "stopping: waiting at most .* requests under way.*no space left on the device" || fail "the log does not say what a stop waits for"
await "$PATIENCE" ended "${OWN[0]}" || fail "the writer hangs"
code=0
wait "${OWN[0]}" || code=$?
OWN=()
[[ $code != 0 ]] || fail "the writer heard of no error"
"$FOREBAY" check cache >/dev/null || fail "the cache is not whole after such a stop"
serve_plain "${SERVE[@]}"
(($(status dirty_bytes) > 0)) || fail "nothing is dirty"
mount -o remount,size=200M small
fb flush db >/dev/null
stop_daemon
pass "a stop ends although a writer waits, says what for, and keeps what is dirty ($SECONDS s)"
