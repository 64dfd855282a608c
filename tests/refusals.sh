#!/usr/bin/env bash
# What does not belong together, is not the latest of its kind, or is in use is refused (P6): one clear sentence, exit
# code 3, and not a byte is changed. `check` is content with sound caches, dirty and clean, and finds a flipped bit
# wherever it is; a read of what was flipped is an error or right, never wrong (P5).
source "$(dirname "$0")/harness.sh"

need python3
TARGET=(--target "nbd:unix:$NBD" --state state)

sums() { sha256sum "$@" 2>/dev/null || true; }

# unchanged FILES -- COMMAND...: the command may not change a byte of the files.
unchanged() {
    local files=()
    while [[ $1 != -- ]]; do
        files+=("$1")
        shift
    done
    shift
    local before
    before=$(sums "${files[@]}")
    "$@"
    [[ $(sums "${files[@]}") == "$before" ]] || fail "files were changed by: $*"
}

# refuses WORDS CACHE BACKING [FLAGS]: to serve them is refused, and changes nothing.
refuses() {
    local words=$1 cache=$2 backing=$3 code=${CODE:-3}
    shift 3
    local files=("$cache" "$backing")
    [[ -e $backing.forebay ]] && files+=("$backing.forebay")
    unchanged "${files[@]}" -- refused "$code" "$words" "$FOREBAY" serve --name db \
        --cache "$cache" --backing "$backing" --control "$DIR/second" "$@"
}

write_some() { stamp 0 write "${TARGET[@]}" --operations 300 --largest 256 --seed $RANDOM; }

# --- pairs

make_pair 16M 32M
make_pair 16M 32M cache2 backing2
refuses "another" cache backing2
refuses "another" cache2 backing
refuses "not a Forebay cache\|swapped" backing cache
refuses "" backing backing
refuses "" cache cache
CODE=1 refuses "no such\|does not exist\|missing" cache nowhere
[[ ! -e nowhere ]] || fail "a missing backing was created"
truncate -s 16M garbage
refuses "not a Forebay cache" garbage backing
head -c 16M /dev/urandom >garbage
refuses "not a Forebay cache" garbage backing
pass "foreign, swapped and missing ones ($SECONDS s)"

# --- copies

cp --sparse=always cache cache.old && cp --sparse=always backing backing.old && cp backing.forebay backing.old.forebay
serve
write_some
stop_daemon
refuses "older copy" cache.old backing
refuses "older copy" cache backing.old
serve
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
mv backing.forebay label
refuses "no label.*forebay pair" cache backing
unchanged cache backing -- refused 3 "--lost-label" "$FOREBAY" pair cache --backing backing
unchanged cache.old backing -- refused 3 "older copy" "$FOREBAY" pair cache.old --backing backing --lost-label
unchanged cache backing -- "$FOREBAY" pair cache --backing backing --lost-label >/dev/null || fail "a lost label is not made anew"
refuses "older copy" cache.old backing
refused 3 "lost no label" "$FOREBAY" pair cache --backing backing --lost-label
serve
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
printf 'FBLABEL%01017d' {1..8} >backing.forebay
CODE=4 refuses "label.*is damaged.*forebay pair" cache backing
"$FOREBAY" pair cache --backing backing --lost-label >/dev/null || fail "a damaged label is not made anew"
serve
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
cp cache cache.short && truncate -s 15M cache.short
refuses "truncated" cache.short backing
cp --sparse=always backing backing.whole
truncate -s 31M backing
refuses "truncated" cache backing
cp --sparse=always backing.whole backing
pass "older and truncated ones ($SECONDS s)"

# --- in use

serve
refused 3 "in use" "$FOREBAY" serve --name db --cache cache --backing backing2 --control "$DIR/second"
refused 3 "in use" "$FOREBAY" serve --name db --cache cache2 --backing backing --control "$DIR/second"
refused 3 "in use" "$FOREBAY" serve --name db --backing backing --no-cache --control "$DIR/second"
refused 3 "in use" "$FOREBAY" format cache --backing backing2 --force
refused 3 "in use" "$FOREBAY" format cache2 --backing backing --force
refused 3 "in use" "$FOREBAY" check cache
refused 3 "" "$FOREBAY" serve --name db --cache cache2 --backing backing2 "${CONTROL[@]}"
stamp 0 verify "${TARGET[@]}"
write_some
kill_daemon
pass "those in use ($SECONDS s)"

# --- format, and a backing that went on alone

unchanged cache backing backing.forebay -- refused 3 "force" "$FOREBAY" format cache --backing backing
unchanged cache2 backing backing.forebay -- refused 3 "force\|paired" "$FOREBAY" format cache2 --backing backing
unchanged cache2 backing2 -- refused 3 "force" "$FOREBAY" format cache2 --backing backing2
cp /bin/bash program && truncate -s 16M program
unchanged program -- refused 3 "force" "$FOREBAY" format program --backing backing2
refused 1 "nowhere" "$FOREBAY" format new --size 16M --backing nowhere
[[ ! -e new && ! -e nowhere ]] || fail "a refused format leaves files behind"
refused 2 "too small" "$FOREBAY" format new --size 4K --backing backing2
refused 3 "accept-stale" "$FOREBAY" serve --name db --backing backing --no-cache --control "$DIR/second"
cp cache cache.left
serve_plain --backing backing --no-cache --accept-stale --nbd "unix:$NBD"
stop_daemon
refuses "gone on without" cache.left backing
pass "used caches, data, and a cache whose backing went on alone ($SECONDS s)"

# --- a backing in the middle of a group

rm -f state
make_pair 16M 32M
serve --write-policy journaled --group-age 50ms --decorate "backing:delay:write:fixed=1s"
"$FOREBAY_STAMP" write "${TARGET[@]}" --threads 4 --largest 16 --mix 94,0,0,6 >stamp.out 2>&1 &
OWN=($!)
has_waiting() { cp backing.journal backing.forebay copy/ && cp --sparse=always backing copy/ && "$FOREBAY" recover copy/backing --list --takeover | grep -q ^waiting; }
mkdir copy
await "$PATIENCE" has_waiting || fail "no group is ever waiting"
kill_daemon
OWN=()
for name in backing backing.forebay backing.journal; do mv "copy/$name" "$name"; done
unchanged backing backing.forebay backing.journal -- refused 3 "would stay inconsistent" "$FOREBAY" format new --size 16M --backing backing --force
mv backing.journal journal
unchanged backing backing.forebay journal -- refused 3 "is not found" "$FOREBAY" format new --size 16M --backing backing --force
unchanged backing backing.forebay journal -- refused 3 "is not found" \
    "$FOREBAY" serve --name db --backing backing --no-cache --accept-stale --control "$DIR/second"
unchanged backing backing.forebay journal -- refused 3 "would stay inconsistent" \
    "$FOREBAY" format new --size 16M --backing backing --force --journal journal
truncate -s 16M blank
unchanged backing backing.forebay journal blank -- refused 3 "blank has no label.*name the members" \
    "$FOREBAY" recover backing blank --journal journal --journal none
"$FOREBAY" recover backing --journal journal >/dev/null || fail "recover failed"
"$FOREBAY" format new --size 16M --backing backing --force --journal journal >/dev/null || fail "format failed"
pass "a backing in the middle of a group, and one without a label among others ($SECONDS s)"

# --- usage

refused 2 "" "$FOREBAY" serve --name db --cache cache
code=0
"$FOREBAY" serve --name a/b --cache cache --backing backing 2>wrong || code=$?
[[ $code == 2 && $(head -n 1 wrong) == error:*a/b* ]] || fail "a wrong name ends with $code: $(cat wrong)"
printf '[[volume]]\nname = "db"\nbakcing = "b"\n' >bad.toml
refused 2 "bad.toml:3.*backing" "$FOREBAY" serve --config bad.toml
refused 1 "missing.toml" "$FOREBAY" serve --config missing.toml
refused 1 "" "$FOREBAY" status db --control "$DIR/nobody"
pass "wrong usage ($SECONDS s)"

# --- check, and reads of what was flipped

keep() { cp cache sound && cp --sparse=always backing sound.backing && cp backing.forebay sound.label; }
restore() { cp sound cache && cp --sparse=always sound.backing backing && cp sound.label backing.forebay; }

# flips KIND: flips a bit of that kind in a sound image; check must find it.
flips() {
    restore
    finds_flip cache "$1"
}

# reads_right ERRORS: all that can be read is right, and so many sectors cannot be.
reads_right() {
    cp state state.copy
    serve
    stamp 0 verify --target "nbd:unix:$NBD" --state state.copy --quiet --allow read:eio
    local errors
    errors=$(python3 -c 'import json, sys; print(sum(json.loads(sys.argv[1])["errors_allowed"].values()))' "$STAMPED")
    [[ $errors == "$1" ]] || fail "$errors sectors cannot be read instead of $1 after $AT was flipped"
    kill_daemon
}

rm -f state
make_pair 16M 32M
"$FOREBAY" check cache >/dev/null || fail "check is not content with a new cache"
serve
stamp 0 write "${TARGET[@]}" --operations 200 --largest 64 --mix 90,0,5,5 --seed $RANDOM
fb flush db >/dev/null
stop_daemon
"$FOREBAY" check cache >/dev/null || fail "check is not content with a clean cache"
keep
for kind in superblock-a superblock-b clean-data summary; do
    flips "$kind"
    reads_right 0
done
restore
serve
stamp 0 verify "${TARGET[@]}" --quiet
stamp 0 write "${TARGET[@]}" --operations 200 --largest 64 --mix 90,0,5,5 --seed $RANDOM
# Until the idle engine proves its last record durable, damage to it looks like a write torn by the crash.
sleep 0.5
kill_daemon
check_cache cache
keep
for kind in superblock-a superblock-b summary; do
    flips "$kind"
    reads_right 0
done
for _ in 1 2 3; do
    flips dirty-data
    reads_right 8
done
for _ in 1 2 3 4 5 6; do
    flips record
    start_daemon --cache cache --backing backing --nbd "unix:$NBD"
    await_daemon
    if grep -q '^ready' ready; then
        kill_daemon
        cp state state.copy
        serve
        stamp 0 verify --target "nbd:unix:$NBD" --state state.copy --quiet --allow read:eio
        kill_daemon
    else
        code=0
        wait "$DAEMON" || code=$?
        DAEMON=
        [[ $code == 4 ]] || fail "a flipped bit of a record at byte $AT: serve ends with $code"
    fi
done
restore
serve
stamp 0 verify "${TARGET[@]}" --quiet
stop_daemon
pass "flipped bits are found by check, and reads of them are errors or right ($SECONDS s)"
