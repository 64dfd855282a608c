#!/usr/bin/env bash
# Who waits for which write: a critical task waits for another in each of the ways that there are (tests/criticality/waits.c), on
# ext4 over an attached volume with a slow backing. The right writes must enter the cache under the admission policy that
# covers this way, and none of them under the policy below it.
source "$(dirname "$0")/harness.sh"

SECONDS_EACH=${SECONDS_EACH:-2}
need gcc mkfs.ext4 mount partx python3
need_block_devices
[[ -e /sys/kernel/btf/vmlinux ]] || skip "this kernel has no BTF"

gcc -O1 -Wall -pthread -I"$ROOT/crates/watch/hint/include" "$ROOT/tests/criticality/waits.c" -o waits
gcc -O1 -Wall -pthread "$ROOT/tests/criticality/lwlocks.c" -o lwlocks
gcc -O1 -Wall -pthread "$ROOT/tests/criticality/server.c" -o server
cat >rules.toml <<'END'
[[rule]]
name = "critical task"
thread = "fb-critical"
critical = true

[[rule]]
name = "background task"
thread = "fb-back"
critical = false

[[rule]]
name = "apart"
thread = "fb-apart"
critical = false

[[rule]]
name = "never"
thread = "fb-never"
critical = "never"

[[rule]]
name = "rated"
thread = "fb-hinting"
critical = false
rate = "16K"

[[rule]]
name = "capped"
cgroup = "*/forebay-criticality"
critical = true
rate = "16K"

[[rule]]
name = "no probes"
thread = "postgres"
critical = false

[[rule]]
thread = "srv-*"
critical = "requests"
END

make_pair 128M 512M
serve_plain --cache cache --backing emulate:hdd-7k2:file=backing --admission cp --rules rules.toml
attach_device
# A short queue, so that a long write is still being submitted when somebody comes to wait for it.
QUEUE=/sys/block/${DEVICE#/dev/}/queue/nr_requests
echo 4 >"$QUEUE"
mkfs.ext4 -q "$DEVICE"
mkdir -p "$MOUNT"
mount "$DEVICE" "$MOUNT"

# [COUNT=bytes] explained FILE TASKS REASON [DATA]: writes of these tasks (a|b) for this reason, or in the `cache`, or past it at the `backing`, of this kind of data
# if one is given, between the account in FILE and now.
explained() {
    fb explain db --json >now.json
    python3 - "$@" <<'END'
import json, os, sys
before, tasks, reason, data = sys.argv[1], sys.argv[2].split("|"), sys.argv[3], sys.argv[4:]
what = os.environ.get("COUNT", "writes")
counts = lambda r: r["task"] in tasks and reason in (r["reason"], "cache" if r["cached"] else "backing") and data in ([], [r["data"]])
count = lambda f: sum(r[what] for r in json.load(open(f))["rows"] if counts(r))
print(count("now.json") - count(before))
END
}

# through KIND [WAITERS]: writes that are in the cache because of this kind of wait, of one of these tasks (a|b), since the daemon started.
through() {
    fb explain db --json | python3 -c 'import json, sys
wanted = lambda r: r["through"] == sys.argv[1] and (not sys.argv[2] or r["waiter"] in sys.argv[2].split("|"))
print(sum(r["writes"] for r in json.load(sys.stdin)["inherited"] if wanted(r)))' "$1" "${2-}"
}

waited() {
    fb waits db --json | python3 -c 'import json, sys
print(sum(r["count"] for r in json.load(sys.stdin) if r["kind"] == sys.argv[1]))' "$1"
}

# under POLICY PROGRAM...: runs it under this policy, with the account before it in before.json.
under() {
    fb set db admission="$1"
    fb explain db --json >before.json
    timeout "$PATIENCE" "${@:2}" || fail "$WHAT: the program failed under $1"
}

# way KIND BELOW POLICY TASKS REASON THROUGH [WAIT]: of TASKS nothing is cached under BELOW (under cp+pi: not all) although it is written; under POLICY
# something for REASON, because somebody waits THROUGH that. What the critical task itself waits for is WAIT.
way() {
    local kind=$1 below=$2 policy=$3 tasks=$4 reason=$5 through=$6 wait=${7:-$6} cached bypassed some before waited_before more
    WHAT=$kind
    local program=(./waits "$kind" "$MOUNT" "$SECONDS_EACH")
    case $kind in
    lwlock) program=(./lwlocks "$MOUNT" "$SECONDS_EACH") ;;
    condition) program=(./server condition unix "$MOUNT" "$SECONDS_EACH") ;;
    esac
    under "$below" "${program[@]}"
    cached=$(explained before.json "$tasks" cache)
    bypassed=$(explained before.json "$tasks" backing)
    ((bypassed > 0)) || fail "$kind: under $below all writes of $tasks are cached, or there are none"
    [[ $below != cp ]] || ((cached == 0)) || fail "$kind: under $below $cached writes of $tasks are cached"
    before=$(through "$through")
    waited_before=$(waited "$wait")
    under "$policy" "${program[@]}"
    some=$(explained before.json "$tasks" "$reason")
    # Whether somebody waits at the right moment is up to the kernel's scheduler.
    for ((more = 0; more < 11 && some == 0; more++)); do
        "${program[@]}"
        some=$(explained before.json "$tasks" "$reason")
    done
    ((some > 0)) || fail "$kind: under $policy no write of $tasks is $reason"
    # What came to be waited for has several reasons at a time, and one is told.
    [[ $reason == reissued ]] || (($(through "$through") > before)) || fail "$kind: nothing was inherited through $through"
    (($(waited "$wait") > waited_before)) || fail "$kind: no wait for $wait was seen"
    pass "$kind: writes of $tasks: $cached cached and $bypassed not under $below; $some $reason under $policy"
}

WHAT=hint
under cp ./waits plain "$MOUNT" "$SECONDS_EACH"
(($(explained before.json rated cache) == 0)) || fail "a task is critical that does not say so"
(($(explained before.json rated backing) > 0)) || fail "the task that does not say so has not written"
under cp ./waits hint "$MOUNT" "$SECONDS_EACH"
(($(explained before.json rated direct) > 0)) || fail "a task that says so is not critical"
pass "hint: writes of a task that says so are direct, and none of one that does not"
way journal cp cp+pi jbd2 inherited journal
way conversion cp cp+pi jbd2 inherited journal writeback
# A commit waits for whoever has a handle of it open, and that one for the queue of the disk.
way handle cp cp+pi "background task" inherited journal
# Who waits for the lock of a page waits for whoever submits it, and that one for the queue of the disk.
way page cp cp+pi "background task" inherited buffer
# So does who waits for one that was changed again while it was written, and is written once more by somebody who has to wait for the first time.
# Nobody sleeps for a slot of the queue meanwhile.
echo 64 >"$QUEUE"
way locked cp cp+pi "background task" inherited buffer
# Of whoever may have locked the page it is not supposed that he needs the commit that runs. The critical task does now and then, for the lock of the
# inode or to note the time in it: about as many inherit as do not, and most often many times as many where it is supposed.
inherited=$(explained before.json jbd2 inherited)
not=$(explained before.json jbd2 not-critical)
((not > 0)) || fail "locked: there are no commits that nobody critical waits for"
((inherited < 2 * not)) || fail "locked: $inherited writes of commits inherited, $not not: they do for who waits for a page's lock"
way locked cp+pi cp+pi+ioi "background task" reissued writeback buffer
# A slot may be waited for all the same, whoever has it, or room in the journal.
fb explain db --json | python3 -c 'import json, sys
sys.exit(any(r["task"] == "apart" and r["through"] in ("buffer", "writeback") for r in json.load(sys.stdin)["inherited"]))' ||
    fail "locked: writes of a task that has locked no page are cached"
(($(explained before.json apart backing) > 0)) || fail "locked: the task that has locked no page has not written"
echo 4 >"$QUEUE"
way slot cp+pi cp+pi+ioi "background task" reissued buffer
# Which request has the first slot is known when it comes, and cached if somebody sleeps for it then. Without the scheduler there is none.
if grep -q '\[bfq\]' "/sys/block/${DEVICE#/dev/}/queue/scheduler"; then
    for ((i = 0; i < 11 && $(through slot) == 0; i++)); do ./waits slot "$MOUNT" "$SECONDS_EACH"; done
    (($(through slot) > 0)) || fail "slot: no write was known to have the slot that is waited for"
fi
# The block layer starts no flush while a write is under way that a flush belongs to: the record that ends a commit.
way flush cp+pi cp+pi+ioi jbd2 reissued flush
way futex cp cp+pi "background task" inherited futex
way mutex cp cp+pi "background task" inherited mutex
# A lock that is taken again and again: what was queued while nobody waited must not count.
inherited=$(explained before.json "background task" inherited)
not=$(explained before.json "background task" not-critical)
((not * 8 > inherited)) || fail "mutex: $inherited writes inherited, $not not: inheritance does not end"
# Who has given the lock on holds up nobody any more, although somebody waits for it still, behind somebody else: what it writes then does not count.
mkdir -p "$MOUNT/pg_wal"
way released cp cp+pi "background task" inherited mutex
inherited=$(explained before.json apart inherited log)
not=$(explained before.json apart not-critical log)
((not > 8 * inherited)) || fail "released: $inherited writes inherited, $not not: who has given a lock on inherits still"
(($(explained before.json apart inherited data) > 0)) || fail "released: whoever has the lock does not inherit"
# A lock of a library whose locks say elsewhere who holds them.
WHAT=foreign
under cp+pi ./waits foreign "$MOUNT" "$SECONDS_EACH"
(($(explained before.json "background task" cache) == 0)) || fail "foreign: who has nothing to do with a lock inherits by it"
(($(explained before.json "background task" backing) > 0)) || fail "foreign: nothing was written"
# Four that give it to each other: all but the one that has it when somebody comes to wait take it over while he waits.
way heir cp cp+pi "background task" inherited mutex
inherited=$(explained before.json "background task" inherited)
not=$(explained before.json "background task" not-critical)
((inherited >= 2 * not)) || fail "heir: $inherited writes inherited, $not not: who takes a lock over does not inherit"
way rwsem cp cp+pi jbd2 inherited journal rwsem
way rwsem cp cp+pi "background task" inherited rwsem
way chain cp cp+pi jbd2 inherited journal futex
way lwlock cp cp+pi "background task" inherited lwlock
(($(explained before.json apart inherited) == 0)) || fail "a process that holds no lock inherited"
# As an autovacuum worker that has to make its commit durable.
for more in 1 2 3; do
    under cp+pi ./lwlocks "$MOUNT" "$SECONDS_EACH" fresh
    inherited=$(explained before.json "background task" inherited)
    not=$(explained before.json "background task" not-critical)
    ((inherited <= not)) || break
done
((inherited > not)) || fail "lwlock: $inherited writes inherited, $not not: a new process does not inherit by the locks that it holds"
pass "lwlock: $inherited writes of processes that have just begun inherited, $not not"
way condition cp+pi cp+pi+ioi srv-worker reissued condition
way writeback cp+pi cp+pi+ioi kworker reissued writeback
fb explain db --json | python3 -c 'import json, sys
kinds = {r["sync"] for r in json.load(sys.stdin)["rows"] if r["task"] == "kworker"}
sys.exit(False not in kinds)' || fail "what the kernel writes by itself is synchronous"
(($(waited rwsem) > 0)) || fail "no wait for an inode's rwsem was seen"
(($(through rwsem "critical task") > 0)) || fail "nothing was inherited through an rwsem, or it is not known of whom"

for socket in unix tcp; do
    WHAT="requests over $socket"
    under cp ./server requests $socket "$MOUNT" "$SECONDS_EACH"
    (($(explained before.json srv-main direct) > 0)) || fail "$WHAT: no write before an answer is direct"
    for task in srv-after srv-back; do
        (($(explained before.json $task direct) == 0)) || fail "$WHAT: a write of $task is direct"
        (($(explained before.json $task not-critical) > 0)) || fail "$WHAT: $task has not written"
    done
    pass "$WHAT: what is written before the answer is direct, what is written after it and beside it is not"
done

WHAT=run
fb set db admission=cp
fb explain db --json >before.json
"$FOREBAY" run --critical -- dd if=/dev/zero of="$MOUNT/run" bs=64K count=1 conv=fsync status=none
(($(explained before.json dd direct) > 0)) || fail "what is run with --critical is not"
refused 1 "cannot run ./no-such-program" "$FOREBAY" run --critical -- ./no-such-program
pass "run --critical: writes of the program are direct"

WHAT=rate
SECONDS=0
under cp ./waits hint "$MOUNT" "$SECONDS_EACH"
(($(explained before.json rated "over-rate") > 0)) || fail "a task with a rate of 16 KiB a second has not used it up"
(($(explained before.json rated cache) <= 4 * (SECONDS + 2))) || fail "a task has used more than its rate"
SECONDS=0
under cp+pi+ioi ./waits hint "$MOUNT" "$SECONDS_EACH"
(($(explained before.json rated cache) <= 4 * (SECONDS + 2))) || fail "a task has used more than its rate by what came to be waited for"
SECONDS=0
under cp ./waits hint-forks "$MOUNT" "$SECONDS_EACH"
(($(explained before.json "rated|fb-hinting" backing) > 8)) || fail "the children of a task with a rate have not written"
(($(explained before.json "rated|fb-hinting" cache) <= 4 * (SECONDS + 2))) || fail "a task has used more than its rate by forking"
pass "a rule's rate is kept to"

WHAT=cgroup
mkdir cgroups
mount -t cgroup2 none cgroups
mkdir -p cgroups/forebay-criticality
SECONDS=0
under cp sh -c 'echo $$ >cgroups/forebay-criticality/cgroup.procs
    exec dd if=/dev/zero of="$1/capped" bs=4K count=256 oflag=direct status=none' sh "$MOUNT"
(($(explained before.json capped direct) > 0)) || fail "a task is not critical by its cgroup"
(($(explained before.json capped over-rate) > 0)) || fail "a cgroup with a rate of 16 KiB a second has not used it up"
(($(explained before.json capped cache) <= 4 * (SECONDS + 2))) || fail "a cgroup has used more than its rate"
fb explain db --json | python3 -c 'import json, sys
rules = {r["rule"] for r in json.load(sys.stdin)["rows"] if r["task"] == "capped"}
sys.exit(rules != {"rules.toml:6"} and f"not {rules}")' || fail "it is not told by which rule a task was critical"
pass "tasks of a cgroup are critical, up to its rate"

# What the journal and the kernel's workers write because such tasks wait is charged to the same rate: nobody else waits.
WHAT="rate of a journal"
for policy in cp+pi cp+pi+ioi; do
    SECONDS=0
    under $policy sh -c 'echo $$ >cgroups/forebay-criticality/cgroup.procs
        exec python3 -c "$1" "$2"' sh 'import os, sys
for number in range(150):
    file = os.open(f"{sys.argv[1]}/small-{number % 50}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(file, b"x" * 100)
    os.fsync(file)
    os.close(file)' "$MOUNT"
    admitted=$(COUNT=bytes explained before.json "capped|jbd2|kworker" cache)
    past=$(COUNT=bytes explained before.json "capped|jbd2|kworker" over-rate)
    # A write may be longer than all that is saved up, and is paid for later.
    bound=$((16384 * (SECONDS + 2) + (128 << 10)))
    (($(explained before.json jbd2 over-rate) > 0)) || fail "$WHAT: under $policy no write of the journal was beyond the rate"
    ((admitted <= bound)) || fail "$WHAT: under $policy $admitted bytes were admitted, the bound is $bound"
    pass "$WHAT: under $policy $admitted bytes were admitted, the bound is $bound, and $past were beyond it"
done
rmdir cgroups/forebay-criticality
umount cgroups

WHAT=never
for policy in cp+pi cp+pi+ioi; do
    under $policy ./waits never "$MOUNT" "$SECONDS_EACH"
    (($(explained before.json never cache) == 0)) || fail "a task that never is critical was under $policy"
    (($(explained before.json never backing) > 0)) || fail "the task that never is critical has not written"
done
under cp ./waits never-forks "$MOUNT" "$SECONDS_EACH"
(($(explained before.json "never|fb-never" cache) == 0)) || fail "children of a task that never is critical were"
(($(explained before.json "never|fb-never" backing) > 8)) || fail "children of the task that never is critical have not written"
pass "a task that never is to be critical is not, whatever it says, nor are its children"

WHAT=data
mkdir -p "$MOUNT/16384"
"$FOREBAY" explain db --follow --json "${CONTROL[@]}" >followed.json &
OWN+=($!)
await 10 test -s followed.json || fail "explain --follow says nothing"
fb explain db --json >before.json
for file in pg_wal/000000010000000000000001 16384/2619 letter; do
    dd if=/dev/zero of="$MOUNT/$file" bs=64K count=1 conv=fsync status=none
done
fb explain db --json >now.json
python3 - <<'END' || fail "what files hold is not known"
import json, sys
counts = lambda r, data: (r["task"], r["data"], r["sync"]) == ("dd", data, True)
count = lambda f, data: sum(r["bytes"] for r in json.load(open(f))["rows"] if counts(r, data))
found = {data: count("now.json", data) - count("before.json", data) for data in ("log", "database", "data")}
sys.exit(found != dict.fromkeys(found, 65536) and f"of dd's writes are {found}")
END
await 10 grep -q '"task":"dd"' followed.json || fail "explain --follow does not say who writes"
kill_process "${OWN[-1]}"
unset 'OWN[-1]'
pass "a log and a database are known by the names of their files, and that somebody waits for them by the kernel's mark"

WHAT=missing
tells() { [[ $(status criticality_missing) == *"$1"* ]]; }
tells_nothing() { [[ $(status criticality_missing) == "[]" ]]; }
cp "$(command -v sleep)" postgres
./postgres 1000 &
OWN+=($!)
await "$PATIENCE" tells "a PostgreSQL without static probes" || fail "it is not told that a PostgreSQL has no probes"
kill_process "${OWN[-1]}"
unset 'OWN[-1]'
await "$PATIENCE" tells_nothing || fail "it is told of a PostgreSQL without probes that has ended"
missing=$(status criticality_missing)
[[ $missing == "[]" ]] || fail "sources of criticality are missing: $missing"
[[ $(status errors) == 0 ]] || fail "requests failed"
umount "$MOUNT"
e2fsck -fn "$DEVICE" >fsck.out 2>&1 || fail "e2fsck finds faults: $(cat fsck.out)"

# A journal that is full all the time: whoever has to make room writes its superblock, and no commit ends meanwhile.
mkfs.ext4 -q -F -J size=4 "$DEVICE"
mount "$DEVICE" "$MOUNT"
way checkpoint cp cp+pi "background task" inherited flush journal
under cp+pi dd if=/dev/zero of="$MOUNT/after" bs=4K count=8 conv=fsync status=none
(($(explained before.json jbd2 inherited) == 0)) || fail "$WHAT: a commit that nobody critical waits for inherits"
(($(explained before.json jbd2 backing) > 0)) || fail "$WHAT: nothing was committed"
umount "$MOUNT"

WHAT=partition
python3 - "$DEVICE" <<'END'
import struct, sys
device = open(sys.argv[1], "r+b", buffering=0)
sectors = device.seek(0, 2) // 512
device.seek(0)
# One partition, from 1 MiB on.
device.write(bytes(446) + struct.pack("<B3xB3xII", 0, 0x83, 2048, sectors - 2048) + bytes(48) + b"\x55\xaa")
END
# The kernel looks for one when the device is attached, if it knows such tables at all.
partx -a "$DEVICE"
mkfs.ext4 -q "${DEVICE}p1"
mount "${DEVICE}p1" "$MOUNT"
under cp ./waits hint "$MOUNT" "$SECONDS_EACH"
(($(explained before.json rated direct) > 0)) || fail "writes to a partition are not those of who made them"
refused 3 "mounted on $MOUNT" "$FOREBAY" detach db "${CONTROL[@]}"
umount "$MOUNT"
pass "a partition's writes are known as those of the whole device"
fb detach db
[[ ! -e ${DEVICE}p1 ]] || fail "$WHAT: it stays for the next volume"
fb set db admission=cp
[[ $(status criticality_missing) == *"not attached"* ]] || fail "a volume that is not attached does not say what is missing"
(($(waited rwsem) > 0)) || fail "what was waited for is forgotten with the device"
stop_daemon
pass "the file system is whole, and what is missing is told"

# One tracker follows all volumes of a daemon.
WHAT=volumes
for volume in first second third; do
    make_pair 16M 64M "$volume.cache" "$volume.img"
    printf '[[volume]]\nname = "%s"\ncache = "%s.cache"\nbacking = "%s.img"\nadmission = "sync"\n' "$volume" "$volume" "$volume" >>volumes.toml
done
run_daemon --config volumes.toml --rules rules.toml --hints user=nobody
await_ready --config volumes.toml
# known VOLUME DEVICE: how many of the writes to it are known to be those of who makes eight more now.
known() {
    dd if=/dev/zero of="$2" bs=4K count=8 oflag=direct status=none
    fb explain "$1" --json | python3 -c 'import json, sys
print(sum(r["writes"] for r in json.load(sys.stdin)["rows"] if r["task"] == "dd"))'
}
first=$(fb attach first)
second=$(fb attach second)
third=$(fb attach third)
[[ $(known first "$first") == 8 && $(known second "$second") == 8 && $(known third "$third") == 8 ]] ||
    fail "$WHAT: writes of three devices are not all known"
fb detach first
[[ $(known second "$second") == 16 && $(known third "$third") == 16 ]] || fail "$WHAT: writes are not known after another device went"
first=$(fb attach first)
[[ $(known first "$first") == 16 && $(known third "$third") == 24 ]] || fail "$WHAT: writes to a device that came back are not known"
# Hints are believed of the user nobody alone. What is run keeps the hint when it becomes another user's.
WHAT=hints
fb set third admission=cp
before=$(known third "$third")
hinting() { "$FOREBAY" run --critical -- "$@" dd if=/dev/zero of="$third" bs=4K count=8 oflag=direct conv=notrunc status=none; }
chmod 666 "$third"
hinting
hinting setpriv --reuid=65534 --regid=65534 --clear-groups
fb explain third --json | python3 -c 'import json, sys
rows = [r for r in json.load(sys.stdin)["rows"] if r["task"] == "dd"]
count = lambda hint, reason: sum(r["writes"] for r in rows if r["hint"] == hint and r["reason"] == reason)
told = count(True, "direct"), count(False, "not-critical"), count(False, "direct")
# The first write of a task comes before it is known to be nobody'"'"'s.
sys.exit(not (0 < told[0] <= 8 and told[1] >= 16 and told[2] == 0) and f"{told}: {rows}")' || fail "$WHAT: others are believed, or those who are listed are not"
pass "hints are believed of the user who is listed alone"
for volume in first second third; do fb detach $volume; done
# What follows tasks costs the whole machine something, and ends with the last device.
traces() { grep -qs ^link_type: "/proc/$DAEMON/fdinfo/"*; }
traces_nothing() { ! traces; }
await 10 traces_nothing || fail "$WHAT: tasks are still followed, although no device is left"
first=$(fb attach first)
traces || fail "$WHAT: no links of eBPF programs are found where there must be some"
[[ $(known first "$first") == 24 ]] || fail "$WHAT: writes are not known after all devices went and one came back"
fb detach first
stop_daemon
pass "writes to each of three volumes are known, also when one goes and comes back, or all of them"

WHAT=unasked
run_daemon --config volumes.toml
await_ready --config volumes.toml
fb attach first >device
traces || fail "$WHAT: under sync nobody asks who writes"
fb set first admission=all
await 10 traces_nothing || fail "$WHAT: under all, without rules, tasks are still followed"
fb set first admission=sync
traces || fail "$WHAT: under sync again nobody asks who writes"
[[ $(known first "$(cat device)") == 8 ]] || fail "$WHAT: writes are not known after nobody asked for a while"
# Whether somebody asks changes again and again while the device is written to.
head -c 32M /dev/urandom >random
for ((i = 0; i < 6; i++)); do
    dd if=random of="$(cat device)" bs=16K oflag=direct conv=notrunc status=none &
    writer=$!
    for admission in all cp+pi+ioi all adaptive; do
        fb set first admission=$admission
        [[ $admission != all ]] || await 10 traces_nothing || fail "$WHAT: under all tasks are still followed"
    done
    wait $writer || fail "$WHAT: writing failed"
done
cmp -n $((32 << 20)) random "$(cat device)" || fail "$WHAT: what was written is not there"
fb detach first
stop_daemon
pass "tasks are followed only where admission asks for them, and what is written meanwhile is whole"

# Root of a namespace of its own may mount, and has no privilege that eBPF needs.
WHAT=unprivileged
printf '#!/bin/sh\nexec unshare --map-root-user --mount "%s" "$@"\n' "$FOREBAY" >unprivileged
chmod +x unprivileged
FOREBAY=$DIR/unprivileged run_daemon --config volumes.toml --rules rules.toml
await_ready --config volumes.toml
fb attach first >device
fb set first admission=cp+pi+ioi
missing=$(fb status first --json)
[[ $missing == *"cannot load the eBPF programs"*"CAP_BPF and CAP_PERFMON"* ]] || fail "$WHAT: it is not told what is missing: $missing"
dd if=random of="$(cat device)" bs=1M oflag=direct conv=notrunc status=none
cmp -n $((32 << 20)) random "$(cat device)" || fail "$WHAT: what was written is not there"
fb detach first
stop_daemon
pass "a daemon without privileges says what is missing, and serves"
