#!/usr/bin/env bash
# What the first log lines and the status say of the media below: a disk is a disk, memory is memory, also below a loop device, and
# what cannot be known is said to be unknown.
source "$(dirname "$0")/harness.sh"

need losetup python3
need_block_devices

MEMORY=$DIR/memory
mkdir "$MEMORY"
mount -t tmpfs none "$MEMORY"
LOOPS=()

# The loop device below a mount goes before it.
finish() {
    local code=$? loop
    set +e
    trap - ERR
    [[ -z $DAEMON ]] || { kill -KILL "$DAEMON"; await 20 ended "$DAEMON"; }
    for loop in "${LOOPS[@]}"; do
        losetup -d "$loop"
    done
    (exit "$code")
    cleanup
}
trap finish EXIT

# loop FILE: $LOOP is a loop device on a new file of 64 MiB.
loop() {
    truncate -s 64M "$1"
    LOOP=$(losetup --find --show "$1")
    LOOPS+=("$LOOP")
}

# says KEY WORDS: the status has these words.
says() { [[ $(status "$1") == "$2"* ]] || fail "$WHAT: $1 is '$(status "$1")', not '$2'"; }

# warnings: how many lines of the log warn of a medium.
warnings() { grep -c "WARN.*power cut" "$LOG" || true; }

serve_on() {
    : >"$LOG"
    rm -f backing backing.*
    truncate -s 64M backing
    "$FOREBAY" format "$1" --backing "${2:-backing}" --force >/dev/null
    serve_plain --cache "$1" --backing "${2:-backing}" --nbd "unix:$NBD"
}

loop disk
WHAT="loop device on a disk"
for scheme in "" pmem:; do
    serve_on "$scheme$LOOP"
    # The scripts' own directory may lie on anything.
    case $(status backing_durability) in
        "survives a power cut"*) warned=0 ;;
        *) warned=2 ;;
    esac
    says cache_durability "$(status backing_durability | cut -d';' -f1)"
    (($(warnings) == warned)) || fail "$WHAT: $(cat "$LOG")"
    stop_daemon
done

loop "$MEMORY/image"
WHAT="loop device on tmpfs"
serve_on "$LOOP"
says cache_durability "survives the death of the process only"
(($(warnings) == 1 + warned / 2)) || fail "$WHAT: $(cat "$LOG")"
stop_daemon
pass "disks and memory are told apart below a loop device ($SECONDS s)"

WHAT="a file on FUSE"
make_pair 24M 64M
serve --fuse "$DIR/volume"
FIRST=$DAEMON
OWN=("$FIRST")
(
    CONTROL=(--control "$DIR/second")
    NBD=$DIR/second-nbd LOG=$DIR/second.log
    truncate -s 64M other
    "$FOREBAY" format volume --backing other >/dev/null
    serve_plain --cache volume --backing other --nbd "unix:$NBD"
    trap 'kill_daemon' EXIT
    says cache_durability "unknown: the file lies on FUSE"
    grep -q "WARN.*it is not known whether.*power cut" "$LOG" || fail "$WHAT: no warning: $(cat "$LOG")"
    trap - EXIT
    stop_daemon
)
DAEMON=$FIRST
OWN=()
stop_daemon
pass "what lies on FUSE is unknown ($SECONDS s)"
