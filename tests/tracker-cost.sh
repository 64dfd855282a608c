#!/usr/bin/env bash
# What it costs to know who waits for which write: 4 KiB random writes on an attached volume in memory, by a task that a rule names, with the
# tracker and without it, in turn, and how long its programs run for each write. Printed, not asserted: machines are noisy. For figures to
# be believed: ROUNDS=16 SECONDS_EACH=2 FOREBAY=target/release/forebay tests/tracker-cost.sh, also with CACHE=emulate:ssd-sata:file=cache.
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

# iops FLAGS...: writes a second to a volume that is served so.
iops() {
    serve_plain --cache "$CACHE" --backing backing "$@"
    attach_device
    timeout "$PATIENCE" fio --name=load --filename="$DEVICE" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 \
        --size=64M --runtime="$SECONDS_EACH" --time_based --randrepeat=0 --output=fio.json --output-format=json ||
        fail "fio failed"
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
        echo "$IOPS" >>$how
        away
    done
done
RATIO=$(python3 -c 'from statistics import mean, stdev
on, off = ([float(line) for line in open(name)] for name in ("on", "off"))
rounds = [sum(on[i:i + 2]) / sum(off[i:i + 2]) for i in range(0, len(on), 2)]
error = f" +- {stdev(rounds) / len(rounds) ** 0.5:.3f}" if len(rounds) > 1 else ""
print(f"{mean(on):.0f} writes a second with the tracker, {mean(off):.0f} without: {mean(rounds):.3f}{error}")')

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
pass "$RATIO ($ROUNDS rounds)"
