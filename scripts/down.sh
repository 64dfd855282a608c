#!/usr/bin/env bash
# Unmounts, detaches and stops what up.sh started. Cache and backing stay; `make up` goes on with them.
set -euo pipefail
source "$(dirname "$0")/demo.sh"

# How long a clean stop may take.
STOP_SECONDS_MAX=60

if mounted; then
    if daemon_pid >/dev/null; then
        umount "$MOUNT" || die "$MOUNT is in use; close what is open there and try again"
    else
        umount -l "$MOUNT"
    fi
    say "unmounted $MOUNT"
fi

if ! pid=$(daemon_pid); then
    rm -f "$PID_FILE"
    say "not serving"
    exit 0
fi
"$FOREBAY" detach "$NAME" --control "$CONTROL" || say "could not detach; stopping all the same"
kill -TERM "$pid"
for ((i = 0; i < STOP_SECONDS_MAX * 10; i++)); do
    if ! kill -0 "$pid" 2>/dev/null; then
        rm -f "$PID_FILE" "$DATA/daemon.ready"
        say "stopped; cache and backing are in $DATA (a later \`make up\` goes on with them)"
        exit 0
    fi
    sleep 0.1
done
die "process $pid has not stopped within $STOP_SECONDS_MAX s; its log is $LOG"
