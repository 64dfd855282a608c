#!/usr/bin/env bash
# With the client option `rbd_blocklist_expire_seconds`, an image's exclusive lock cannot be broken (seen with librbd 16.2.15 of Debian 12):
#
#   1. Without the option (0), `rbd_lock_break` breaks the lock of another client, which is put on the cluster's blocklist.
#   2. With another number (60, 3600), which is to be the time there in seconds, it fails with -22 (EINVAL). The owner keeps the lock, and nobody is on the list.
#
# Whoever wants another time has to add the owner to the blocklist himself, before the lock is broken.
#
# Needs Debian's ceph-mon, ceph-osd, ceph-common and python3-rbd. Exit code 0: all is as described; 1: something has changed; 77: cannot run here.
set -euo pipefail

for program in ceph-mon ceph-osd monmaptool ceph rbd; do
    command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 77; }
done
/usr/bin/python3 -c 'import rados, rbd' 2>/dev/null || { echo "SKIP: python3-rbd is not installed"; exit 77; }
ceph --version

DIR=$(mktemp -d)
DAEMONS=()
end() {
    ((${#DAEMONS[@]} == 0)) || { kill "${DAEMONS[@]}"; wait "${DAEMONS[@]}"; } 2>/dev/null || true
    rm -rf "$DIR"
}
trap end EXIT
ID=$(cat /proc/sys/kernel/random/uuid)
PORT=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
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
mon_data_avail_crit = 0
mon_allow_pool_size_one = true
osd_data = $DIR/osd
osd_objectstore = memstore
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
END
mkdir "$DIR/mon" "$DIR/osd"
monmaptool --create --fsid "$ID" --addv a "[v2:127.0.0.1:$PORT/0]" "$DIR/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$DIR/monmap" --keyring /dev/null
ceph-mon -f -i a >"$DIR/mon.out" 2>&1 </dev/null &
DAEMONS=($!)
for ((i = 0; ; i++)); do
    ! timeout 10 ceph mon stat >/dev/null 2>&1 || break
    ((i < 60)) && kill -0 "${DAEMONS[0]}" || { tail "$DIR/mon.out"; exit 1; }
    sleep 0.5
done

# One OSD, in memory.
uuid=$(cat /proc/sys/kernel/random/uuid)
number=$(ceph osd new "$uuid" 2>/dev/null)
echo "$uuid" >"$DIR/osd/fsid"
ceph-osd -i "$number" --mkfs --osd-uuid "$uuid" --no-mon-config >"$DIR/osd.out" 2>&1 </dev/null
ceph-osd -f -i "$number" >"$DIR/osd.out" 2>&1 </dev/null &
DAEMONS+=($!)
ceph osd pool create rbd 8 >/dev/null 2>&1
ceph osd pool application enable rbd rbd >/dev/null 2>&1
timeout 60 rbd create image --size 8M --image-feature layering,exclusive-lock

cat >"$DIR/break.py" <<'END'
"""break.py CONF SECONDS: a client takes the image's lock, and another breaks it, whose option has so many seconds ('none': it is not set)."""
import os
import sys

import rados
import rbd


def client(**options):
    cluster = rados.Rados(conffile=sys.argv[1], name="client.admin", conf=options)
    cluster.connect(10)
    return cluster, cluster.open_ioctx("rbd")


owner_cluster, owner_pool = client()
owner = rbd.Image(owner_pool, "image")
owner.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
options = {} if sys.argv[2] == "none" else {"rbd_blocklist_expire_seconds": sys.argv[2]}
cluster, pool = client(**options)
image = rbd.Image(pool, "image")
[locked] = image.lock_get_owners()
try:
    image.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, locked["owner"])
    said = "broken"
except rbd.Error as error:
    said = f"-{abs(error.errno)}"
print(said, "and held by", len(list(image.lock_get_owners())), flush=True)
# Who has lost his lock need not be able to close his image.
os._exit(0)
END

changed=0
# seen SECONDS EXPECTED
seen() {
    local said listed
    said=$(timeout 60 /usr/bin/python3 "$DIR/break.py" "$CEPH_CONF" "$1" 2>"$DIR/break.err") || { cat "$DIR/break.err"; exit 1; }
    listed=$(ceph osd blocklist ls 2>/dev/null | grep -c :0/ || true)
    echo "rbd_blocklist_expire_seconds=$1: $said; on the blocklist: $listed"
    [[ "$said; $listed" == "$2" ]] || { echo "CHANGED: it was '$2'"; changed=1; }
    ceph osd blocklist clear >/dev/null 2>&1
    # The lock of a client that has ended is broken by whoever comes next.
    rbd lock ls image --format json | /usr/bin/python3 -c 'import json, sys
for lock in json.load(sys.stdin): print(lock["id"], lock["locker"], sep="|")' | while IFS="|" read -r id locker; do
        rbd lock rm image "$id" "$locker"
    done
    ceph osd blocklist clear >/dev/null 2>&1
}

seen none "broken and held by 0; 1"
seen 0 "broken and held by 0; 1"
seen 60 "-22 and held by 1; 0"
seen 3600 "-22 and held by 1; 0"
exit "$changed"
