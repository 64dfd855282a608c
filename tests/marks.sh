#!/usr/bin/env bash
# How long `forebay mark` takes, as whoever runs the command sees it: of one volume and of a consistency group of two, at rest and
# under load, on a backing that is a file here and on one that is a remote store of 2 ms. `forebay status` beside it is the command
# and the control socket alone. Prints milliseconds; wants only that each point is newer than the one before, and that at rest the
# backing is at it. docs/reference/benchmarks.md has figures.
#
# N is the number of marks for each: 5 by default.
source "$(dirname "$0")/harness.sh"

N=${N:-5}
need python3

# start NAME BACKING FLAGS...: a new volume and its daemon.
start() {
    local name=$1 backing=$2
    shift 2
    rm -f "$name".*
    truncate -s 64M "$name.img"
    "$FOREBAY" format "$name.cache" --size 64M --backing "$name.img" >/dev/null
    if [[ $backing == file ]]; then
        backing=$name.img
    else
        # The journal is on the backing's side, and takes the same time.
        backing=emulate:remote:file=$name.img,latency=2ms
        set -- --journal "emulate:remote:file=$name.ring,latency=2ms" "$@"
    fi
    "$FOREBAY" serve --name "$name" --cache "$name.cache" --backing "$backing" --nbd "unix:$DIR/$name.nbd" \
        --control "$DIR/$name.sock" --write-policy journaled "$@" >"$name.ready" 2>>"$LOG" &
    PIDS[$name]=$!
    OWN=("${PIDS[@]}")
    await "$PATIENCE" grep -q ready "$name.ready" || fail "$name does not start"
    # A volume that has just begun is not consistent as yet, and refuses points.
    await "$PATIENCE" consistent "$name" || fail "$name does not become consistent"
}

consistent() { "$FOREBAY" status "$1" --json --control "$DIR/$1.sock" | grep -q '"backing_consistent": *true'; }

# time_marks WHAT NAME KEY: N marks of this volume, a pause after each; KEY is where `status` has the backing's point at rest.
time_marks() {
    python3 - "$FOREBAY" "$DIR" "$N" "$@" <<'PY' || fail "$1: a mark is not what it should be"
import json, subprocess, sys, time
forebay, directory, count, what, name, key = sys.argv[1:]
control = ["--control", f"{directory}/{name}.sock"]
def timed(*command):
    begun = time.monotonic()
    said = subprocess.run([forebay, *command, *control], stdout=subprocess.PIPE, text=True)
    if said.returncode:
        sys.exit(f"forebay {' '.join(command)} ended with {said.returncode}")
    return (time.monotonic() - begun) * 1000, said.stdout
status = sorted(timed("status", name, "--json")[0] for _ in range(int(count)))
marks, last = [], 0
for n in range(int(count)):
    took, point = timed("mark", name, "--label", f"n{n}")
    assert int(point) > last, (point, last)
    last = int(point)
    if key:
        there = json.loads(timed("status", name, "--json")[1])[key]
        # A consistency group declares points by itself, too.
        assert there == last or key == "common_point" and there > last, (there, last)
    marks.append(took)
    time.sleep(0.1)
marks.sort()
print(f"     {what:52} mark: median {marks[len(marks) // 2]:6.1f} ms, longest {marks[-1]:6.1f} ms; status: {status[len(status) // 2]:5.1f} ms")
PY
}

# with_load COMMAND...: runs it while every volume is written to.
with_load() {
    local writers=() name
    for name in "${!PIDS[@]}"; do
        "$FOREBAY_STAMP" write --target "nbd:unix:$DIR/$name.nbd" --state "$name.state" --threads 8 --largest 64 --mix 94,0,0,6 \
            --seed $RANDOM >"$name.stamped" 2>&1 &
        writers+=($!)
    done
    OWN+=("${writers[@]}")
    sleep 1
    "$@"
    for name in "${writers[@]}"; do
        ended "$name" && fail "a writer ended: $(cat ./*.stamped)"
        kill_process "$name"
    done
    OWN=("${PIDS[@]}")
}

stop_all() {
    local name
    for name in "${!PIDS[@]}"; do
        kill_process "${PIDS[$name]}"
        unset "PIDS[$name]"
    done
    OWN=()
}

declare -A PIDS
GROUP=(--consistency-group shop --members "data=$DIR/data.sock,log=$DIR/log.sock")
for backing in file "remote store of 2 ms"; do
    start data "$backing"
    time_marks "one volume, $backing, at rest" data backing_point
    with_load time_marks "one volume, $backing, under load" data ""
    stop_all
    start data "$backing" "${GROUP[@]}"
    start log "$backing" "${GROUP[@]}"
    time_marks "group of two, $backing, at rest" data common_point
    with_load time_marks "group of two, $backing, under load" data ""
    stop_all
done
pass "$N marks of each kind"
