#!/usr/bin/env bash
# What `attach` sets of the kernel: `detach` puts back what was there, a user's own values too, and the next attach or detach does it after a daemon was
# killed; a device that has another user by then is left alone. Background writes do not take all slots, and are written back early.
source "$(dirname "$0")/harness.sh"

need losetup mkfs.ext4 mount python3
need_block_devices
[[ -e /sys/kernel/btf/vmlinux ]] || skip "this kernel has no BTF"

FREE=
FOUND=
# Everything that can be read of a device's queue and of its share of dirty memory. `write_cache` alone stays as it must be.
snapshot() {
    local at=/sys/block/$1
    (cd "$at" && { grep -s -d skip . queue/* queue/iosched/* bdi/* || true; } | grep -vE '^(queue/write_cache|bdi/(min|max)_bytes):')
}
# put DEVICE: from a snapshot on standard input, what can be written; twice, since a scheduler takes others along.
put() {
    local name value
    tee "$DIR/put" >/dev/null
    for _ in 1 2; do
        while IFS=: read -r name value; do
            [[ $name != */scheduler ]] || value=$(sed 's/.*\[\(.*\)\].*/\1/' <<<"$value")
            { echo "$value" >"/sys/block/$1/$name"; } 2>/dev/null || true
        done <"$DIR/put"
    done
}
end() {
    local code=$?
    trap - EXIT ERR
    set +e
    [[ -z $FOUND ]] || is_taken || put "$FREE" <<<"$FOUND"
    (exit "$code")
    cleanup
}
trap end EXIT

# A device of which its user wants other than the defaults.
own_values() {
    put "$FREE" <<'END'
queue/scheduler:[mq-deadline]
queue/iosched/fifo_batch:7
queue/max_sectors_kb:512
queue/nr_requests:50
queue/wbt_lat_usec:70000
queue/nomerges:1
queue/rq_affinity:2
queue/read_ahead_kb:64
bdi/max_ratio_fine:420000
bdi/min_ratio_fine:31234
END
}

is() { [[ $(sed 's/.*\[\(.*\)\].*/\1/' "/sys/block/$FREE/$1") == "$2" ]]; }
is_free() { [[ ! -e /sys/block/$FREE/loop/backing_file ]]; }
is_taken() { [[ $(cat "/sys/block/$FREE/loop/backing_file" 2>/dev/null || echo "$DIR/") != "$DIR"/* ]]; }
is_left() { is_free || is_taken; }
# The whole machine has so much dirty that the limit of a device is lifted.
is_dirty() { awk '{ v[$1] = $2 } END { exit !(v["nr_dirty"] + v["nr_writeback"] >= v["nr_dirty_background_threshold"]) }' /proc/vmstat; }
is_limited() { (($(cat "/sys/block/$1/bdi/max_ratio_fine") < $2)); }
# limited DEVICE MAX: the device may have less than MAX millionths; 1, told, if the machine is too dirty to see it.
limited() {
    await 10 is_limited "$@" && return
    if is_dirty; then
        note "SKIPPED, $WHAT: the machine has too much dirty for a limit of one device"
        return 1
    fi
    # It is lifted for as long as the daemon has not looked.
    await 2 is_limited "$@" || fail "$WHAT: $1 may have $(cat "/sys/block/$1/bdi/max_ratio_fine") millionths"
}
# as_before [BUT]: the device is free and as it was, but for lines like this. If another program has got it meanwhile nothing is known.
is_settled() { is_taken || { is_free && diff <(snapshot "$FREE" | grep -v "$1") <(grep -v "$1" before) >differs; }; }
as_before() {
    await 10 is_settled "${1:-^$}" || fail "$WHAT: not as it was: $(cat differs)"
    if is_taken; then
        await "$PATIENCE" is_free || skip "another program keeps $FREE"
        own_values
    fi
}
start() { serve_plain --cache cache --backing backing; }

# Attaches to the device with the user's values: other programs of this machine take free ones, too.
attach_there() {
    for _ in {1..100}; do
        DEVICE=$(fb attach db) || fail "$WHAT: attach failed"
        [[ $DEVICE != "/dev/$FREE" ]] || return 0
        fb detach db
        sleep 0.2
    done
    skip "another program keeps $FREE"
}

make_pair 16M 32M
start
WHAT="a user's own values"
FREE=$(losetup --find)
FREE=${FREE#/dev/}
FOUND=$(snapshot "$FREE")
own_values
snapshot "$FREE" >before
is queue/nr_requests 50 || fail "$WHAT: they cannot be set"
attach_there
fb status db --json >status.json
fb status db >status.txt
python3 - "$FREE" <<'END' || fail "$WHAT: the status does not show what was set: $(cat status.json)"
import json, sys
status = json.load(open("status.json"))
knobs = {knob["name"]: knob for knob in status["knobs"]}
for name, knob in knobs.items():
    # The second moves with memory.
    if name.startswith("fuse/") or name == "bdi/max_ratio_fine":
        continue
    shown = open(f"/sys/block/{sys.argv[1]}/{name}").read().strip()
    assert knob["set"] == (shown.split("[")[1].split("]")[0] if "[" in shown else shown), (knob, shown)
before = {name: knobs[name]["before"] for name in ("queue/scheduler", "queue/nr_requests", "queue/read_ahead_kb", "bdi/min_ratio_fine", "bdi/max_ratio_fine")}
assert list(before.values()) == ["mq-deadline", "50", "64", "31234", "420000"], before
slots = int(knobs["queue/nr_requests"]["set"])
assert all(int(knobs[f"fuse/{limit}"]["set"]) > slots for limit in ("max_background", "congestion_threshold")), knobs
assert status["background_dirty"] == "1%", status
END
limited "$FREE" 1000000 || true
grep -q "set .*queue/nr_requests to 128, before 50" status.txt || fail "$WHAT: the status does not tell: $(cat status.txt)"
fb detach db
as_before
refused 1 "is not attached" "$FOREBAY" detach db "${CONTROL[@]}"
pass "$WHAT are put back by detach"

# Somebody else has had the device since it was attached: its number rises with each use, and with the end of it.
had_another() { (($(cat "/sys/block/$FREE/diskseq") > SEQUENCE + 1)); }

WHAT="after a kill"
for ((tries = 0; ; tries++)); do
    attach_there
    SEQUENCE=$(cat "/sys/block/$FREE/diskseq")
    [[ -s db.knobs ]] || fail "$WHAT: nothing is on record"
    kill_daemon
    await 10 is_free || had_another || fail "$WHAT: the device stays"
    had_another || is queue/scheduler bfq || fail "$WHAT: there is nothing to put right"
    start
    if fb detach db 2>detach.err; then
        # The kernel makes that anew when any program tries to get the device.
        as_before read_ahead_kb
        break
    fi
    had_another || fail "$WHAT: detach does not put right what was left: $(cat detach.err)"
    ((tries < 10)) || skip "other programs keep taking $FREE"
    own_values
done
[[ ! -e db.knobs ]] || fail "$WHAT: the record stays"
# Somebody has the device open still, so that the volume gets another one.
attach_there
sleep 600 <"/dev/$FREE" &
OWN=($!)
kill_daemon
start
DEVICE=$(fb attach db)
[[ $DEVICE != "/dev/$FREE" ]] || fail "$WHAT: the device is free although it is open"
is queue/scheduler mq-deadline || fail "$WHAT: attach does not put right what was left"
fb detach db
kill_process "${OWN[0]}"
OWN=()
# The kernel has made that anew when the device was closed by the last who had it.
as_before read_ahead_kb
own_values
pass "what a killed daemon had set is put right by the next detach and the next attach"

WHAT="killed in the midst"
MIDST=0
for ((rounds = 0; rounds < 3 || (MIDST == 0 && rounds < 15); rounds++)); do
    "$FOREBAY" attach db --wait 0s "${CONTROL[@]}" >/dev/null 2>&1 &
    ATTACH=$!
    doze 1 $((60 + 20 * rounds))
    kill_daemon
    wait "$ATTACH" || true
    ! grep -qsx "device"$'\t'"$FREE" db.knobs || MIDST=$((MIDST + 1))
    start
    fb attach db >/dev/null || fail "$WHAT: attach failed"
    fb detach db
    # The kernel makes these anew when it makes the device, before anything is set.
    as_before 'read_ahead_kb\|rotational'
    own_values
done
((MIDST > 0)) || fail "$WHAT: in $rounds rounds no daemon had begun to set anything when it was killed"
pass "$rounds daemons that were killed while they attached, $MIDST of them after they had begun to set something, leave all as it was"

WHAT="another user"
attach_there
kill_daemon
await "$PATIENCE" is_free || skip "another program keeps $FREE"
truncate -s 1M other
OTHER=$(losetup --find --show other)
if [[ $OTHER == "/dev/$FREE" ]]; then
    echo 96 >"/sys/block/$FREE/queue/read_ahead_kb"
    start
    refused 1 "is not attached" "$FOREBAY" detach db "${CONTROL[@]}"
    is queue/read_ahead_kb 96 && is queue/scheduler bfq || fail "$WHAT: the device of somebody else was changed"
    pass "a device that somebody else has by now is left alone"
else
    note "another program has got $FREE"
    start
fi
losetup --detach "$OTHER"
# Another program may be faster.
await 10 is_left
stop_daemon
is_taken || put "$FREE" <<<"$FOUND"
FOUND=

# --- what it is for

make_pair 64M 512M
printf '[[rule]]\nthread = "fb-critical"\ncritical = true\n\n[[rule]]\nthread = "fb-back"\ncritical = false\n' >rules.toml
serve_plain --cache cache --backing emulate:hdd-7k2:file=backing --admission cp+pi --rules rules.toml --background-dirty 0.01%
attach_device
mkfs.ext4 -q "$DEVICE"
mkdir -p "$MOUNT"
mount "$DEVICE" "$MOUNT"
QUEUE=/sys/block/${DEVICE#/dev/}/queue
LOAD=$ROOT/tests/criticality/slots.py
SECONDS_EACH=${SECONDS_EACH:-2}

slot_ms() {
    fb waits db --json | python3 -c 'import json, sys
print(sum(r["total_us"] for r in json.load(sys.stdin) if r["kind"] == "slot") // 1000)'
}
# set_up ATTACH|KERNEL|NAME: the slots as `attach` sets them, as the kernel has them by itself, or with a scheduler and without its throttle.
set_up() {
    local scheduler=$1 throttle=0
    case $1 in
    attach) scheduler=bfq ;;
    kernel) scheduler=none throttle=-1 ;;
    esac
    echo "$scheduler" >"$QUEUE/scheduler"
    [[ $1 != attach ]] || { echo 0 >"$QUEUE/iosched/low_latency"; echo 0 >"$QUEUE/iosched/slice_idle"; }
    echo 128 >"$QUEUE/nr_requests"
    echo "$throttle" >"$QUEUE/wbt_lat_usec"
}
# slots SETTING: $SLEPT microseconds that the critical task slept for slots, for each of its rounds of two writes.
slots() {
    local before rounds ms
    set_up "$1"
    before=$(slot_ms)
    python3 "$LOAD" "$BACKGROUND" "$MOUNT" "$SECONDS_EACH" &
    OWN=($!)
    rounds=$(timeout "$PATIENCE" python3 "$LOAD" critical "$MOUNT" "$SECONDS_EACH") || fail "$WHAT: the load failed"
    timeout "$PATIENCE" tail --pid="${OWN[0]}" -f /dev/null || fail "$WHAT: the background does not end"
    OWN=()
    ms=$(($(slot_ms) - before))
    ((rounds > 0)) || fail "$WHAT: the critical task has done nothing"
    SLEPT=$((ms * 1000 / rounds))
    note "$1, beside a $BACKGROUND task: a critical task slept $ms ms for slots in $rounds rounds, $SLEPT us for each"
}
# SETTINGS and BACKGROUND measure others: SETTINGS="attach kernel none mq-deadline kyber" BACKGROUND=checkpointer
WHAT=slots
BACKGROUND=${BACKGROUND:-background}
declare -A EACH
for setting in ${SETTINGS:-attach kernel}; do
    slots "$setting"
    EACH[$setting]=$SLEPT
done
((EACH[kernel] > 0)) || fail "$WHAT: nobody critical slept for a slot with the kernel's own settings: nothing is shown"
if [[ $BACKGROUND == background ]]; then
    ((EACH[attach] * 5 <= EACH[kernel])) || fail "$WHAT: a critical task sleeps ${EACH[attach]} us for slots, ${EACH[kernel]} with the kernel's own"
    pass "critical tasks sleep for slots less than a fifth of what they do with the kernel's own settings"
fi

WHAT="background dirty"
acknowledged() { status bytes_acknowledged; }
RATIO=/sys/block/${DEVICE#/dev/}/bdi/max_ratio_fine
PERIOD=$(($(cat /proc/sys/vm/dirty_writeback_centisecs) / 100 + 1))
written() { (($(acknowledged) - FIRST > 20 << 20)); }
# Whether what is measured under the system's own limit counts: the daemon has set its own since, or all devices are written back.
is_disturbed() { [[ $(cat "$RATIO") != 1000000 ]] || is_dirty; }
if limited "${DEVICE#/dev/}" 100000; then
    OURS=$(cat "$RATIO")
    for tries in 1 2 3; do
        sync -f "$MOUNT"
        echo 1000000 >"$RATIO"
        FIRST=$(acknowledged)
        dd if=/dev/zero of="$MOUNT/background" bs=1M count=24 conv=notrunc status=none
        sleep "$PERIOD"
        BEFORE=$(($(acknowledged) - FIRST))
        is_disturbed || break
        note "try $tries: the limit was set anew, or the machine has too much dirty"
    done
    DISTURBED=
    ! is_disturbed || DISTURBED=1
    echo "$OURS" >"$RATIO"
    await $((2 * PERIOD + 5)) written || fail "$WHAT: of 24 MiB only $(($(acknowledged) - FIRST)) bytes were written back"
    if [[ $DISTURBED ]]; then
        note "SKIPPED, $WHAT: the comparison with the system's own limit"
    else
        ((BEFORE < 12 << 20)) || fail "$WHAT: $BEFORE bytes were written back under the system's own limit as well"
    fi
    pass "beyond its share a background task's pages are written back, within $PERIOD s"
fi

# Nobody critical waits by that share. By a strict one they do, which shows that it would be seen.
dirty_waits() { fb waits db --json | python3 -c 'import json, sys; print(sum(r["count"] for r in json.load(sys.stdin) if r["kind"] == "dirty"))'; }
critical_pages() {
    timeout "$PATIENCE" python3 - "$MOUNT/pages" <<'END'
import sys
open("/proc/self/comm", "w").write("fb-critical")
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(48):
        file.write(bytes(1 << 20))
END
}
WHAT="dirty memory"
# Once, so that the task is known to be critical by then.
critical_pages
critical_pages
(($(dirty_waits) == 0)) || fail "$WHAT: a critical task waited by the share of background tasks"
echo 1 >"${RATIO%/*}/strict_limit"
critical_pages
critical_pages
(($(dirty_waits) > 0)) || fail "$WHAT: a critical task that waits for less of it is not seen"
pass "no critical task waits for less dirty memory; by a strict limit it would"
umount "$MOUNT"
fb detach db
stop_daemon
