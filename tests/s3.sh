#!/usr/bin/env bash
# A backing that is a volume in an object store: on Ceph's RADOS gateway, and on versitygw, an independent server. On each of them:
#
# - daemons are killed under load and started again, under random policies, and nothing is lost;
# - the cache is thrown away: what `recover` and `serve --no-cache --accept-stale` then show is the last point that was declared;
# - another daemon is refused while one has the volume, and takes it over if it is told to; nothing that the first one sends after that
#   counts, and it reads nothing any more;
# - another host reads checkpoints that were named, as of then, until they are given up;
# - a store that is full, or refuses, is told as that;
# - the store falls ill, in every way that one can: clients notice nothing while the cache has room, `status` says `degraded` and why,
#   and all goes on by itself when the store is well. So it is with rights that are taken away and with quotas;
# - an object that is missing or damaged is told before anything is served, and nothing is lost when it is back;
# - another host takes over from one that is cut off and has clients;
# - PostgreSQL loses nothing when the daemon is killed.
#
# The last two need root.
#
# Keys are in nothing that is shown. N is the number of requests of a load: 400 by default.
if [[ -z ${FOREBAY_S3_NET:-} ]]; then
    # Go's modules come from somewhere else than all other packages, which may not be reached.
    repository=$(cd "$(dirname "$0")/.." && pwd)
    GO_SAYS=$("$repository/scripts/versitygw.sh" "$repository/target/versitygw" 2>&1) && GO_SAYS=
    own=()
    [[ $(id -u) != 0 ]] || own=(unshare --net)
    exec "${own[@]}" env FOREBAY_S3_NET=own GO_SAYS="$GO_SAYS" "$0" "$@"
fi
source "$(dirname "$0")/harness.sh"
source "$ROOT/tests/harness-hosts.sh"

N=${N:-400}
STORE_CLIENT=$ROOT/tests/clients/object_store.py
need python3 ceph-mon ceph-osd ceph radosgw curl
if [[ $(id -u) == 0 ]]; then
    need ip nsenter mkfs.ext4 e2fsck losetup setpriv
    need_block_devices
    source "$ROOT/tests/harness-postgresql.sh"
    make_store_address
else
    ADDRESS=127.0.0.1
fi
NODE=$ROOT/scripts/ceph-one-node.sh
CEPH=
# A prefix of its own for each scene.
VOLUME=0
# Processes of the stores, and what stands before them.
STORES=()

end_stores() {
    local pid
    for pid in "${STORES[@]}"; do
        { kill -KILL "$pid"; await 20 ended "$pid"; wait "$pid"; } 2>/dev/null || true
    done
    STORES=()
}
end_all() {
    local code=$?
    trap - EXIT ERR
    set +e
    end_stores
    [[ -z $CEPH ]] || { kill "$CEPH"; wait "$CEPH"; } 2>/dev/null
    "$NODE" down "$DIR/ceph" >/dev/null 2>&1
    end_other_host
    (exit "$code")
    cleanup
}
trap end_all EXIT
# It takes a while, in which the other server is tested.
"$NODE" up "$DIR/ceph" --rgw --address "$ADDRESS" >ceph.out 2>&1 &
CEPH=$!

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
listens() { (: <"/dev/tcp/$1/$2") 2>/dev/null; }

start_rgw() {
    wait "$CEPH" || fail "no Ceph: $(cat ceph.out)"
    CEPH=
    source "$DIR/ceph/env"
    PORT=${AWS_ENDPOINT_URL##*:} KEY=$AWS_ACCESS_KEY_ID SECRET=$AWS_SECRET_ACCESS_KEY
    # They are exchanged later, so that they are in a file.
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    export AWS_SHARED_CREDENTIALS_FILE=$DIR/credentials
    write_keys "$KEY" "$SECRET"
}

write_keys() {
    printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$1" "$2" >credentials.new
    mv credentials.new credentials
    HIDDEN+=("$2")
}

start_versitygw() {
    PORT=$(free_port) KEY=versity SECRET=versity-secret
    export AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET
    HIDDEN+=("$SECRET")
    mkdir objects beside
    ROOT_ACCESS_KEY=$KEY ROOT_SECRET_KEY=$SECRET "$ROOT/target/versitygw/versitygw" --port "$ADDRESS:$PORT" --quiet \
        posix --sidecar "$DIR/beside" "$DIR/objects" >>versitygw.out 2>&1 &
    STORES+=($!)
    await "$PATIENCE" listens "$ADDRESS" "$PORT" || fail "versitygw does not start: $(cat versitygw.out)"
}

# The store behind something that falls ill as the file `illness` says.
start_sick_store() {
    SICK=$(free_port)
    echo well >illness
    python3 "$ROOT/tests/clients/sick_store.py" "$SICK" "$ADDRESS:$PORT" illness 2>>sick.out &
    STORES+=($!)
    await "$PATIENCE" listens 127.0.0.1 "$SICK" || fail "sick_store.py does not start: $(cat sick.out)"
    export AWS_ENDPOINT_URL=http://127.0.0.1:$SICK
}

objects() {
    AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET AWS_ENDPOINT_URL=http://$ADDRESS:$PORT python3 "$STORE_CLIENT" "$@"
}

# new_volume [BYTES CACHE_BYTES]: $BACKING is a volume of so much (64 MiB) in a prefix of its own, with a fresh cache.
new_volume() {
    VOLUME=$((VOLUME + 1))
    BACKING=s3://volumes/test/$VOLUME,timeout=2s
    rm -f cache state state.point
    "$FOREBAY" format cache --size "${2:-32M}" --backing "$BACKING" --backing-size "${1:-64M}" >formatted ||
        fail "format failed"
}

serve_volume() { serve_plain --backing "$BACKING" --nbd "unix:$NBD" "$@"; }

write_stamps() { stamp "$1" write --target "nbd:unix:$NBD" --state state --seed $RANDOM "${@:2}"; }
verify_stamps() { stamp "$1" verify --target "nbd:unix:$NBD" --state "${2:-state}" --quiet; }

wants_state() {
    is_in() { [[ $(status state) == "$1" ]]; }
    await "$PATIENCE" is_in "$1" || fail "$WHAT: the state is $(status state), not $1"
}

killed_under_load() {
    WHAT="$STORE, killed"
    new_volume
    local kills
    for ((kills = 0; kills < 3; kills++)); do
        choose_policy
        serve_volume --cache cache "${POLICY[@]}" --durability "$(any_of write flush)"
        [[ ! -e state ]] || verify_stamps 0
        kill_daemon_under_writer 300 1500 --target "nbd:unix:$NBD" --state state --threads 4 --largest 32
    done
    # Nobody has to say that the last owner is dead: it was of this host.
    serve_volume --cache cache
    verify_stamps 0
    fb flush db >/dev/null || fail "$WHAT: flush failed"
    stop_daemon
    # What was flushed is in the store, without the cache.
    serve_volume --no-cache --accept-stale --read-only
    verify_stamps 0
    stop_daemon
    pass "$WHAT under load $kills times: nothing is lost, with the cache or, after a flush, without"
}

# What was answered outlives the daemon, wherever it is by then: what the client of a store holds in memory does not.
killed_unflushed() {
    local how
    WHAT="$STORE, killed without a flush"
    for how in "--no-cache --accept-stale" "--cache cache --write-policy write-through --durability flush"; do
        new_volume
        # shellcheck disable=SC2086
        serve_volume $how
        write_stamps 0 --operations 60 --threads 4 --largest 16 --mix 70,20,10,0
        kill_daemon
        # shellcheck disable=SC2086
        serve_volume $how
        verify_stamps 0
        stop_daemon
    done
    pass "$WHAT: what was answered is there, without a cache and written through"
}

cache_lost() {
    WHAT="$STORE, lost cache"
    new_volume
    serve_volume --cache cache --write-policy journaled --group-ends points
    write_stamps 0 --operations "$N" --largest 32
    fb mark db --label whole >point
    cp state state.point
    at_point() { [[ $(status backing_point) == "$(cat point)" ]]; }
    await "$PATIENCE" at_point || fail "$WHAT: the point is not committed"
    write_stamps 0 --operations 100 --threads 4 --largest 16
    see
    kill_daemon
    rm cache
    "$FOREBAY" recover "$BACKING" >recovered 2>recover.err || fail "$WHAT: recover failed"
    grep -q "consistency point $(cat point) 'whole'" recovered || fail "$WHAT: not at the point: $(cat recovered)"
    serve_volume --no-cache --accept-stale
    verify_stamps 0 state.point
    verify_stamps 1
    stop_daemon
    pass "$WHAT: the point that was declared, exactly"
}

taken_over() {
    local first second
    WHAT="$STORE, takeover"
    new_volume
    serve_volume --cache cache --write-policy write-through
    write_stamps 0 --operations "$N" --largest 32
    refused 3 "is in use by another process\|is in use by process" "$FOREBAY" serve --name two --no-cache --accept-stale \
        --backing "$BACKING" --control two.control --nbd "unix:$DIR/two"
    first=$DAEMON
    : >"$LOG"
    "$FOREBAY" serve --name two --no-cache --accept-stale --takeover --backing "$BACKING" --control two.control \
        --nbd "unix:$DIR/two" >ready.two 2>two.log </dev/null &
    second=$!
    OWN=("$second")
    await "$PATIENCE" grep -q ^ready ready.two || fail "$WHAT: not taken over: $(cat two.log)"
    await "$PATIENCE" grep -q "taken over from process" two.log || fail "$WHAT: not told from whom: $(cat two.log)"
    stamp 0 verify --target "nbd:unix:$DIR/two" --state state --quiet
    # Clients of the first one read what it has cached, and it finds out. What they write then is nowhere.
    finds_out() {
        "$FOREBAY_STAMP" verify --target "nbd:unix:$NBD" --state state --quiet >/dev/null 2>&1 || true
        grep -q "has taken it over" "$LOG"
    }
    await "$PATIENCE" finds_out || fail "$WHAT: the first one does not say that it is fenced"
    stamp "0 1 2 3" write --target "nbd:unix:$NBD" --state state.first --operations 20 --allow any:eio --seed $RANDOM
    stamp 0 verify --target "nbd:unix:$DIR/two" --state state --quiet
    kill_process "$first"
    kill_process "$second"
    OWN=()
    DAEMON=
    pass "$WHAT: refused until it is told to, and then the first one writes no more"
}

# cut_off POLICY: the first host is cut off from the store.
cut_off() {
    WHAT="$STORE, cut off"
    # With room for all that comes behind the point.
    new_volume 32M 256M
    # The other host reaches no port of this one's loopback.
    BACKING+=,endpoint=http://$ADDRESS:$PORT
    taken_over_while_cut_off "$1" "is in use by process .* of elsewhere; .*give --takeover"
    pass "$WHAT with clients, $1: what was acknowledged at the store is there, exactly, and the first writes no more and answers with errors alone"
}

# judge STATE: what is in the store.
judge() {
    serve_volume --no-cache --accept-stale --read-only
    verify_stamps 0 "$1"
    stop_daemon
}

database() {
    WHAT="$STORE, PostgreSQL"
    new_volume 280M 48M
    kills_lose_no_commit serve_database write-back journaled
}

serve_database() {
    serve_plain --cache cache --backing "$BACKING" --fuse "$DIR/volume" --write-policy "$1"
    attach_device
}

# Whole blocks, for which the store is not needed: they must be taken, and soon.
write_blocks() {
    timeout "$PATIENCE" /usr/bin/python3 "$ROOT/tests/clients/whole_blocks.py" "nbd+unix:///?socket=$NBD" blocks write "$1" 2>blocks.err ||
        fail "$WHAT: a client notices it: $(cat blocks.err)"
}

# fall_ill WORDS: while something that was written is to go to a store that is ill. The log says these words.
fall_ill() {
    (fb flush db >flushed 2>&1 || true) &
    wants_state degraded
    await "$PATIENCE" grep -q "$1" "$LOG" || fail "$WHAT: the log does not say '$1': $(cat "$LOG")"
    write_blocks 200
}

# get_well: the store is well again.
get_well() {
    wants_state healthy
    fb flush db >/dev/null || fail "$WHAT: nothing goes to the store"
    [[ $(status dirty_bytes) == 0 ]] || fail "$WHAT: something does not go to the store"
    pass "$WHAT: hidden, and it goes on by itself"
}

# ill ILLNESS [WORDS]: the store has it for a while.
ill() {
    WHAT="$STORE, $1"
    : >"$LOG"
    echo "$1" >illness
    write_blocks 100
    [[ -z ${2:-} ]] || fall_ill "$2"
    sleep 1
    echo well >illness
    get_well
}

sick() {
    new_volume
    rm -f blocks
    serve_volume --cache cache
    write_blocks 100
    ill "status 500" "500 Sick: it says 500"
    ill "lost PUT"
    [[ $STORE == "${SERVERS[0]}" ]] || return 0
    # What does not depend on who is ill.
    ill "status 503" "503 Sick"
    ill "reset" "reset"
    ill "silent" "nothing comes in time"
    ill "slow 0.3"
}

bucket_gone() {
    WHAT="$STORE, bucket gone"
    : >"$LOG"
    write_blocks 100
    mv objects/volumes away
    fall_ill NoSuchBucket
    mv away objects/volumes
    get_well
}

keys_exchanged() {
    WHAT="$STORE, keys exchanged"
    : >"$LOG"
    write_blocks 100
    radosgw-admin key create --uid "$KEY" --key-type s3 --access-key newer --secret-key newer-secret >/dev/null 2>&1
    radosgw-admin key rm --uid "$KEY" --key-type s3 --access-key "$KEY" >/dev/null 2>&1
    fall_ill "403"
    write_keys newer newer-secret
    get_well
}

# taken_away WORDS TAKE... -- GIVE...: what a command takes from the volume's user at the gateway, and another gives back.
taken_away() {
    local words=$1 take=()
    shift
    while [[ $1 != -- ]]; do
        take+=("$1")
        shift
    done
    shift
    : >"$LOG"
    write_blocks 100
    "${take[@]}" >taken.out 2>&1 || fail "$WHAT: $(cat taken.out)"
    fall_ill "$words"
    "$@" >taken.out 2>&1 || fail "$WHAT: $(cat taken.out)"
    get_well
}

set_policy() { objects set-policy volumes <<<"$1"; }

rights_taken() {
    WHAT="$STORE, user suspended"
    taken_away "403 UserSuspended" radosgw-admin user suspend --uid "$KEY" -- radosgw-admin user enable --uid "$KEY"
    WHAT="$STORE, writing forbidden"
    taken_away "403 AccessDenied" set_policy '{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*",
        "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::volumes/*"]}]}' -- objects remove-policy volumes
    WHAT="$STORE, quota full"
    radosgw-admin quota set --quota-scope user --uid "$KEY" --max-size 4096 >/dev/null
    taken_away "403 QuotaExceeded" radosgw-admin quota enable --quota-scope user --uid "$KEY" -- radosgw-admin quota disable --quota-scope user --uid "$KEY"
}

# All that was written in the course of these, from the store alone.
blocks_are_there() {
    WHAT="$STORE, in the end"
    stop_daemon
    serve_volume --no-cache --accept-stale
    /usr/bin/python3 "$ROOT/tests/clients/whole_blocks.py" "nbd+unix:///?socket=$NBD" blocks verify || fail "$WHAT: something is lost"
}

# A store that is there and takes nothing says why, and goes on to be read.
takes_nothing() {
    local number flush
    new_volume
    serve_volume --cache cache
    reason_has() { [[ $(status reason) == *"$1"* ]]; }
    for number in 507 403; do
        WHAT="$STORE, it answers $number to what is written"
        echo "status $number PUT" >illness
        write_stamps 0 --operations 20
        fb flush db >flushed 2>&1 &
        flush=$!
        await "$PATIENCE" reason_has "$number Sick" || fail "$WHAT: told as: $(status reason)"
        ! reason_has connection || fail "$WHAT: it is told as a lost connection: $(status reason)"
        [[ $number == 403 ]] || reason_has "it is full" || fail "$WHAT: not told as full: $(status reason)"
        # The owner asks the store every second whether it still is the owner, and is answered.
        for _ in {1..25}; do
            [[ $(status state) == degraded ]] || fail "$WHAT: the state is $(status state) in between"
            sleep 0.1
        done
        echo well >illness
        wants_state healthy
        wait "$flush" || true
        fb flush db >/dev/null || fail "$WHAT: nothing goes to the store"
        verify_stamps 0
    done
    "$FOREBAY" status db "${CONTROL[@]}" | grep -q "^  store  .* creates, .* objects of " || fail "$WHAT: the costs are not told"
    stop_daemon
    pass "$STORE: a store that takes nothing says why, all the time"
}

# What another host reads of a checkpoint of this name, or of the newest state.
on_another_host() {
    : >ready.reader
    "$FOREBAY" serve --name there --no-cache --read-only --accept-stale --backing "$BACKING${1:+,checkpoint=$1}" \
        --control reader.control --nbd "unix:$DIR/reader" >ready.reader 2>reader.log </dev/null &
    OWN=($!)
    await "$PATIENCE" grep -q ^ready ready.reader || fail "$WHAT: another host cannot read it: $(cat reader.log)"
    stamp 0 verify --target "nbd:unix:$DIR/reader" --state "$2" --quiet
    kill_process "${OWN[0]}"
    OWN=()
}

checkpoints() {
    WHAT="$STORE, checkpoints"
    new_volume
    serve_volume --cache cache
    checkpoint() { fb checkpoint "$@"; }
    names() { python3 -c 'import json, sys; print(*(c["name"] for c in json.load(sys.stdin)["checkpoints"]))'; }
    [[ -z $(checkpoint list db --json | names) ]] || fail "$WHAT: there are some in a new volume"
    write_stamps 0 --operations "$N" --largest 32
    fb flush db >/dev/null || fail "$WHAT: flush failed"
    checkpoint create db then --json >named || fail "$WHAT: none is made"
    grep -q '"checkpoint": "then"' named || fail "$WHAT: it is not told which: $(cat named)"
    cp state state.then
    write_stamps 0 --operations "$N" --threads 4 --largest 32
    fb flush db >/dev/null || fail "$WHAT: flush failed"
    checkpoint create db later >/dev/null || fail "$WHAT: no second one is made"
    checkpoint list db --json >listed
    "$FOREBAY" checkpoint list "$BACKING" --json | cmp - listed || fail "$WHAT: the store lists others"
    [[ $(names <listed) == "later then" ]] || fail "$WHAT: not listed: $(cat listed)"
    # While the volume is served and written to.
    on_another_host then state.then
    on_another_host later state
    refused 3 "there is a checkpoint 'then'" fb checkpoint create db then
    refused 2 "1 to 64 letters" fb checkpoint create db a/b
    refused 2 "no checkpoint 'never'" fb checkpoint delete db never
    # A store that is ill: it is told, and done when it is well again.
    echo "status 500 PUT" >illness
    refused 1 "it has waited for the store for 2 s: .*may still be done" fb checkpoint create db ill
    refused 1 "another checkpoint is being made" fb checkpoint create db other
    echo well >illness
    wants_state healthy
    is_listed() { checkpoint list db | grep -q "^$1 "; }
    await "$PATIENCE" is_listed ill || fail "$WHAT: what was told as late does not come"
    # They outlive the owner, and another one gives them up.
    kill_daemon
    serve_volume --cache cache
    checkpoint delete db then >/dev/null || fail "$WHAT: it cannot be given up"
    ! is_listed then || fail "$WHAT: it is still listed"
    refused 1 "no checkpoint named then" "$FOREBAY" serve --name there --no-cache --read-only --accept-stale \
        --backing "$BACKING,checkpoint=then" --control reader.control --nbd "unix:$DIR/reader"
    verify_stamps 0
    stop_daemon
    serve_volume --no-cache --accept-stale --read-only
    refused 3 "served read-only" fb checkpoint create db never
    stop_daemon
    rm -f cache plain.img*
    truncate -s 16M plain.img
    "$FOREBAY" format cache --size 32M --backing plain.img >/dev/null || fail "$WHAT: format failed"
    serve_plain --cache cache --backing plain.img --nbd "unix:$NBD"
    refused 3 "keeps no checkpoints" fb checkpoint create db never
    refused 3 "keeps no checkpoints" fb checkpoint list db
    stop_daemon
    pass "$WHAT: another host reads what there was then, until it is given up"
}

# One object of the log is lost, or exchanged for another.
one_object_lost() {
    local lost way
    WHAT="$STORE, one object lost"
    new_volume
    serve_volume --no-cache --accept-stale
    write_stamps 0 --operations 100 --largest 32
    stop_daemon
    objects list volumes "test/$VOLUME/log/" >listed
    lost=$(awk 'NR == 3 {print $2}' listed)
    objects get volumes "$lost" >object
    objects list volumes "test/$VOLUME/" >before
    for way in "" --takeover --read-only; do
        objects delete volumes "$lost"
        refused 4 "is damaged: ${lost#test/$VOLUME/}: it is missing, .*put the object back" "$FOREBAY" serve --name db --no-cache \
            --accept-stale $way --backing "$BACKING" "${CONTROL[@]}" --nbd "unix:$NBD"
        objects put volumes "$lost" <object
    done
    head -c 100 object | objects put volumes "$lost"
    refused 4 "is damaged: ${lost#test/$VOLUME/}: .*put the object back" "$FOREBAY" serve --name db --no-cache --accept-stale \
        --backing "$BACKING" "${CONTROL[@]}" --nbd "unix:$NBD"
    objects put volumes "$lost" <object
    objects list volumes "test/$VOLUME/" | cmp - before || fail "$WHAT: a refused opening has changed something"
    serve_volume --no-cache --accept-stale
    verify_stamps 0
    stop_daemon
    pass "$WHAT: it is told which, and all is there when it is back"
}

# Keys are in nothing that was printed, or that the daemon tells.
nothing_shows_keys() {
    local hidden
    fb status db --json >shown.status
    for hidden in "${HIDDEN[@]}" X-Amz-; do
        ! grep -qF -- "$hidden" "$LOG" shown.status formatted ready recovered two.log ||
            fail "$STORE: something shows '$hidden'"
    done
}

HIDDEN=()
SERVERS=(versitygw rgw)
if [[ -n $GO_SAYS ]]; then
    note "the second server is left out: $(tail -n 1 <<<"$GO_SAYS")"
    SERVERS=(rgw)
fi
[[ $(id -u) != 0 ]] || make_other_host
for STORE in "${SERVERS[@]}"; do
    "start_$STORE"
    objects make-bucket volumes
    objects races volumes 10 || fail "$STORE does not create once"
    start_sick_store
    killed_under_load
    killed_unflushed
    cache_lost
    taken_over
    checkpoints
    one_object_lost
    takes_nothing
    sick
    # The keys are others from then on.
    if [[ $STORE == rgw ]]; then rights_taken; keys_exchanged; else bucket_gone; fi
    blocks_are_there
    nothing_shows_keys
    stop_daemon
    if [[ $(id -u) == 0 ]]; then
        [[ $STORE != "${SERVERS[0]}" ]] || cut_off journaled
        [[ $STORE != rgw ]] || { cut_off write-through; database; }
    fi
    end_stores
done
went_to_cache 2

refused 1 "no credentials" env AWS_SHARED_CREDENTIALS_FILE="$DIR/none" "$FOREBAY" recover "$BACKING"
refused 3 "cannot be a cache" "$FOREBAY" format s3://volumes/cache --backing "$BACKING"
pass "refusals: no credentials, a cache in an object store"
