#!/usr/bin/env bash
# Power cuts and kills at random instants of real runs: the daemon records every write, zero and flush of both devices
# while a client stamps every sector; then both devices are rebuilt as a crash could have left them, with what was not
# flushed kept, dropped, half dropped or torn, a daemon is started on them, and every sector is read and judged by what
# had been acknowledged at that instant. Now and then the recovery itself is crashed.
#
# N is the number of crashes, those of recoveries not counted: 60 by default, over 1,000 in `make soak`; RUNS is that of
# recorded runs, at least 4.
source "$(dirname "$0")/harness.sh"

N=${N:-60}
RUNS=${RUNS:-4}
# Images are made in main memory: what a power cut leaves is decided by the record, not by the file system below.
SCRATCH=$DIR/scratch
if [[ -d /dev/shm && -w /dev/shm ]]; then
    SCRATCH=$(mktemp -d /dev/shm/forebay-power-cuts.XXXXXX)
    OWN_DIRS+=("$SCRATCH")
fi

# The flags of each run: a volume that comes back is served as it was.
declare -A flags_of

# The run before each, if it went on from one.
declare -A after

# record_run NAME FLAGS...: a run of the volume, its devices as they were before, its record and its acknowledgements.
record_run() {
    local name=$1
    shift
    mkdir "$name"
    flags_of[$name]=$*
    for file in cache backing backing.forebay backing.journal state; do
        [[ ! -e $file ]] || cp --sparse=always "$file" "$name/"
    done
    for role in cache backing; do
        set -- --decorate "$role:record:file=$name/record" "$@"
    done
    serve "$@"
    stamp 0 write --target "nbd:unix:$NBD" --state state --acks "$name/acks" --seconds 1 --threads 12 \
        --operations 1200 --largest 128 --mix 62,20,10,8 --seed $RANDOM
    see
    # Half of the runs go on from what a clean stop leaves, half from what a kill does.
    if ((RANDOM % 2)); then stop_daemon; else kill_daemon; fi
    ! grep "the record .* ends" "$LOG" || fail "$name: the record is not whole"
    [[ $(figure writes) -gt 50 ]] || fail "$name: the client has written nothing: $STAMPED"
}

# crash CODES NAME DURABILITY CRASHES ARGS...: crashes the run, and judges as if it had this durability; its figures are in
# $STAMPED.
crash() {
    local codes=$1 name=$2 durability=$3 crashes=$4
    shift 4
    local before=() flags
    read -ra flags <<<"${flags_of[$name]}"
    [[ ! -e $name/state ]] || before=(--before "$name/state" --after "${after[$name]}")
    stamp "$codes" crashes --forebay "$FOREBAY" --record "$name/record" --cache "$name/cache" \
        --backing "$name/backing" "${before[@]}" --acks "$name/acks" --durability "$durability" \
        --crashes "$crashes" --seed $RANDOM --scratch "$SCRATCH" "$@" -- "${flags[@]}"
}

declare -A total
add_up() {
    local figure
    for figure in power_cuts kills crashes_again crashes_with_open_operations backings_alone overlaps sectors_compared \
        instants; do
        total[$figure]=$((${total[$figure]:-0} + $(figure $figure)))
    done
}

# Each volume is run twice; the second run begins with what the first has left, in the cache too.
for ((run = 1; run <= RUNS; run++)); do
    if ((run % 2)); then
        durability=flush
        ((run % 4 != 1)) || durability=write
        rm -f state
        make_pair 8M 24M
    fi
    choose_policy
    # The run on which the judge is tested must have plain writes that a power cut may lose.
    ((run != 3)) || POLICY=(--write-policy write-back)
    flags=(--durability "$durability" "${POLICY[@]}" --admission "$(any_of all all sync)"
        --on-full "$(any_of wait bypass)")
    case $((RANDOM % 3)) in
        # The decorator within is the recorder, so that a write is slow before the device has it.
        0) flags+=(--decorate backing:delay:write:fixed=1ms) ;;
        1) flags+=(--decorate cache:delay:flush:fixed=2ms --decorate backing:delay:flush:fixed=5ms) ;;
    esac
    ((run % 2)) || after[run$run]=run$((run - 1))
    record_run "run$run" "${flags[@]}"
    crash 0 "run$run" "$durability" $((N / RUNS))
    add_up
    note "run $run (${flags[*]}): $STAMPED"
done
((total[crashes_with_open_operations] * 2 > N)) || fail "hardly any crash left a choice: ${total[*]}"
most_runs cached
((total[power_cuts] > 0 && total[kills] > 0 && total[sectors_compared] > 0)) || fail "nothing was judged: ${total[*]}"
((total[overlaps] == 0)) || fail "${total[overlaps]} operations were started while others on the same sectors were under way"

# The judge must notice writes that are lost, else the above says nothing: those that the volume never promised to keep,
# and those that a device loses although they were flushed. Not every crash loses one.
noticed() {
    local what=$1 crashes=0 found=0 run
    shift
    while ((found == 0 && crashes < 120)); do
        for run in "${judged[@]}"; do
            crash "0 1" "${run%:*}" "${run#*:}" 12 --again-one-in 0 "$@"
            found=$((found + $(figure violations)))
            crashes=$((crashes + 12))
        done
    done
    ((found > 0)) || fail "$what is not noticed after any of $crashes crashes"
    note "$what is noticed after $found of $crashes crashes"
}
judged=(run3:write)
noticed "a plain write that no flush covers and that is lost"
judged=(run2:write run3:flush)
noticed "a cache that loses flushed writes" --liar cache
noticed "a backing that loses flushed writes" --liar backing

figure_line "power cuts of the binary" "${total[power_cuts]}"
figure_line "kills of the binary" "${total[kills]}"
figure_line "of them in a recovery" "${total[crashes_again]}"
figure_line "sectors read and judged" "${total[sectors_compared]}"
pass "${total[power_cuts]} power cuts and ${total[kills]} kills at ${total[instants]} instants (${total[crashes_again]} of" \
    "them in or after a recovery; ${total[backings_alone]} backings judged alone), ${total[sectors_compared]} sectors right" \
    "($SECONDS s)"
