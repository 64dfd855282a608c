#!/usr/bin/env bash
# What it costs to know who waits for which write: 4 KiB random writes on an attached volume in memory, by a task that a rule names, with the
# tracker and without it, in turn, and how long its programs run for each write. Printed, not asserted: machines are noisy. For figures to
# be believed: ROUNDS=120 SECONDS_EACH=2 FOREBAY=target/release/forebay tests/tracker-cost.sh (half an hour), also with CACHE=emulate:ssd-sata:file=cache.
[[ ! -w /dev/shm ]] || export TMPDIR=/dev/shm
source "$(dirname "$0")/harness.sh"

ROUNDS=${ROUNDS:-1} SECONDS_EACH=${SECONDS_EACH:-1} CACHE=${CACHE:-cache}
need fio python3
need_block_devices
[[ -e /sys/kernel/btf/vmlinux ]] || skip "this kernel has no BTF"
cat >rules.toml <<'END'
[[rule]]
name = "load"
thread = "fio*"
critical = true
END
make_pair 256M 512M

# What is put into slices without noise has to be found: the ratio, and that half of the rate goes with each tenth of the time.
python3 - >known <<'END'
for r in range(3):
    for how, steal in ("off", 0), ("on", 0.1), ("on", 0.03 * r), ("off", 0.05):
        print(r, how, (r + 1) * 1e4 * (0.97 if how == "on" else 1) / 2 ** (10 * steal), steal)
END
KNOWN=$(python3 "$ROOT/tests/clients/paired_ratio.py" known)
[[ $KNOWN == *"at equal steal"*" 0.970 +- 0.000 (3 rounds)" ]] || fail "the arithmetic is wrong: $KNOWN"

# The processors' time so far, in ticks: all of it, and what the machine's host took away.
ticks() { awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; printf "%.0f %.0f\n", all, $9 }' /proc/stat; }

# iops FLAGS...: writes a second to a volume that is served so, and the share of the time that was taken away.
iops() {
    local all stolen all_then stolen_then
    serve_plain --cache "$CACHE" --backing backing "$@"
    attach_device
    # The kernel has just verified the programs, on one side alone, and a shared machine may be held back for a second that it was busy in: where
    # figures are to be believed.
    ((ROUNDS == 1)) || sleep 1
    read -r all stolen < <(ticks)
    timeout "$PATIENCE" fio --name=load --filename="$DEVICE" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 \
        --size=64M --runtime="$SECONDS_EACH" --time_based --randrepeat=0 --output=fio.json --output-format=json ||
        fail "fio failed"
    read -r all_then stolen_then < <(ticks)
    STEAL=$(python3 -c "print(($stolen_then - $stolen) / ($all_then - $all))")
    IOPS=$(python3 -c 'import json; print(json.load(open("fio.json"))["jobs"][0]["write"]["iops"])')
    WRITES=$(python3 -c 'import json; print(json.load(open("fio.json"))["jobs"][0]["write"]["total_ios"])')
    local missing
    missing=$(status criticality_missing)
    # The journal may be a module that is not there.
    [[ $# == 0 || $missing == "[]" || $missing == "['waits for the journal"* ]] || fail "the tracker lacks $missing"
}

away() {
    fb detach db
    stop_daemon
}

# Whatever drifts in a round is in both halves of it.
for ((round = 1; round <= ROUNDS; round++)); do
    for how in off on on off; do
        if [[ $how == on ]]; then iops --rules rules.toml; else iops; fi
        echo "$round $how $IOPS $STEAL" >>slices
        away
    done
done
RATIO=$(python3 "$ROOT/tests/clients/paired_ratio.py" slices) || fail "the slices cannot be compared"

# The kernel's own clock around each run of a program costs something itself.
python3 "$ROOT/tests/clients/bpf_cost.py" count >counting &
OWN+=($!)
await 20 grep -q counting counting || fail "the kernel does not count how long programs run"
iops --rules rules.toml
COST=$(python3 "$ROOT/tests/clients/bpf_cost.py" show "$DAEMON" "$WRITES") || fail "what the programs cost is not told"
fb explain db --json | python3 -c 'import json, sys
sys.exit(sum(r["writes"] for r in json.load(sys.stdin)["rows"] if r["task"] == "load") < 0.9 * float(sys.argv[1]))' "$WRITES" ||
    fail "not all writes were known to be those of the load"
away
grep -q '^on_bio ' <<<"$COST" || fail "no write was seen: $COST"
while read -r line; do note "$line"; done <<<"$COST"
pass "$RATIO"
