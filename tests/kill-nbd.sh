#!/usr/bin/env bash
# The daemon is killed again and again while a client writes over NBD, also while it recovers, under all policies:
# every sector holds its newest acknowledged version afterwards, or one that was under way.
source "$(dirname "$0")/harness.sh"

ROUNDS=${FOREBAY_ROUNDS:-12}

make_pair 40M 160M

choose_flags() {
    choose_policy
    FLAGS=("${POLICY[@]}" --durability "$(any_of write flush)" --on-full "$(any_of wait bypass)")
    case $((RANDOM % 4)) in
        # A backing that is slow, so that the cache fills up.
        0) FLAGS+=(--decorate backing:delay:write:fixed=2ms) ;;
        # One that lets writes fail now and then, which is tried again.
        1)
            if [[ ${FLAGS[*]} != *write-through* && ${FLAGS[*]} == *wait* ]]; then
                FLAGS+=(--decorate backing:inject:write:eio:every=50)
            fi
            ;;
    esac
}

verify() { stamp 0 verify --target "nbd:unix:$NBD" --state state --quiet; }

for ((round = 1; round <= ROUNDS; round++)); do
    if ((round % 3 == 0)); then
        for _ in 1 2; do
            start_daemon --cache cache --backing backing --nbd "unix:$NBD"
            doze 0 60
            kill_daemon
        done
    fi
    if ((round % 4 == 0)); then
        check_cache cache
    fi
    choose_flags
    serve "${FLAGS[@]}"
    # A writer that was too late for its first daemon knows nothing yet.
    [[ ! -e state ]] || verify
    WHAT="round $round with ${FLAGS[*]}"
    kill_daemon_under_writer 100 1500 --target "nbd:unix:$NBD" --state state --threads "$(any_of 1 8 40)" \
        --largest "$(any_of 8 64 1024)"
done

WHAT=
most_runs loaded
most_runs cached
went_to_cache 4
cp --sparse=always cache damaged
finds_flip damaged record

serve
verify
fb flush db >/dev/null
stop_daemon
# A backing that is slow, so that there is something to destage.
serve --decorate backing:delay:write:fixed=50ms
stamp 0 write --target "nbd:unix:$NBD" --state state --operations 200 --largest 64 --mix 94,0,6,0 --seed $RANDOM
flush_dirty
fb detach db --release >/dev/null
await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
DAEMON=
stamp 0 verify --target "file:backing" --state state --quiet
pass "$KILLS kills, ${SEEN[loaded]} of them under load, $((SEEN[bytes_to_cache] >> 20)) MiB written to the cache, $(figure sectors_compared) sectors right, in the end without Forebay too ($SECONDS s)"
