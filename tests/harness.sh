# shellcheck shell=bash
# Sourced by the scripts of this directory: a place of their own, a volume in it, daemons that are killed, and the
# verdict. Everything that a script starts, mounts and makes is gone when it ends, however it ends.
#
# A script prints lines that begin with PASS, FAIL or SKIP and ends with 0 (passed), 77 (skipped) or 1 (failed); with
# CI=true a skip is a failure. FOREBAY and FOREBAY_STAMP name the binaries; FOREBAY_SEED repeats a run's choices.
set -eEuo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOREBAY=${FOREBAY:-$ROOT/target/debug/forebay}
FOREBAY_STAMP=${FOREBAY_STAMP:-$ROOT/target/debug/forebay-stamp}
for binary in "$FOREBAY" "$FOREBAY_STAMP"; do
    [[ -x $binary ]] || (cd "$ROOT" && cargo build --locked --quiet -p "$(basename "$binary")")
done
# A script works elsewhere.
FOREBAY=$(realpath -e "$FOREBAY")
FOREBAY_STAMP=$(realpath -e "$FOREBAY_STAMP")
unset FOREBAY_LOG
export PYTHONDONTWRITEBYTECODE=1

SCRIPT=$(basename "$0" .sh)
SEED=${FOREBAY_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$SEED
# The longest that anything here takes which does not hang, in seconds.
PATIENCE=${FOREBAY_PATIENCE:-60}

DAEMON=
DEVICE=
# What is tried at the moment, for messages.
WHAT=
KILLS=0
TRACKED=0
# Processes that are ended with the script.
OWN=()
# Directories elsewhere that go with it.
OWN_DIRS=()

DIR=$(mktemp -d "${TMPDIR:-/tmp}/forebay-$SCRIPT.XXXXXX")
chmod 755 "$DIR"
NBD=$DIR/nbd
LOG=$DIR/daemon.log
MOUNT=$DIR/mnt
CONTROL=(--control "$DIR/control")
cd "$DIR"

pass() { echo "PASS $SCRIPT: $*"; }
note() { echo "     $*"; }
# figure_line NAME COUNT: a line that the summary of `make soak` adds up.
figure_line() { printf '%28s  %s\n' "$1" "$2"; }

fail() {
    echo "FAIL $SCRIPT (seed $SEED): $*"
    [[ -s $LOG ]] && { echo "the daemon's last words:"; tail -n "${LOG_LINES:-15}" "$LOG"; }
    exit 1
}

skip() {
    if [[ ${CI:-} == true ]]; then
        fail "cannot run here: $*"
    fi
    echo "SKIP $SCRIPT: $*"
    exit 77
}

need() {
    local program
    for program; do
        command -v "$program" >/dev/null || skip "$program is not installed"
    done
}

need_block_devices() {
    [[ $(id -u) == 0 ]] || skip "only root can attach and mount"
    [[ -e /dev/fuse && -e /dev/loop-control ]] || skip "this kernel has no FUSE or no loop devices"
}

# Whether a process has ended; a zombie has.
ended() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    [[ ${stat##*) } == [ZX]* ]]
}

# await SECONDS COMMAND...: polls until the command succeeds.
await() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" 2>/dev/null; do
        ((SECONDS < deadline)) || return 1
        sleep 0.02
    done
}

# What the threads of a process sleep on.
sleepers() {
    local task
    for task in "/proc/$1"/task/*; do
        echo "$(cat "$task/comm"): $(grep State "$task/status"; cat "$task/stack" 2>/dev/null)"
    done
}

# kill_process PID: it must be gone at once, whatever it was doing. (The shell's own notice of its death is of no use.)
kill_process() {
    {
        # It may have ended by itself a moment ago.
        kill -KILL "$1" || ended "$1"
        await 20 ended "$1" || fail "process $1 was killed and does not die: $(sleepers "$1")"
        wait "$1" || true
    } 2>/dev/null
}

cleanup() {
    local code=$? point loop
    trap - EXIT ERR
    set +e
    for pid in "${OWN[@]}" $DAEMON; do
        { kill -KILL "$pid"; await 20 ended "$pid"; wait "$pid"; } 2>/dev/null
    done
    cd /
    # Deepest mounts first. Those of dead daemons answer nothing, so that they are not looked at.
    while read -r point; do
        umount "$point" 2>/dev/null || umount -l "$point"
    done < <(awk -v dir="$DIR/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | tac)
    for loop in /sys/block/loop*/loop/backing_file; do
        [[ $(cat "$loop" 2>/dev/null) == "$DIR"/* ]] && losetup -d "/dev/$(cut -d/ -f4 <<<"$loop")"
    done
    ((${#OWN_DIRS[@]} == 0)) || rm -rf "${OWN_DIRS[@]}"
    if [[ $code != 0 && -n ${FOREBAY_KEEP:-} ]]; then
        echo "     kept: $DIR"
    else
        rm -rf "$DIR"
    fi
    exit "$code"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
trap 'echo "FAIL $SCRIPT (seed $SEED): ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND"' ERR

# draw: $DRAWN is a number below 2^31 that follows from $SEED, in $(...) too, where bash draws $RANDOM anew.
draw() {
    local state=$SEED
    [[ ! -e $DIR/drawn ]] || read -r state <"$DIR/drawn"
    state=$((state * 6364136223846793005 + 1442695040888963407))
    echo "$state" >"$DIR/drawn"
    DRAWN=$((state >> 33 & 0x7fffffff))
}

# A number from $1 to $2.
between() { draw && echo $(($1 + DRAWN % ($2 - $1 + 1))); }

# One of the arguments.
any_of() { draw && shift $((DRAWN % $#)) && echo "$1"; }

# Sleeps between $1 and $2 milliseconds.
doze() {
    local ms
    ms=$(between "$1" "$2")
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
}

# make_pair CACHE_SIZE BACKING_SIZE [CACHE BACKING]: a fresh cache on a blank, sparse backing.
make_pair() {
    local cache=${3:-cache} backing=${4:-backing}
    rm -f "$cache" "$backing" "$backing".*
    truncate -s "$2" "$backing"
    "$FOREBAY" format "$cache" --size "$1" --backing "$backing" >/dev/null || fail "format failed"
}

# run_daemon FLAGS...: starts one and does not wait for it.
run_daemon() {
    rm -f ready
    "$FOREBAY" serve "${CONTROL[@]}" "$@" >ready 2>>"$LOG" </dev/null &
    DAEMON=$!
}

# start_daemon FLAGS...: the same, for the volume db.
start_daemon() { run_daemon --name db "$@"; }

is_ready() { grep -q '^ready' ready || ended "$DAEMON"; }

# Until the daemon is ready, or has ended.
await_daemon() { await "$PATIENCE" is_ready || fail "${WHAT:+$WHAT: }the daemon is not ready after $PATIENCE s"; }

# The same, and it must not have ended.
await_ready() {
    await_daemon
    grep -q '^ready' ready || fail "${WHAT:+$WHAT: }the daemon did not start with $*"
}

# serve FLAGS...: serves cache and backing as the volume db on $NBD.
serve() { serve_plain --cache cache --backing backing --nbd "unix:$NBD" "$@"; }

serve_plain() {
    start_daemon "$@"
    await_ready "$@"
}

# $POLICY: a write policy out of those that keep acknowledged data in the cache more often than not, and an order for it.
choose_policy() {
    POLICY=(--write-policy "$(any_of write-back write-back ordered journaled write-through)"
        --order "$(any_of completion barrier)")
}

# choose_database_flags RULES: $FLAGS are how the next daemon of a database serves its volume; in two of three runs it asks who waits for a write.
choose_database_flags() {
    choose_policy
    FLAGS=("${POLICY[@]}" --durability "$(any_of write write flush)" --on-full "$(any_of wait bypass)")
    if ((RANDOM % 4 == 0)); then
        FLAGS+=(--decorate backing:delay:write:fixed=1ms)
    fi
    # The tracker dies with the daemon, in the midst of its work, and comes back with the next (P8). The first does not admit everything.
    if ((TRACKED == 0)); then
        FLAGS+=(--admission "$(any_of cp cp+pi cp+pi+ioi)" --rules "$1")
        TRACKED=1
    elif ((RANDOM % 3)); then
        FLAGS+=(--admission "$(any_of cp cp+pi cp+pi+ioi adaptive)" --rules "$1")
        TRACKED=$((TRACKED + 1))
    fi
}

kill_daemon() {
    if ended "$DAEMON"; then
        fail "the daemon has ended by itself"
    fi
    kill_process "$DAEMON"
    DAEMON=
    KILLS=$((KILLS + 1))
}

# kill_daemon_under_writer MS_MIN MS_MAX FLAGS...: kills the daemon at some time while `forebay-stamp write` runs with these
# flags, which must have seen nothing wrong until then.
kill_daemon_under_writer() {
    local ms_min=$1 ms_max=$2 writer code=0
    shift 2
    "$FOREBAY_STAMP" write "$@" --seed $RANDOM >stamp.out 2>stamp.err &
    writer=$!
    OWN=("$writer")
    doze "$ms_min" "$ms_max"
    see
    kill_daemon
    wait "$writer" || code=$?
    OWN=()
    [[ $code == 3 ]] || fail "${WHAT:+$WHAT: }the writer ended with $code: $(cat stamp.err stamp.out)"
}

# Asks the daemon to stop, and wants it to do so well.
stop_daemon() {
    kill -TERM "$DAEMON"
    await "$PATIENCE" ended "$DAEMON" || fail "the daemon does not stop: $(sleepers "$DAEMON")"
    local code=0
    wait "$DAEMON" || code=$?
    DAEMON=
    [[ $code == "${1:-0}" ]] || fail "the daemon stopped with exit code $code"
}

fb() { "$FOREBAY" "$@" "${CONTROL[@]}"; }

# status KEY: one figure of the volume.
status() { fb status db --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# --- that what is tested takes place: a product that does nothing keeps every promise

# What the daemons have done that `see` looked at, each since its start; and the sums of others.
declare -A SEEN

# see: adds what the daemon of the volume has done to $SEEN, just before it goes: `runs`, those that were `loaded` and those that had
# something `cached`, writes that were in the cache because somebody waits for them, and the bytes of its figures.
see() {
    local key value
    while read -r key value; do
        SEEN[$key]=$((${SEEN[$key]:-0} + value))
    done < <(fb status db --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
reasons = status["writes_by_reason"]
print("runs", 1)
print("loaded", int(status["writes"] > 0))
# A few blocks may get there by any way.
print("cached", int(status["cached_bytes"] >= 64 << 10))
print("awaited", sum(reasons[reason] for reason in ("direct", "inherited", "reissued")))
for key in "bytes_acknowledged", "bytes_to_cache", "read_bytes_hit", "groups":
    print(key, status[key])')
}

# most_runs KEY: more than half of the runs that were seen.
most_runs() {
    ((${SEEN[runs]:-0} > 0 && ${SEEN[$1]} * 2 > SEEN[runs])) ||
        fail "what is tested hardly took place: ${SEEN[$1]:-0} of ${SEEN[runs]:-0} runs were $1"
}

# went_to_cache ONE_IN: of what was acknowledged at least one byte in so many was written to the cache.
went_to_cache() {
    ((${SEEN[bytes_acknowledged]:-0} > 0 && SEEN[bytes_to_cache] * $1 >= SEEN[bytes_acknowledged])) ||
        fail "the cache took ${SEEN[bytes_to_cache]:-0} bytes of ${SEEN[bytes_acknowledged]:-0}, so that it was not tested"
}

# is_cached BYTES: so many bytes are in the cache now.
is_cached() {
    local cached
    cached=$(status cached_bytes)
    ((cached >= $1)) || fail "${WHAT:+$WHAT: }only $cached bytes are in the cache, so that it was not tested"
}

# flush_dirty: there is something to destage, and nothing after a flush.
flush_dirty() {
    (($(status dirty_bytes) > 0)) || fail "nothing is dirty, so that a flush has nothing to do"
    fb flush db >/dev/null || fail "flush failed"
    [[ $(status dirty_bytes) == 0 ]] || fail "a flush leaves $(status dirty_bytes) dirty bytes"
}

# check_cache CACHE: `forebay check` finds nothing wrong in it, and has looked at its records.
check_cache() {
    "$FOREBAY" check "$1" --json >check.out 2>check.err || fail "check finds damage: $(cat check.err check.out)"
    python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["log"]["records"] == 0)' <check.out 2>check.err ||
        fail "check has looked at no record: $(cat check.out)"
}

# finds_flip CACHE KIND: `forebay check` finds a bit that is flipped there (tests/clients/places.py), at byte $AT.
finds_flip() {
    local code=0
    AT=$(python3 "$ROOT/tests/clients/places.py" "$FOREBAY" "$1" "$2" $RANDOM) || fail "there is no $2 in the image"
    "$FOREBAY" check "$1" >check.out 2>&1 || code=$?
    [[ $code == 4 ]] || fail "a flipped bit of $2 at byte $AT: check ends with $code: $(cat check.out)"
}

# acknowledged_more CLIENT: the client, a process, is told of at least ten more writes in the file `acknowledged`, and goes on.
acknowledged_more() {
    local before
    before=$(cat acknowledged 2>/dev/null | wc -l)
    ten_more() { ended "$1" || (($(wc -l <acknowledged) >= before + 10)); }
    await "$PATIENCE" ten_more "$1" || fail "after kill $KILLS: the client is told of no write that was done"
    ! ended "$1" || fail "the client ended before the kill: $(cat client.err)"
}

# refused CODE WORDS COMMAND...: it must fail with this code and one sentence with these words, before long.
refused() {
    local wanted=$1 words=$2 code=0 command
    shift 2
    { trap - ERR; "$@" --log off; } >refused.out 2>refused.err </dev/null &
    command=$!
    if ! await "$PATIENCE" ended "$command"; then
        # What is served all the same is a child of that shell.
        pkill -KILL -P "$command" || true
        kill_process "$command"
        fail "not refused after $PATIENCE s: $*: $(cat refused.out refused.err)"
    fi
    wait "$command" || code=$?
    [[ $code == "$wanted" ]] || fail "exit code $code instead of $wanted from: $*: $(cat refused.err)"
    [[ $(wc -l <refused.err) == 1 && $(cat refused.err) == "error: "* ]] ||
        fail "not one sentence from: $*: $(cat refused.err)"
    grep -qi -- "$words" refused.err || fail "'$words' is not said by: $*: $(cat refused.err)"
}

# stamp CODES COMMAND...: the stamping client, which must end with one of these codes. Its figures are in $STAMPED.
stamp() {
    local wanted=$1 code=0
    shift
    STAMPED=$("$FOREBAY_STAMP" "$@" 2>stamp.err) || code=$?
    [[ " $wanted " == *" $code "* ]] || fail "forebay-stamp $* ended with $code: $(cat stamp.err) $STAMPED"
}

figure() { python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$STAMPED" "$1"; }

# --- the volume as a block device with a file system

attach_device() { DEVICE=$(fb attach db) || fail "attach failed"; }

unused_device() { ! grep -q "$DIR" "/sys/block/${1#/dev/}/loop/backing_file"; }

# What is left of a killed daemon's block device must go with its last user.
unmount_dead() {
    timeout -k 1 "$PATIENCE" umount "$MOUNT" || fail "a file system whose daemon was killed cannot be unmounted"
    await 20 unused_device "$DEVICE" || fail "$DEVICE stays after its daemon was killed"
    DEVICE=
}

# Tasks that sleep uninterruptibly in FUSE, a loop device or on their way to one.
stuck_tasks() {
    local task
    for task in /proc/[0-9]*/task/*; do
        [[ $(sed -n 's/^State:\t//p' "$task/status" 2>/dev/null) == D* ]] || continue
        grep -qE 'fuse|loop|ext4|blk' "$task/stack" 2>/dev/null && echo "${task##*/} $(cat "$task/comm")"
    done
    return 0
}

# No task may hang for long because of a killed daemon.
no_stuck_tasks() {
    local before now
    before=$(stuck_tasks)
    [[ -z $before ]] && return
    for _ in {1..100}; do
        sleep 0.1
        now=$(stuck_tasks)
        before=$(comm -12 <(sort <<<"$before") <(sort <<<"$now"))
        [[ -z $before ]] && return
    done
    fail "tasks hang: $before"
}

# check_file_system: replays the journal as a mount does, then wants a file system without any fault.
check_file_system() {
    mkdir -p "$MOUNT"
    mount "$DEVICE" "$MOUNT" || fail "the volume cannot be mounted"
    umount "$MOUNT" || fail "the volume cannot be unmounted"
    e2fsck -fn "$DEVICE" >fsck.out 2>&1 || fail "e2fsck finds faults: $(cat fsck.out)"
    mount "$DEVICE" "$MOUNT" || fail "the volume cannot be mounted"
}
