#!/usr/bin/env bash
# Devices that fail (P9), under a client that knows what every sector may hold: the errors that it sees are those that it
# should, nothing wrong is ever read, and nothing is lost when the daemon is started again on sound devices.
source "$(dirname "$0")/harness.sh"

need python3

TARGET=(--target "nbd:unix:$NBD" --state state)

# scene WHAT FLAGS...: a fresh volume, served so.
scene() {
    WHAT=$1
    shift
    SECONDS=0
    LOG_FROM=$(($(wc -l 2>/dev/null <"$LOG" || echo 0) + 1))
    rm -f state
    make_pair 24M 96M
    serve "$@"
}

# writes ARGS...: the client writes; it must see no error but those that the arguments allow.
writes() { stamp 0 write "${TARGET[@]}" --seed $RANDOM "$@"; }
verify() { stamp 0 verify "${TARGET[@]}" "$@"; }

wants_state() {
    local state
    state=$(status state)
    [[ " $* " == *" $state "* ]] || fail "$WHAT: the volume is $state: $(fb status db)"
}

# The daemon must have logged these words in this scene.
wants_line() {
    logged() { tail -n "+$LOG_FROM" "$LOG" | grep -q -- "$1"; }
    await "$PATIENCE" logged "$1" || fail "$WHAT: the daemon does not log '$1'"
}

wants_errors() { (($(status "$1") > 0)) || fail "$WHAT: no error was injected: $(fb status db)"; }

done_with() { pass "$WHAT: $* ($SECONDS s)"; }

# --- the cache fails a durable write: the failure latches, writes go to the backing, nothing is lost

cache_fails_a_write() {
    scene "the cache fails a write ($*)" "$@"
    writes --seconds 2
    wants_state degraded
    wants_errors cache_errors
    wants_line "the cache failed a durable write"
    verify
    writes --seconds 1
    verify
    kill_daemon
    refused 3 "retired" "$FOREBAY" serve --name db --cache cache --backing backing "${CONTROL[@]}"
    serve_plain --no-cache --backing backing --nbd "unix:$NBD"
    verify --quiet
    stop_daemon
    done_with "no error is seen, the backing is complete"
}

# Early, so that a slow machine comes so far, too.
cache_fails_a_write --decorate cache:inject:durable:eio:after=40:once
cache_fails_a_write --decorate cache:inject:durable:eio:after=40:once:done
cache_fails_a_write --durability flush --decorate cache:inject:write:eio:after=60:times=20
cache_fails_a_write --durability flush --decorate cache:inject:flush:eio:after=10:once
cache_fails_a_write --decorate cache:inject:durable:enospc:after=40

# The daemon is killed while it still moves what the failed cache holds to a slow backing.
for _ in 1 2 3; do
    scene "the cache fails a write, and the daemon is killed soon after" --decorate "cache:inject:durable:eio:after=$(between 50 300):once" \
        --decorate backing:delay:write:fixed=3ms
    kill_daemon_under_writer 500 2500 "${TARGET[@]}"
    start_daemon --cache cache --backing backing --nbd "unix:$NBD"
    await_daemon
    how="the cache goes on"
    if ! grep -q '^ready' ready; then
        DAEMON=
        refused 3 "retired" "$FOREBAY" serve --name db --cache cache --backing backing "${CONTROL[@]}"
        how="the cache is retired"
        serve_plain --no-cache --backing backing --nbd "unix:$NBD"
    fi
    verify --quiet
    stop_daemon
    done_with "$how, nothing is lost"
done

scene "the cache fails everything for good" --decorate cache:inject:any:eio:after=400
writes --seconds 2 --allow any:eio
wants_state degraded
verify --allow read:eio
kill_daemon
start_daemon --cache cache --backing backing --nbd "unix:$NBD"
await_daemon
if ! grep -q '^ready' ready; then
    DAEMON=
    refused 3 "retired" "$FOREBAY" serve --name db --cache cache --backing backing "${CONTROL[@]}"
    serve_plain --no-cache --backing backing --nbd "unix:$NBD"
fi
verify --quiet
stop_daemon
done_with "errors are clear, and with the cache back nothing is lost"

# --- the cache cannot be read now and then: an error for that block, never wrong data, and no loss

scene "the cache fails reads now and then" --decorate cache:inject:read:eio:probability=0.03 \
    --decorate backing:delay:write:fixed=2ms
writes --seconds 3 --allow any:eio
wants_errors cache_errors
wants_line "of the cache failed"
kill_daemon
serve
verify --quiet
stop_daemon
done_with "errors are clear, nothing wrong is read, nothing is lost"

# --- the backing

scene "the backing fails writes for a while" --decorate backing:inject:write:eio:times=40
writes --seconds 3
wants_errors backing_errors
fb flush db >/dev/null
[[ $(status dirty_bytes) == 0 ]] || fail "$WHAT: a flush leaves $(status dirty_bytes) dirty bytes"
verify
kill_daemon
serve
verify --quiet
stop_daemon
done_with "hidden, and it resumes by itself"

scene "the backing fails every write" --decorate backing:inject:write:eio --decorate backing:inject:zero:eio
writes --operations 200 --largest 64 --mix 70,20,5,5
code=0
fb flush db >/dev/null 2>flush.err || code=$?
[[ $code == 1 && $(tail -n 1 flush.err) == "error: "*"backing that fails"* ]] ||
    fail "$WHAT: flush ends with $code: $(cat flush.err)"
wants_errors backing_errors
stop_daemon
serve
(($(status dirty_bytes) > 0)) || fail "$WHAT: nothing is dirty"
fb flush db >/dev/null
verify --quiet
stop_daemon
done_with "hidden while the cache has room, kept over a stop"

scene "the backing fails every write, and the cache is full" --decorate backing:inject:write:eio \
    --decorate backing:inject:zero:eio
"$FOREBAY_STAMP" write "${TARGET[@]}" --seed $RANDOM --mix 95,0,5,0 >stamp.out 2>stamp.err &
writer=$!
OWN=("$writer")
is_full() { [[ $(status state) == full ]]; }
await "$PATIENCE" is_full || fail "$WHAT: the volume is $(status state)"
wants_line "the cache is full"
wants_line "of the backing failed"
ended "$writer" && fail "$WHAT: the writer does not wait: $(cat stamp.err stamp.out)"
stop_daemon
code=0
wait "$writer" || code=$?
OWN=()
[[ $code == 3 ]] || fail "$WHAT: the writer ended with $code: $(cat stamp.err stamp.out)"
serve
verify --quiet
stop_daemon
done_with "writers wait, a stop does not, nothing is lost"

scene "the backing fails reads now and then" --decorate backing:inject:read:eio:probability=0.05
writes --seconds 3 --allow any:eio
wants_errors backing_errors
kill_daemon
serve
verify --quiet
stop_daemon
done_with "errors are clear, nothing wrong is read"

scene "the backing fails flushes now and then" --decorate backing:inject:flush:eio:every=3
writes --seconds 2
wants_errors backing_errors
kill_daemon
serve
verify --quiet
stop_daemon
done_with "hidden"

for error in eio enospc; do
    scene "the backing fails writes with $error under write-through" --write-policy write-through \
        --decorate "backing:inject:write:$error:probability=0.05" --decorate "backing:inject:zero:$error:probability=0.05"
    writes --seconds 2 --allow "write:$error" --allow "zero:$error"
    [[ $(figure errors_allowed) == *"write:$error"* ]] || fail "$WHAT: the client saw no error"
    verify
    kill_daemon
    serve
    verify --quiet
    stop_daemon
    done_with "the client sees it, nothing wrong is read"
done

# --- a backing that is truly full: a sparse file in a small file system

[[ $(id -u) == 0 ]] || skip "only root can mount a file system to fill it"
WHAT="the backing's file system is full"
SECONDS=0
rm -f state
mkdir small
mount -t tmpfs -o size=30M tmpfs small
make_pair 16M 96M cache small/backing
serve_plain --cache cache --backing small/backing --nbd "unix:$NBD"
"$FOREBAY_STAMP" write "${TARGET[@]}" --seed $RANDOM --mix 90,10,0,0 --operations 600 >stamp.out 2>stamp.err &
writer=$!
OWN=("$writer")
is_full() { [[ $(status state) == full && $(status backing_errors) -gt 0 ]]; }
await "$PATIENCE" is_full || fail "$WHAT: the volume is $(status state) with $(status backing_errors) errors"
doze 500 500
ended "$writer" && fail "$WHAT: the writer has ended: $(cat stamp.err stamp.out)"
mount -o remount,size=200M small
wait "$writer" || fail "$WHAT: the writer ended with an error: $(cat stamp.err stamp.out)"
OWN=()
verify
kill_daemon
serve_plain --cache cache --backing small/backing --nbd "unix:$NBD"
verify --quiet
stop_daemon
done_with "writers wait, and go on when there is room"
