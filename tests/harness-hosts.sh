# shellcheck shell=bash
# What tests of a store that two hosts reach share, beside harness.sh, which is read first. This host is a network namespace, in which the
# store is, too. The other one has a network, a name and a machine id of its own; a cable joins the two.

# Where the store is, and the two ends of the cable.
ADDRESS=10.213.0.1
HERE=10.213.1.1
THERE=10.213.1.2
ELSEWHERE=

# make_store_address: for a script that has a network namespace of its own.
make_store_address() {
    ip link set lo up
    ip address add "$ADDRESS/32" dev lo
}

# make_other_host: ./there is forebay on it. What is mounted later is not to be seen there.
make_other_host() {
    echo 00000000000000000000000000000002 >other-id
    unshare --net --mount --uts bash -c "echo elsewhere >/proc/sys/kernel/hostname
        [[ ! -e /etc/machine-id ]] || mount --bind '$DIR/other-id' /etc/machine-id
        touch '$DIR/elsewhere'; exec sleep infinity" &
    ELSEWHERE=$!
    await "$PATIENCE" test -e elsewhere || fail "there is no other host"
    ip link add cable type veth peer name cable netns "$ELSEWHERE"
    ip address add "$HERE/30" dev cable
    ip link set cable up
    on_other_host ip link set lo up
    on_other_host ip address add "$THERE/30" dev cable
    on_other_host ip link set cable up
    on_other_host ip route add default via "$HERE"
    cat >there <<END
#!/usr/bin/env bash
cd "$DIR"
exec nsenter --target $ELSEWHERE --net --mount --uts -- "$FOREBAY" "\$@"
END
    chmod +x there
}

on_other_host() { nsenter --target "$ELSEWHERE" --net --mount --uts -- "$@"; }

end_other_host() { [[ -z $ELSEWHERE ]] || { kill -KILL "$ELSEWHERE"; wait "$ELSEWHERE"; } 2>/dev/null || true; }

# load_first FLAGS...: clients of the volume, $WRITER, who go on for as long as it is there, whatever they are told.
load_first() {
    "$FOREBAY_STAMP" write --target "nbd:unix:$NBD" --state state --threads 4 --largest 16 --seed $RANDOM --allow any:eio "$@" >stamp.out 2>stamp.err &
    WRITER=$!
    OWN+=("$WRITER")
}

# first_is_gone: the clients end, because the volume is not there for them any more, and have seen nothing wrong.
first_is_gone() {
    local code=0
    wait "$WRITER" || code=$?
    [[ $code == 3 ]] || fail "$WHAT: a client of the first host ended with $code: $(cat stamp.err stamp.out)"
}

# taken_over_while_cut_off POLICY IN_USE: the other host serves $BACKING with $DIR/cache, `journaled` with points or `write-through`, and is cut
# off from the store while it has clients. This host takes over. It finds the point that was declared, exactly, or all that was acknowledged;
# nothing comes of what the first one sends when it is back, and that one's clients get errors alone. IN_USE is how its owner is told of, and
# `judge STATE` judges what is in the store in the end.
taken_over_while_cut_off() {
    local policy=$1 in_use=$2 first first_log=$LOG first_nbd=$NBD first_control=("${CONTROL[@]}") flags=(--write-policy "$1") kind
    local stop=(--stop-on-error)
    [[ $policy != journaled ]] || flags+=(--group-ends points) stop=()
    rm -f state state.second
    : >"$LOG"
    FOREBAY=$DIR/there serve_plain --cache "$DIR/cache" --backing "$BACKING" --nbd "unix:$NBD" "${flags[@]}"
    write_stamps 0 --operations 400 --largest 32
    if [[ $policy == journaled ]]; then
        fb mark db --label whole >point
        cp state state.second
    fi
    refused 3 "$in_use" "$FOREBAY" recover "$BACKING"
    load_first "${stop[@]}"
    sleep 0.5
    ip link set cable down
    ! ended "$WRITER" || fail "$WHAT: the first host has no client: $(cat stamp.err)"
    if [[ $policy == write-through ]]; then
        # What was acknowledged is known when its clients have gone, at their first error. Others come.
        first_is_gone
        cp state state.second
        load_first
    else
        "$FOREBAY" recover "$BACKING" --takeover >recovered 2>>"$LOG" || fail "$WHAT: recover failed"
        grep -q "consistency point $(cat point) 'whole'" recovered || fail "$WHAT: not at the point: $(cat recovered)"
    fi
    first=$DAEMON
    OWN+=("$first")
    NBD=$DIR/nbd2 LOG=$DIR/second.log CONTROL=(--control "$DIR/control2")
    serve_plain --no-cache --accept-stale --takeover --backing "$BACKING" --nbd "unix:$NBD"
    stamp 0 verify --target "nbd:unix:$NBD" --state state.second --quiet
    stamp 0 write --target "nbd:unix:$NBD" --state state.second --seed $RANDOM --operations 200 --largest 32
    ! ended "$WRITER" || fail "$WHAT: a client of the first host: $(cat stamp.err stamp.out)"
    ip link set cable up
    is_told() { grep -q "another host has taken the backing over" "$first_log"; }
    await "$PATIENCE" is_told || fail "$WHAT: the first host does not notice that it was taken over from"
    is_fenced() {
        [[ $("$FOREBAY" status db --json "${first_control[@]}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])') == fenced ]]
    }
    await "$PATIENCE" is_fenced || fail "$WHAT: the first host's volume goes on"
    stamp 0 write --target "nbd:unix:$first_nbd" --state state.none --seed $RANDOM --operations 60 --allow any:eio
    for kind in reads writes zeroes flushes; do
        [[ $(figure $kind) == 0 ]] || fail "$WHAT: the first host still answers: $STAMPED"
    done
    stamp 0 write --target "nbd:unix:$NBD" --state state.second --seed $RANDOM --operations 100 --largest 32
    stop_daemon
    judge state.second
    kill_process "$first"
    first_is_gone
    refused 3 "" ./there serve --name db "${first_control[@]}" --cache "$DIR/cache" --backing "$BACKING" --nbd "unix:$first_nbd"
    NBD=$first_nbd LOG=$first_log CONTROL=("${first_control[@]}")
    OWN=()
}
