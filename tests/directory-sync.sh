#!/usr/bin/env bash
# What a file holds is of no use if a power cut takes its entry from the directory. Whatever is made, relied on or removed -
# cache, backing, journal, label - has its directory synced after it, also if it was there before: who made it may have died.
source "$(dirname "$0")/harness.sh"

need strace python3
strace -f -o /dev/null true 2>/dev/null || skip "nothing may be traced here"

BINARY=$FOREBAY
cat >traced <<END
#!/usr/bin/env bash
exec strace -D -f -y -o "$DIR/trace" -e trace=fsync,unlink,unlinkat,ftruncate "$BINARY" "\$@"
END
chmod +x traced
FOREBAY=$DIR/traced

# last PATTERN: the number of the trace's last line that it fits.
last() { grep -nE "$1" trace | tail -n 1 | cut -d: -f1; }

# synced_after PATTERN DIRECTORY: the last call that fits the pattern is there, and the directory is synced after it.
synced_after() {
    local call sync
    call=$(last "$1")
    sync=$(last "fsync\([0-9]+<$DIR/$2>\) += 0")
    [[ -n $call ]] || fail "$WHAT: nothing fits '$1' in the trace: $(cat trace)"
    ((${sync:-0} > call)) || fail "$WHAT: $DIR/$2 is not synced after '$1': $(cat trace)"
}

mkdir c b j

WHAT="format"
"$FOREBAY" format c/cache --size 24M --backing b/backing --backing-size 64M >/dev/null
synced_after "ftruncate\([0-9]+<$DIR/c/cache>" c
synced_after "ftruncate\([0-9]+<$DIR/b/backing>" b
synced_after "fsync\([0-9]+<$DIR/b/backing.forebay>" b

WHAT="format of files that are there"
rm -r c b && mkdir c b
truncate -s 24M c/cache
truncate -s 64M b/backing
: >b/backing.forebay
"$FOREBAY" format c/cache --backing b/backing >/dev/null
[[ -n $(last "fsync\([0-9]+<$DIR/c>\) += 0") ]] || fail "$WHAT: $DIR/c is not synced: $(cat trace)"
synced_after "fsync\([0-9]+<$DIR/b/backing.forebay>" b

serve_here() { serve_plain --cache c/cache --backing b/backing --nbd "unix:$NBD" --write-policy journaled "$@"; }

WHAT="a new journal"
serve_here
synced_after "ftruncate\([0-9]+<$DIR/b/backing.journal>" b
synced_after "fsync\([0-9]+<$DIR/b/backing.forebay>" b
stop_daemon
WHAT="a journal that is there"
serve_here
synced_after "fsync\([0-9]+<$DIR/b/backing.forebay>" b
stop_daemon
WHAT="a journal elsewhere, that was left unfinished"
: >j/journal
serve_here --journal j/journal
synced_after "ftruncate\([0-9]+<$DIR/j/journal>" j

WHAT="a removed cache"
"$BINARY" detach db --release "${CONTROL[@]}" >/dev/null
await "$PATIENCE" ended "$DAEMON" || fail "the daemon stays after its only volume was released"
DAEMON=
synced_after "unlink.*backing.forebay" b
[[ ! -e b/backing.forebay ]] || fail "the label is still there"

WHAT="a backing that goes on without its cache"
"$FOREBAY" format c/cache --backing b/backing >/dev/null
serve_plain --backing b/backing --no-cache --accept-stale --nbd "unix:$NBD"
synced_after "fsync\([0-9]+<$DIR/b/backing.forebay>" b
stop_daemon
pass "every file's directory is synced ($SECONDS s)"
