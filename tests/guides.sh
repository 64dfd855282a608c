#!/usr/bin/env bash
# README.md and docs/guide/*.md work as they stand: every block that is marked `sh` is run, in order, those of a document in one shell
# as a reader would paste them. Each document has a machine of its own, as far as it touches one: mounts, devices, /etc, /srv and the
# network are private to it. Blocks that are no commands say so by another mark; a block without a mark is a fault, and so is one that
# is not run and not named below.
#
# What differs from a reader's machine: /dev/sdb, /dev/sdc and the partitions of /dev/nvme0n1 are sparse loop devices, caches in files
# are small, and `systemctl` is a stand-in that starts what the unit file says and waits until it is ready.
source "$(dirname "$0")/harness.sh"

# The marks of blocks that are no commands.
NO_COMMANDS="toml c ini text"
# Blocks that are not run, by document and first line, and why.
declare -A NOT_RUN=(
    ["README.md: make up        # builds, serves a volume in ./forebay-data, mounts ext4 on it"]="make-up.sh runs up and down; this is run by make test"
)
CACHE_BYTES=256M
DISK_BYTES=100G

# --- what a document takes for granted, and what happens to its reader between two blocks: before DOCUMENT BLOCK

# The daemon dies, and all that used it.
everything_dies() {
    pkill_here postgres
    pkill_here forebay
    umount -l /srv/pg 2>/dev/null || true
}

backing_is_consistent() { forebay status pg --json | grep -q '"backing_consistent": *true'; }

before() {
    local name pair server
    case $1 in
        "admission 1")
            for name in db pg; do
                truncate -s 4G "/srv/$name.img"
                forebay format "/srv/$name.fb" --size 64M --backing "/srv/$name.img"
            done
            forebay serve --name db --cache /srv/db.fb --backing /srv/db.img &
            mkfs.ext4 -q "$(forebay attach db)"
            mount "$(forebay attach db)" /mnt
            ;;
        "consistency-points 1")
            source blocks/postgresql.1
            # What a fresh ext4 zeroes in the background would cut groups.
            mount -o remount,noinit_itable /srv/pg
            forebay set pg write-policy=journaled
            await "$PATIENCE" backing_is_consistent
            ;;
        "consistency-points 5") everything_dies ;;
        "consistency-points 8")
            umount /srv/pg
            wipefs -qa /dev/sdb
            for pair in nvme0n1p4:sdb nvme0n1p5:sdc; do
                forebay format "/dev/${pair%:*}" --backing "/dev/${pair#*:}" --volume-size 99G --force --journal none
            done
            cp blocks/consistency-points.toml.1 /srv/group.toml
            forebay serve --config /srv/group.toml &
            forebay status pg-log --wait 10s
            forebay mark pg-data
            everything_dies
            ;;
        "nbd-backing 1")
            echo "127.0.0.1 store" >>/etc/hosts
            mkdir /srv/store
            truncate -s $DISK_BYTES /srv/store/{db,log}
            truncate -s 256M /srv/store/log-journal
            nbdkit -P /srv/nbdkit.pid file dir=/srv/store
            await 10 test -s /srv/nbdkit.pid
            ;;
        "nbd-backing 3") pkill_here forebay ;;
        "operations 1") source blocks/postgresql.format ;;
        "operations 3")
            truncate -s 1G /srv/disk.img
            forebay format /srv/cache.fb --size 64M --backing /srv/disk.img
            rm /srv/disk.img.forebay
            ;;
        "postgresql 2")
            server=$(head -n 1 /srv/pg/data/postmaster.pid)
            pkill_here postgres
            # A server that nobody has reaped yet counts as one that runs.
            await 20 test ! -e "/proc/$server"
            pkill_here forebay
            printf '[[volume]]\nname = "pg"\ncache = "/dev/nvme0n1p4"\nbacking = "/dev/sdb"\n' >/etc/forebay/pg.toml
            ;;
    esac
}

# --- what must be so after a document: its last block has done what it says

after() {
    case $1 in
        README) [[ -e cache.fb && ! -e disk.img.forebay && ! -e /mnt/lost+found ]] ;;
        admission) forebay status pg --json | grep -q '"admission": *"cp+pi+ioi"' && [[ -s /mnt/order ]] ;;
        consistency-points) grep -q "'nightly'" "$OUT.5" && grep -q "^START WAL LOCATION" /srv/backup/nightly.backup_label &&
            grep -q "at common point" "$OUT.8" ;;
        first-volume) [[ ! -e /srv/disk.img.forebay ]] && mountpoint -q /mnt ;;
        media) forebay status db --json | grep -q '"logical_block_bytes": *4096' ;;
        nbd-backing) forebay status db --json | grep -q '"write_policy": *"journaled"' || grep -qi consistent "$OUT.3" ;;
        operations) [[ -e /srv/disk.img.forebay ]] ;;
        postgresql) psql -qAtX -U postgres -c 'SELECT 6 * 7' | grep -q 42 ;;
    esac
}

# --- the blocks of a document: blocks/NAME.NUMBER, those of another mark blocks/NAME.MARK.NUMBER

# extract DOCUMENT NAME: writes its blocks to files; prints "LINE MARK FILE" of each.
extract() {
    awk -v name="$2" '
        /^ *```/ && !inside { inside = 1; line = FNR; mark = $0; sub(/^ *```/, "", mark); n[mark]++
            file = "blocks/" name (mark == "sh" ? "" : "." (mark == "" ? "none" : mark)) "." n[mark]
            printf "" > file; next }
        # Who reads of a file looks into it at once.
        /^ *```/ { inside = 0; close(file); print line, (mark == "" ? "none" : mark), file; next }
        inside { print > file }
        END { if (inside) print FNR, "open", "-" }
    ' "$1"
}

# --- the machine of a document

machine() {
    local node i
    mount --make-rprivate /
    ip link set lo up
    mkdir dev etc srv forebay mnt postgresql
    mount -t tmpfs -o mode=755 dev dev
    for node in null zero full random urandom tty fuse loop-control kmsg; do
        [[ ! -e /dev/$node ]] || cp -a "/dev/$node" dev/
    done
    for ((i = 0; i < 256; i++)); do mknod -m 660 "dev/loop$i" b 7 "$i"; done
    for i in pts shm; do mkdir "dev/$i" && mount --bind "/dev/$i" "dev/$i"; done
    for i in fd stdin stdout stderr ptmx; do [[ ! -e /dev/$i ]] || cp -a "/dev/$i" dev/; done
    for node in sdb sdc nvme0n1p4 nvme0n1p5; do
        case $node in
            nvme*) truncate -s $CACHE_BYTES "disk-$node" ;;
            *) truncate -s $DISK_BYTES "disk-$node" ;;
        esac
        ln -s "$(losetup -f --show "disk-$node")" "dev/$node"
    done
    mount --move dev /dev
    cp -a /etc/. etc/
    mkdir -p etc/forebay /run/forebay /run/postgresql /srv
    chown postgres postgresql
    mount --bind etc /etc
    mount --bind srv /srv
    mount --bind mnt /mnt
    mount --bind forebay /run/forebay
    mount --bind postgresql /run/postgresql
}

# The programs that stand in for others.
stand_ins() {
    # Whatever the binary is called, its processes are found by this name.
    mkdir -p bin/real
    ln -s "$FOREBAY" bin/real/forebay
    cat >bin/forebay <<END
#!/bin/bash
# A cache in a file is written in full, so that it is made small.
[[ \$1 != format ]] || set -- "\${@/#[48]G/64M}"
exec "$PWD/bin/real/forebay" "\$@"
END
    cat >bin/systemctl <<END
#!/bin/bash
volume=\${!#}
volume=\${volume#forebay@}
# shellcheck disable=SC2046
setsid \$(sed -n "s|^ExecStart=@PREFIX@/bin/|$PWD/bin/|p" "$ROOT/packaging/forebay@.service" | sed "s|%i|\$volume|") >ready.\$volume 2>>daemon.log &
until grep -q ^ready ready.\$volume; do kill -0 \$! || exit 1; sleep 0.05; done
END
    chmod +x bin/*
    PATH=$PWD/bin:$PATH
}

# kill_within NAMESPACE [NAME] [HOLDER]: kills what a document has started (under this name), which is all that has its mounts, but not
# the process that holds them.
kill_within() {
    local process
    [[ $1 == mnt:* && $1 != "$OUTSIDE" ]] || fail "a document has no namespace of its own"
    while read -r process; do
        [[ $process != "${3:-$BASHPID}" ]] || continue
        [[ -z ${2:-} || $(cat "/proc/$process/comm" 2>/dev/null) == "$2" ]] || continue
        # It may have ended by itself a moment ago.
        kill -KILL "$process" 2>/dev/null || true
        await 20 ended "$process" || fail "process $process was killed and does not die"
    done < <({ find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/mnt' -printf '%l/%p\n' 2>/dev/null || true; } | awk -F/ -v own="$1" '$1 == own { print $4 }')
    return 0
}

pkill_here() { kill_within "$NAMESPACE" "$1"; }

# run_document NAME: in namespaces of its own. What the blocks print is in out.NAME and, of each, out.NAME.NUMBER.
run_document() {
    DOCUMENT=$1
    NAMESPACE=$(readlink /proc/self/ns/mnt)
    mkdir machine
    cp -r blocks machine/
    cd machine
    machine
    stand_ins
    OUT=$DIR/out.$DOCUMENT
    for BLOCK in blocks/"$DOCUMENT".[0-9]*; do
        NUMBER=${BLOCK##*.}
        WHAT="before the block at $(sed -n "$NUMBER p" "$DIR/lines.$DOCUMENT")"
        before "$DOCUMENT $NUMBER" >>"$OUT.$NUMBER" 2>&1
        WHAT=${WHAT#before }
        # As it is pasted: each line runs, and none may fail.
        source "$BLOCK" >>"$OUT.$NUMBER" 2>&1
    done
    WHAT="after the last block"
    after "$DOCUMENT"
}

# --- inside: one document
if [[ ${1:-} == --document ]]; then
    trap 'echo "failed: $WHAT: line $LINENO: $BASH_COMMAND" >&3' ERR
    trap - EXIT INT TERM
    rm -rf "$DIR"
    DIR=$2
    cd "$DIR"
    OUTSIDE=$4
    exec 3>&2 2>"$DIR/err.$3"
    run_document "$3"
    exit 0
fi

need_block_devices
need unshare nsenter ip losetup nbdkit qemu-img psql mkfs.ext4 fsfreeze wipefs

mkdir blocks
found=0 ran=0 documents=()
for document in README.md $(cd "$ROOT" && echo docs/guide/*.md); do
    name=$(basename "$document" .md)
    while read -r line mark file; do
        case " $NO_COMMANDS " in *" $mark "*) continue ;; esac
        [[ $mark == sh ]] || fail "$document:$line: a block must be marked sh, or as no commands: $NO_COMMANDS"
        found=$((found + 1))
        if [[ -n ${NOT_RUN["$document: $(head -n 1 "$file")"]:-} ]]; then
            note "$document:$line is not run: ${NOT_RUN["$document: $(head -n 1 "$file")"]}"
            rm "$file"
        fi
        echo "$document:$line" >>"lines.$name"
    done < <(extract "$ROOT/$document" "$name")
    [[ -e lines.$name ]] && documents+=("$name")
done
# The way to a paired volume alone.
grep '^forebay format' blocks/postgresql.1 >blocks/postgresql.format

OUTSIDE=$(readlink /proc/self/ns/mnt)
held() {
    NAMESPACE=$(readlink "/proc/$HOLDER/ns/mnt")
    [[ $NAMESPACE == mnt:* && $NAMESPACE != "$OUTSIDE" && $(cat "/proc/$HOLDER/comm") == sleep ]]
}
for name in "${documents[@]}"; do
    code=0
    # Who ends last unmounts what is left, and a daemon would wait for itself to answer.
    unshare -m -n sleep infinity >/dev/null 2>&1 &
    HOLDER=$!
    await 20 held || fail "no namespaces"
    timeout -k 1 600 nsenter -t "$HOLDER" -m -n "$ROOT/tests/guides.sh" --document "$DIR" "$name" "$OUTSIDE" 2>"failed.$name" || code=$?
    kill_within "$NAMESPACE" "" "$HOLDER"
    kill_process "$HOLDER"
    for loop in /sys/block/loop*/loop/backing_file; do
        [[ $(cat "$loop" 2>/dev/null) == "$DIR"/* ]] && losetup -d "/dev/$(cut -d/ -f4 <<<"$loop")"
    done
    [[ $code == 0 ]] || fail "$(cat "failed.$name"); it said: $(tail -n 20 "err.$name"; ls -t "out.$name".* 2>/dev/null | head -n 1 | xargs -r tail -n 20 | tr -d '\0')"
    some=$(ls "out.$name".* | wc -l)
    ran=$((ran + some))
    note "$name: $some blocks"
    rm -rf machine
done
[[ $((ran + ${#NOT_RUN[@]})) == "$found" ]] || fail "$found blocks were found, $ran ran and ${#NOT_RUN[@]} are excepted"
pass "$ran blocks of ${#documents[@]} documents run as they stand"
