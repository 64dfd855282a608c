#!/usr/bin/env bash
# A Ceph of one node, for tests and trials: a monitor, an OSD in memory, and on demand an S3 gateway (RGW). All of it listens on
# 127.0.0.1, or another address of this host, and lies under one directory. What is stored is gone when it is stopped.
#
# Usage: ceph-one-node.sh up DIRECTORY [--rgw] [--auth] [--address IP] [--mon-port N] [--rgw-port N] [--memory BYTES]
#        ceph-one-node.sh down DIRECTORY
#
# When `up` returns, everything answers. DIRECTORY/env is for `source`: CEPH_CONF, and with --rgw the address and the keys in the
# variables that S3 clients read. With --auth everybody needs a key: those of `admin` and of `forebay`, who has the rights that the guide
# names, are in DIRECTORY/keyring, where CEPH_CONF says that it is. DIRECTORY/*.pid are the daemons: `kill -STOP` makes one silent. There is a pool `rbd`, and with
# --rgw a user who may make buckets. Ports are free ones unless they are given. It needs Debian's ceph-mon, ceph-osd, ceph-common,
# and for --rgw radosgw and curl; `scripts/setup.sh test` installs them.
set -euo pipefail

# The longest that any step takes which does not hang, in seconds.
PATIENCE=${FOREBAY_PATIENCE:-60}
ACCESS_KEY=forebay
SECRET_KEY=forebay-secret

die() { echo "ceph-one-node: $*" >&2; exit 1; }
usage() { sed -n 's/^# \(Usage:\|      \) \(ceph-.*\)/\1 \2/p' "$0" >&2; exit 2; }

action=${1:-} directory=${2:-}
[[ $action == up || $action == down ]] && [[ -n $directory ]] || usage
shift 2
gateway=no auth=none address=127.0.0.1 mon_port='' rgw_port='' memory=$((4 << 30))
while (($#)); do
    case $action:$1 in
        up:--rgw) gateway=yes; shift; continue ;;
        up:--auth) auth=cephx; shift; continue ;;
        up:--address) address=${2:-}; [[ $address =~ ^[0-9.]+$ ]] || usage; shift 2; continue ;;
        up:--mon-port) mon_port=${2:-} ;;
        up:--rgw-port) rgw_port=${2:-} ;;
        up:--memory) memory=${2:-} ;;
        *) usage ;;
    esac
    [[ ${2:-} =~ ^[0-9]+$ ]] || usage
    shift 2
done

# await COMMAND...: polls until the command succeeds.
await() {
    local deadline=$((SECONDS + PATIENCE))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}

# The daemons of the directory that are alive. A number may belong to somebody else by now.
daemons() {
    local file pid
    for file in "$directory"/*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) =~ ^(ceph-mon|ceph-osd|radosgw)$ ]] && echo "$pid"
    done
    return 0
}

stop() {
    local pid
    none_left() { [[ -z $(daemons) ]]; }
    for pid in $(daemons); do
        # A silent one is to hear it. What it holds is of no use to anybody, so that nothing is saved.
        kill -KILL "$pid" 2>/dev/null || true
    done
    await none_left || die "these do not end: $(daemons | xargs)"
    rm -f "$directory"/*.pid
}

if [[ $action == down ]]; then
    [[ -d $directory ]] || die "there is no $directory"
    directory=$(cd "$directory" && pwd)
    stop
    exit 0
fi

programs=(ceph-mon:ceph-mon monmaptool:ceph-common ceph-authtool:ceph-common ceph-osd:ceph-osd ceph:ceph-common rbd:ceph-common)
[[ $gateway == no ]] || programs+=(radosgw:radosgw radosgw-admin:ceph-common curl:curl)
missing=()
for pair in "${programs[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
((${#missing[@]} == 0)) ||
    die "these Debian packages are missing (scripts/setup.sh test installs them): $(printf '%s\n' "${missing[@]}" | sort -u | xargs)"

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
[[ -z $(daemons) ]] || die "a Ceph runs in $directory already"
[[ -z $(ls -A "$directory") || -e $directory/ceph.conf ]] || die "$directory holds something else: not touched"
rm -rf "$directory"/{mon,osd,rgw,crash,monmap,keyring,mon-keyring,env} "$directory"/*.pid "$directory"/*.log

# Below the range from which the kernel takes ports for outgoing connections.
free_port() {
    local port
    while port=$((RANDOM % 16384 + 15000)); do
        # shellcheck disable=SC2188
        (</dev/tcp/"$address"/"$port") 2>/dev/null || break
    done
    echo "$port"
}

mon_port=${mon_port:-$(free_port)}
rgw_port=${rgw_port:-$(free_port)}
new_id() { cat /proc/sys/kernel/random/uuid; }
cluster=$(new_id)
export CEPH_CONF=$directory/ceph.conf
cat >"$CEPH_CONF" <<END
[global]
fsid = $cluster
mon_host = [v2:$address:$mon_port/0]
public_addr = $address
cluster_addr = $address
ms_bind_msgr1 = false
# Without authentication there are no keys to encrypt with, and nothing here leaves this host.
ms_cluster_mode = crc
ms_service_mode = crc
ms_client_mode = crc
ms_mon_cluster_mode = crc
ms_mon_service_mode = crc
ms_mon_client_mode = crc
auth_cluster_required = $auth
auth_service_required = $auth
auth_client_required = $auth
auth_allow_insecure_global_id_reclaim = false
run_dir = $directory
pid_file = $directory/\$name.pid
admin_socket =
log_file = $directory/\$name.log
mon_cluster_log_file = $directory/cluster.log
log_to_stderr = false
crash_dir = $directory/crash
keyring = $directory/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
[mon]
mon_data = $directory/mon
# What is free on this machine's disk is of no interest to a store in memory.
mon_data_avail_warn = 0
mon_data_avail_crit = 0
[osd]
osd_data = $directory/osd
keyring = $directory/osd/keyring
osd_objectstore = memstore
memstore_device_bytes = $memory
# Pages take what is written, and not three times that.
memstore_page_set = true
memstore_page_size = 65536
osd_min_pg_log_entries = 64
osd_max_pg_log_entries = 128
osd_pg_log_dups_tracked = 64
osd_memory_target = 939524096
osd_class_load_list = *
osd_class_default_list = *
osd_scrub_load_threshold = 0
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
[client]
rbd_cache = false
rgw_frontends = beast endpoint=$address:$rgw_port
rgw_data = $directory/rgw
rgw_enable_usage_log = false
rgw_thread_pool_size = 64
END

trap 'stop; exit 1' INT TERM
# what_failed WORDS: nothing is left running, and the last words of what did not start are shown.
what_failed() {
    local log
    for log in "$directory"/*.log; do
        [[ -s $log ]] && { echo "== $log"; tail -n 5 "$log"; } >&2
    done
    stop
    die "$*"
}
# run WORDS COMMAND...: a step that must succeed, before long.
run() {
    local words=$1
    shift
    timeout -k 1 "$PATIENCE" "$@" </dev/null >"$directory/step.log" 2>&1 || what_failed "$words failed"
}

as=()
[[ $(id -u) != 0 ]] || as=(--setuser root --setgroup root)
mkdir -p "$directory"/{mon,osd,rgw,crash}
(umask 077 && touch "$directory"/{keyring,mon-keyring,osd/keyring})
if [[ $auth == cephx ]]; then
    run "making keys" ceph-authtool "$directory/mon-keyring" --gen-key -n mon. --cap mon 'allow *'
    run "making keys" ceph-authtool "$directory/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    run "making keys" ceph-authtool "$directory/mon-keyring" --import-keyring "$directory/keyring"
fi
# new_key FILE NAME CAPABILITIES...
new_key() {
    [[ $auth == cephx ]] || return 0
    run "making the key of $2" ceph auth get-or-create "${@:2}"
    cat "$directory/step.log" >>"$1"
}

run "making the monitor's map" monmaptool --create --fsid "$cluster" --addv a "[v2:$address:$mon_port/0]" "$directory/monmap"
run "making the monitor" ceph-mon "${as[@]}" --mkfs -i a --monmap "$directory/monmap" --keyring "$directory/mon-keyring"
run "starting the monitor" ceph-mon "${as[@]}" -i a
await timeout 10 ceph mon stat || what_failed "the monitor does not answer"

osd=$(new_id)
run "registering the OSD" ceph osd new "$osd"
id=$(tail -n 1 "$directory/step.log")
echo "$osd" >"$directory/osd/fsid"
new_key "$directory/osd/keyring" "osd.$id" mon 'allow profile osd' osd 'allow *'
run "making the OSD" ceph-osd "${as[@]}" -i "$id" --mkfs --osd-uuid "$osd" --no-mon-config
run "starting the OSD" ceph-osd "${as[@]}" -i "$id"
is_up() { [[ $(timeout 10 ceph osd stat --format json) == *'"num_up_osds":1,'* ]]; }
await is_up || what_failed "the OSD does not come up"
run "making the pool" ceph osd pool create rbd 8
run "naming the pool's use" ceph osd pool application enable rbd rbd
new_key "$directory/keyring" client.forebay mon 'profile rbd' osd 'profile rbd pool=rbd'
# The first image waits for the pool.
run "making an image" rbd create warm --size 8M --image-feature layering,exclusive-lock
run "removing an image" rbd rm warm --no-progress
echo "export CEPH_CONF=$CEPH_CONF" >"$directory/env.new"

if [[ $gateway == yes ]]; then
    new_key "$directory/keyring" client.rgw mon 'allow rw' osd 'allow rwx'
    run "starting the gateway" radosgw "${as[@]}" -n client.rgw --no-mon-config
    await curl --silent --max-time 10 "http://$address:$rgw_port/" || what_failed "the gateway does not answer"
    run "making the gateway's user" radosgw-admin user create --uid "$ACCESS_KEY" --display-name tests \
        --access-key "$ACCESS_KEY" --secret-key "$SECRET_KEY"
    cat >>"$directory/env.new" <<END
export AWS_ENDPOINT_URL=http://$address:$rgw_port
export AWS_ACCESS_KEY_ID=$ACCESS_KEY
export AWS_SECRET_ACCESS_KEY=$SECRET_KEY
export AWS_REGION=us-east-1
END
fi
rm -f "$directory/step.log"
mv "$directory/env.new" "$directory/env"
echo "up after $SECONDS s: source $directory/env"
