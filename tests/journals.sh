#!/usr/bin/env bash
# Journals are found by the shape of their writes: what is found is what ext4 says of its journal, and admission and caching treat it as they are told to.
source "$(dirname "$0")/harness.sh"

need mkfs.ext4 debugfs e2fsck mount python3 jq
need_block_devices

# Files that grow, each change of them synced. Space that is freed and used again in order would look like a small journal.
sync_files() {
    python3 - "$MOUNT" "$1" <<'END'
import os, sys
directory, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    path = f"{directory}/{n % 50}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.write(file, b"x" * (1000 + n % 7000))
    os.fsync(file)
    os.close(file)
END
}
by_reason() { fb status db --json | jq ".writes_by_reason[\"$1\"]"; }

make_pair 64M 256M
serve
attach_device
mkfs.ext4 -q -J size=4 "$DEVICE"
mkdir -p "$MOUNT"
mount "$DEVICE" "$MOUNT"
debugfs -R "stat <8>" "$DEVICE" >inode 2>/dev/null
[[ $(cat inode) =~ \(0-([0-9]+)\):([0-9]+)-([0-9]+) ]] || fail "where the journal lies is not known: $(cat inode)"
block_size=$(dumpe2fs -h "$DEVICE" 2>/dev/null | sed -n 's/^Block size: *//p')
first=$((BASH_REMATCH[2] * block_size)) end=$(((BASH_REMATCH[3] + 1) * block_size))
# Its superblock is written in its place, and is no part of the circle.
judge() {
    python3 - "$(status journals)" "$first" "$end" <<'END'
import sys
found = [tuple(map(int, part.split("-"))) for part in sys.argv[1].split(",") if part]
first, end = int(sys.argv[2]), int(sys.argv[3])
right = sum(max(0, min(e, end) - max(s, first)) for s, e in found)
precision, recall = right / max(1, sum(e - s for s, e in found)), right / (end - first)
print(f"precision {precision:.3f}, recall {recall:.3f}: found {sys.argv[1]}, the journal is {first}-{end}")
sys.exit(precision < 0.99 or recall < 0.95)
END
}
# A sync writes some of its blocks: two times around, and no more than five.
for ((n = 0; n < 20; n++)); do
    sync_files 400
    judge >judged && break
done
judge >judged || fail "$(cat judged)"
pass "ext4's journal is found: $(cat judged)"

fb set db admission=journal >/dev/null
sync_files 300
(($(by_reason journal) > 100 && $(by_reason not-journal) > 100)) || fail "with admission=journal: $(status writes_by_reason)"
fb set db admission=all journal-caching=bypass >/dev/null
sync_files 300
(($(by_reason journal-bypass) > 100)) || fail "with journal-caching=bypass: $(status writes_by_reason)"
umount "$MOUNT"
fb detach db >/dev/null
stop_daemon
serve --journal-caching skip
attach_device
e2fsck -fn "$DEVICE" >fsck 2>&1 || fail "the file system is damaged: $(cat fsck)"
[[ -z $(status journals) && $(status journal_caching) == skip ]] || fail "what was found outlives the daemon: $(status journals)"
fb detach db >/dev/null
stop_daemon
pass "a journal is cached alone, or past the cache, as it is told to be ($SECONDS s)"
