# shellcheck shell=bash disable=SC2034
# What up.sh and down.sh know of the default volume. Sourced, not run.
# FOREBAY_DATA: where everything lies; FOREBAY_NAME: the volume's name; FOREBAY: a binary to use instead of building one.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
PATH="$PATH:/usr/sbin:/sbin"
DATA=$(realpath -m "${FOREBAY_DATA:-forebay-data}")
NAME=${FOREBAY_NAME:-demo}
BUILT="$PWD/target/release/forebay"
FOREBAY=$(realpath -m "${FOREBAY:-$BUILT}")
CACHE="$DATA/cache"
BACKING="$DATA/backing"
MOUNT="$DATA/mnt"
PID_FILE="$DATA/daemon.pid"
LOG="$DATA/daemon.log"

# Sockets: the default place where it exists, else beside the data (a socket's path has at most 107 bytes).
if [[ $(id -u) == 0 ]]; then
    RUN=/run/forebay
elif [[ -n ${XDG_RUNTIME_DIR:-} ]]; then
    RUN="$XDG_RUNTIME_DIR/forebay"
else
    RUN="$DATA"
fi
CONTROL="$RUN/$NAME.sock"
NBD="$RUN/$NAME.nbd"

# The daemon's process id, if it lives and is the one that up.sh started.
daemon_pid() {
    local pid
    pid=$(cat "$PID_FILE" 2>/dev/null) || return 1
    [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$FOREBAY"* ]] || return 1
    echo "$pid"
}

mounted() {
    mountpoint -q "$MOUNT" 2>/dev/null || grep -qsF " $MOUNT " /proc/self/mounts
}

say() {
    echo "forebay: $*"
}

die() {
    echo "forebay: $*" >&2
    exit 1
}
