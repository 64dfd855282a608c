#!/usr/bin/env bash
# `ceph osd blocklist add ADDRESS SECONDS` of an address that is on the list does not change its time (seen with Ceph 16.2.15 of Debian 12):
#
#   1. The first one, for 100 seconds, says until when the address is kept out, and the list says the same.
#   2. A second one, for 100,000 seconds, ends well and names the later time. The list goes on with the first one.
#   3. So does one for 10 seconds, which names an earlier time.
#   4. Only what is removed first can be added with another time.
#
# Whoever prolongs an entry to keep a client out for longer believes that he has, and the client is let in when the first time is over.
#
# Needs Debian's ceph-mon and ceph-common. Exit code 0: all is as described; 1: something has changed; 77: cannot run here.
set -euo pipefail

for program in ceph-mon monmaptool ceph python3; do
    command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 77; }
done
ceph --version

DIR=$(mktemp -d)
MON=
end() {
    [[ -z $MON ]] || { kill "$MON"; wait "$MON"; } 2>/dev/null || true
    rm -rf "$DIR"
}
trap end EXIT
ID=$(cat /proc/sys/kernel/random/uuid)
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export CEPH_CONF=$DIR/ceph.conf
cat >"$CEPH_CONF" <<END
[global]
fsid = $ID
mon_host = [v2:127.0.0.1:$PORT/0]
public_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
admin_socket =
run_dir = $DIR
log_file = $DIR/\$name.log
mon_cluster_log_file = $DIR/cluster.log
mon_data = $DIR/mon
END
# A monitor is a cluster that has a map; nothing else is asked for here.
mkdir "$DIR/mon"
monmaptool --create --fsid "$ID" --addv a "[v2:127.0.0.1:$PORT/0]" "$DIR/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$DIR/monmap" --keyring /dev/null
ceph-mon -f -i a >"$DIR/mon.out" 2>&1 </dev/null &
MON=$!
for ((i = 0; ; i++)); do
    ! timeout 10 ceph mon stat >/dev/null 2>&1 || break
    ((i < 60)) && kill -0 "$MON" || { tail "$DIR/mon.out"; exit 1; }
    sleep 0.5
done

ADDRESS=192.0.2.1:0/1234
# Seconds from now to the time in a line.
ahead() {
    python3 -c 'import datetime, re, sys
then = datetime.datetime.strptime(re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", sys.argv[1])[0] + "+0000", "%Y-%m-%dT%H:%M:%S%z")
print(round((then - datetime.datetime.now(datetime.timezone.utc)).total_seconds()))' "$1"
}
about() { (($2 > $1 - 60 && $2 <= $1 + 1)); }

changed=0
# added SECONDS LISTED: what is said of this addition, and what the list then says, each in seconds from now, about.
added() {
    local said listed
    said=$(ceph osd blocklist add "$ADDRESS" "$1" 2>&1)
    listed=$(ceph osd blocklist ls 2>/dev/null | grep "$ADDRESS")
    echo "add for $1 s: '$said'; list: '$listed'"
    about "$1" "$(ahead "$said")" || { echo "CHANGED: it said 'until' a time in $1 s"; changed=1; }
    about "$2" "$(ahead "$listed")" || { echo "CHANGED: the list had a time in about $2 s"; changed=1; }
}

export TZ=UTC
added 100 100
added 100000 100
added 10 100
ceph osd blocklist rm "$ADDRESS"
added 100000 100000
exit "$changed"
