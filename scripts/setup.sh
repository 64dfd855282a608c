#!/usr/bin/env bash
# Installs what is missing on Debian and Ubuntu. Usage: setup.sh run | test
#   run   what building and running need
#   test  that, and the programs that the tests in tests/ use
set -euo pipefail

# command:package pairs; a package is installed only if its command is missing.
RUN=(gcc:gcc clang:clang make:make pkg-config:pkg-config losetup:mount mkfs.ext4:e2fsprogs blkid:util-linux fusermount3:fuse3)
TEST=(fio:fio qemu-io:qemu-utils nbdinfo:libnbd-bin nbdsh:python3-libnbd nbdkit:nbdkit python3:python3 jq:jq openssl:openssl
      redis-server:redis-server redis-cli:redis-tools pg_ctlcluster:postgresql pgrep:procps setpriv:util-linux strace:strace mkfs.xfs:xfsprogs
      mkfs.btrfs:btrfs-progs sfdisk:fdisk ip:iproute2 mariadbd:mariadb-server mariadb:mariadb-client sysbench:sysbench
      ceph-mon:ceph-mon ceph-osd:ceph-osd ceph:ceph-common radosgw:radosgw curl:curl go:golang-go
      qemu-storage-daemon:qemu-system-common s3backer:s3backer)

want=("${RUN[@]}")
case "${1:-run}" in
    run) ;;
    test) want+=("${TEST[@]}") ;;
    *) echo "usage: $0 run|test" >&2; exit 2 ;;
esac

PATH="$PATH:/usr/sbin:/sbin"
missing=()
for pair in "${want[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done

# What Debian splits off Python, with which the tests compile WiredTiger, and off QEMU.
if [[ ${1:-run} == test ]]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    # QEMU's way to RBD images has no command.
    compgen -G "/usr/lib/*/qemu/block-rbd.so" >/dev/null || missing+=(qemu-block-extra)
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null) || headers=
    [[ -e $headers/Python.h ]] || missing+=(python3-dev)
fi

if ((${#missing[@]})); then
    echo "setup: missing: ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; install these by hand (Debian's package names): ${missing[*]}" >&2
        exit 1
    fi
    sudo=()
    if [[ $(id -u) != 0 ]]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: run as root: apt-get install ${missing[*]}" >&2
            exit 1
        fi
        sudo=(sudo)
    fi
    # A service that Debian would start by itself on installation is not wanted.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo; Forebay needs Rust 1.95 or later, which rustup installs (see the Rust web site)" >&2
    exit 1
fi
have=$(rustc --version | sed -E 's/^rustc ([0-9]+)\.([0-9]+).*/\1 \2/')
read -r major minor <<<"$have"
if ((major == 1 && minor < 95)); then
    echo "setup: $(rustc --version) is too old; Forebay needs Rust 1.95 or later (rustup update stable)" >&2
    exit 1
fi
