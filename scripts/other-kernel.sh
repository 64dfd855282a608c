#!/usr/bin/env bash
# The tracker on another kernel, and on device-mapper, which the running kernel may lack: boots it in a virtual machine (by emulation, a minute
# at most), attaches a volume there, writes to it through dm-linear and dm-stripe and through ext4 on dm-linear, and wants each write known as
# that of its task. For x86-64; wants qemu-system-x86_64, a static busybox, dmsetup, cpio, xz and dpkg.
# Usage: other-kernel.sh [DEB]   DEB: a kernel of Debian; without one, the cloud kernel of the release that this is run on, from its archive.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/.." && pwd)
FOREBAY=${FOREBAY:-$ROOT/target/release/forebay}
DEB=${1:+$(readlink -f "$1")}
DIR=$(mktemp -d "${TMPDIR:-/tmp}/forebay-kernel.XXXXXX")
trap 'rm -rf "$DIR"' EXIT
PATH="$PATH:/usr/sbin:/sbin"

die() {
    echo "FAIL other-kernel: $*" >&2
    exit 1
}

for program in qemu-system-x86_64 busybox dmsetup mkfs.ext4 losetup fusermount3 cpio xz dpkg python3; do
    command -v "$program" >/dev/null || die "$program is not installed"
done
[[ -x $FOREBAY ]] || (cd "$ROOT" && cargo build --locked --release -p forebay)
cd "$DIR"
if [[ -z $DEB ]]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
    apt-get download "$package" 2>/dev/null || die "the archive has no ${package:-linux-image-cloud-amd64}"
    DEB=$(echo "$DIR"/*.deb)
fi
dpkg -x "$DEB" kernel

# What the machine has: the programs with their libraries, and the modules.
mkdir -p root/{bin,sbin,proc,sys,dev,tmp,run,mnt,modules}
cp "$(command -v busybox)" root/bin/busybox
strip -o root/bin/forebay "$FOREBAY"
for program in mkfs.ext4 losetup dmsetup fusermount3; do
    cp -L "$(command -v "$program")" root/sbin/
done
for program in root/bin/forebay root/sbin/*; do
    ldd "$program" | grep -oE '/[^ ]+' | while read -r library; do
        mkdir -p "root/$(dirname "$library")"
        cp -L "$library" "root/$library"
    done
done
for module in loop fuse dax dm-mod crc16 crc32c_generic libcrc32c mbcache jbd2 ext4; do
    # Some are built in, and their names differ in whether they are compressed.
    found=$(find kernel -name "$module.ko*" -print -quit)
    case $found in
        *.xz) xz -dc "$found" >"root/modules/$module.ko" ;;
        ?*) cp "$found" "root/modules/$module.ko" ;;
        *) continue ;;
    esac
    echo "insmod /modules/$module.ko" >>root/modules/load
done
cat >root/init <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
. /modules/load
cd /tmp
forebay() { /bin/forebay "$@" --control /tmp/control; }
explain() { echo "SAID $1 $(forebay explain db --json | tr '\n' ' ')"; }
device() { dmsetup --noudevsync --noudevrules create "$1"; }
echo "SAID kernel \"$(uname -r)\""
truncate -s 96M backing
/bin/forebay format cache --size 48M --backing backing >/dev/null
printf '[[rule]]\nname = "none of these"\nthread = "zzz*"\ncritical = true\n' >rules.toml
forebay serve --name db --cache cache --backing backing --rules rules.toml --admission cp >ready &
until grep -q ready ready; do sleep 0.2; done
loop=$(forebay attach db)
sectors=$(blockdev --getsz "$loop")
half=$((sectors / 16 * 8))
echo "0 $sectors linear $loop 0" | device linear
echo "0 $((2 * half)) striped 2 8 $loop 0 $loop $half" | device striped
/bin/forebay run --critical -- dd if=/dev/zero of=/dev/dm-0 bs=4k count=20 oflag=direct
dd if=/dev/zero of=/dev/dm-0 bs=4k seek=100 count=30 oflag=direct
explain linear
/bin/forebay run --critical -- dd if=/dev/zero of=/dev/dm-1 bs=64k count=5 oflag=direct
dd if=/dev/zero of=/dev/dm-1 bs=64k seek=10 count=6 oflag=direct
explain striped
dmsetup --noudevsync --noudevrules remove striped
forebay set db admission=cp+pi >/dev/null
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/dm-0
mount -t ext4 /dev/dm-0 /mnt
for i in 1 2 3 4 5; do
    /bin/forebay run --critical -- dd if=/dev/zero of=/mnt/$i bs=4k count=4 conv=fsync
done
explain ext4
echo "SAID status $(forebay status db --json | tr '\n' ' ')"
umount /mnt
poweroff -f
END
chmod +x root/init
(cd root && find . | cpio --quiet -o -H newc | gzip -1) >initrd.gz
timeout 600 qemu-system-x86_64 -accel tcg -m 2048 -smp 2 -nographic -no-reboot -kernel kernel/boot/vmlinuz-* -initrd initrd.gz \
    -append "console=ttyS0 quiet panic=-1" </dev/null >console 2>&1 || die "the machine did not end well: $(tail -n 20 console)"
python3 - <<'END' || die "$(tail -n 60 console)"
import json, re
said = {}
for line in open("console", encoding="utf-8", errors="replace"):
    if found := re.search(r"SAID (\w+) (.*)", line):
        said[found[1]] = json.loads(found[2])

def writes(what, task, reason):
    return sum(r["writes"] for r in said[what]["rows"] if r["task"] == task and r["reason"] == reason)

missing = said["status"]["criticality_missing"]
print("     Linux", said["kernel"], "lacks", missing or "nothing")
assert not missing
# Through dm-stripe what was written last is in pieces of 4 KiB.
for what, critical, rest in (("linear", 20, 30), ("striped", 20 + 80, 30 + 96)):
    seen = writes(what, "dd", "direct"), writes(what, "dd", "not-critical")
    print(f"     {what}: {seen[0]} writes of the critical task are direct, {seen[1]} of the other are not critical")
    assert seen == (critical, rest), what
journal = writes("ext4", "jbd2", "inherited")
print(f"     ext4 on linear: {journal} writes of the journal inherited")
assert journal and writes("ext4", "dd", "direct") > 100, "ext4"
END
echo "PASS other-kernel: each write through device-mapper is known as that of its task"
