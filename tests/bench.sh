#!/usr/bin/env bash
# Each benchmark once, at toy size: it ends well and names its figures. The figures themselves are not judged here, but those of the
# engine, roughly: they are of processor time, side by side, and far apart where something is wrong.
source "$(dirname "$0")/harness.sh"

need jq

"$FOREBAY" bench volume --quick --out "$DIR/report" >figures || fail "bench volume: $(tail -n 3 figures)"
for figure in engine_4k_depth1_of_raw nbd_4k_depth1_of_raw engine_4k_depth4_bytes_ratio engine_1m_depth4_bytes_ratio; do
    jq -e ".figures.$figure > 0" report/volume.json >/dev/null || fail "no figure $figure in volume.json"
done
grep -q '<div class="bar">' report/volume.html || fail "the page has no bars"
# What was measured stands beside the ratios, and where, when and how long it was measured.
jq -e '.measured | .raw_4k_depth1_writes_per_second > 0 and .engine_4k_depth1_writes_per_second > 0 and .engine_4k_depth1_bytes_to_cache > 0' \
    report/volume.json >/dev/null || fail "volume.json has no measured values"
for said in "version" "date" "host" "directory" "measured in"; do
    grep -q "^$said: " figures && grep -q "<th>$said</th>" report/volume.html || fail "the report of bench volume does not say: $said"
done
[[ $(grep -c "^Noise: with --quick" figures) == 1 && $(grep -c "Noise: with --quick" report/volume.html) == 1 ]] ||
    fail "it is not said once that a quick run is noise: $(cat figures)"
[[ ! -e report/scratch ]] || fail "the scratch directory is left behind"

"$FOREBAY" bench engine --quick --out "$DIR/report" >figures 2>errors || fail "bench engine: $(tail -n 3 errors)"
for policy in write_through write_back ordered journaled; do
    jq -e ".measured.${policy}_512_clean_segments_cpu_ns > 0 and .measured.${policy}_16384_clean_segments_cpu_ns > 0" \
        report/engine.json >/dev/null || fail "no processor time of $policy in engine.json"
    # 1.3 is the goal; a look at each clean segment makes it 15 and more.
    jq -e ".figures.${policy}_16384_clean_segments_of_512 | . > 0 and . <= 3" report/engine.json >/dev/null ||
        fail "a write costs more the more segments are clean, under $policy: $(cat figures)"
done
for figure in write_back_16_tib_volume_of_1_gib write_back_50_percent_dirty_of_0 write_back_128_outstanding_of_1; do
    jq -e ".figures.$figure > 0" report/engine.json >/dev/null || fail "no figure $figure in engine.json"
done
refused 1 "give --rounds instead of --seconds" "$FOREBAY" bench engine --quick --seconds 1 --out "$DIR/report"
pass "bench engine: what a write costs does not grow with the cache"

# One store, and what the write path costs; the other stores have the same code and more time.
"$FOREBAY" bench cliffs --quick --loads ssd_nvme,write_path,durable --out "$DIR/report" >figures 2>errors || fail "bench cliffs: $(tail -n 3 errors)"
for figure in depth_8_throughput_of_uncached depth_8_p99_9_of_uncached reads_during_flush writes_during_flush; do
    jq -e ".figures.ssd_nvme_$figure > 0" report/cliffs.json >/dev/null || fail "no figure ssd_nvme_$figure in cliffs.json"
done
jq -e '.figures | .ssd_nvme_worst_10ms_of_median >= 0 and .nbd_depth_16_cpu_us > 0 and .durable_depth_16_of_raw > 0 and .durable_depth_1_of_limit > 0' \
    report/cliffs.json >/dev/null || fail "figures are missing in cliffs.json: $(cat figures)"
# Both had their turns, and the cache had something to destage.
jq -e '.measured | .ssd_nvme_depth_8_cached_operations > 0 and .ssd_nvme_depth_8_uncached_operations > 0 and .ssd_nvme_depth_8_dirty_share > 0' \
    report/cliffs.json >/dev/null || fail "bench cliffs does not measure both: $(cat figures)"
if command -v nbdkit >/dev/null; then
    jq -e '.figures.nbdkit_depth_16_cpu_us > 0' report/cliffs.json >/dev/null || fail "no figure of nbdkit in cliffs.json"
else
    grep -q "nbdkit is not installed" figures || fail "it is not said that nbdkit is left out"
fi
[[ $(grep -c '<polyline' report/cliffs.html) -ge 1 ]] || fail "the page of cliffs has no lines"
pass "bench cliffs reports its figures"

"$FOREBAY" bench policies --quick --out "$DIR/report" >figures || fail "bench policies: $(tail -n 3 figures)"
for figure in postmark_write_back_of_write_through fileserver_ordered_of_write_through tpcc_ordered_barrier_of_write_through \
    tpcc_ordered_sync_of_write_through ycsb_a_journaled_sync_of_write_through ycsb_a_write_back_backing_bytes_ratio \
    fileserver_cache_120_percent_write_back_of_write_through; do
    jq -e ".figures.$figure > 0" report/policies.json >/dev/null || fail "no figure $figure in policies.json"
done
grep -q '<polyline' report/policies.html || fail "the page has no lines"
"$FOREBAY" bench policies --quick --loads ycsb_a --contenders write_back --backing-model hdd-7k2 --out "$DIR/chosen" >figures 2>errors ||
    fail "bench policies with choices: $(tail -n 3 errors)"
grep -q "in front of hdd-7k2" figures && jq -e '.figures | .ycsb_a_write_back_of_write_through > 0 and (has("ycsb_a_ordered_of_write_through") | not)' \
    chosen/policies.json >/dev/null || fail "bench policies does not measure what was chosen: $(cat figures)"
# A load that it would leave out is refused, whatever else is asked for.
for asked in "policies --loads ycsb_a,ycsb_a_ssd" "policies --quick --loads tpcc_postgresql" "volume --loads ycsb_a"; do
    # shellcheck disable=SC2086
    "$FOREBAY" bench $asked --out "$DIR/left-out" >figures 2>errors && fail "bench $asked is not refused"
    grep -q "^error: '.*' is no load of this benchmark" errors || fail "bench $asked: $(cat errors)"
done
if ((EUID == 0)) && [[ -e /dev/fuse && -e /dev/loop-control && -e /sys/kernel/btf/vmlinux ]] && ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1; then
    "$FOREBAY" bench admission-postgresql --quick --out "$DIR/report" >figures 2>errors || fail "bench admission-postgresql: $(tail -n 3 errors)"
    for figure in all_tpmc cp_pi_ioi_tpmc cp_pi_ioi_of_all no_cache_tpmc cp_pi_ioi_per_cached_block_of_all; do
        jq -e ".figures.tpcc_cache_16_mib_$figure > 0" report/admission-postgresql.json >/dev/null || fail "no figure $figure"
    done
    grep -q "ATC'15, Table 3" report/admission-postgresql.html || fail "the page of admission-postgresql lacks a table"
    # What says nothing is left out: percentiles of a few, cached bytes where nothing is cached, the paper beside a moment.
    jq -e '[.figures, .measured | keys[] | select(test("p99_99_ms|no_cache.*(cached|cache_bytes|stalls)"))] == []' report/admission-postgresql.json >/dev/null ||
        fail "figures that say nothing: $(cat figures)"
    ! grep "ATC'15: \|Here and in the paper\|1 warehouses\|1 rounds" figures report/admission-postgresql.html || fail "a quick run stands beside the paper"
    grep -q "measured in: 1 round of 2 s" figures || fail "it does not say how it measured: $(cat figures)"
    pass "bench admission-postgresql reports its figures"
    # A directory that the server's user cannot enter is refused before anything is made in it.
    mkdir -m 700 closed
    refused 1 "user postgres cannot enter $DIR/closed; give another --out" "$FOREBAY" bench admission-postgresql --quick --out "$DIR/closed/report"
    # Told to stop in the midst of a long measurement it reports what it has, and takes down what it has put up.
    rm errors
    setsid "$FOREBAY" bench admission-postgresql --quick --seconds 8 --policies all,cp+pi+ioi --out "$DIR/stopped" >figures 2>errors &
    bench=$!
    OWN=("$bench")
    # Killed it would leave its servers behind.
    fail_told() {
        kill -TERM -- "-$bench" 2>/dev/null || true
        await 60 ended "$bench" || true
        fail "$@"
    }
    await 120 grep -q "^round 1: cache 16 MiB, all:" errors || fail_told "bench admission-postgresql: $(tail -n 3 errors)"
    await 60 pgrep -f "^/.*pgbench.* $DIR/stopped/scratch" >/dev/null || fail_told "it does not go on with the next: $(cat errors)"
    # As a terminal does, which tells all of its processes; some say it twice.
    kill -TERM -- "-$bench"
    kill -HUP -- "-$bench" 2>/dev/null || true
    code=0
    wait "$bench" || code=$?
    OWN=()
    [[ $code == 1 ]] && grep -q "^error: told to stop: the report in .*/stopped is of what" errors || fail "told to stop it ends with $code: $(cat errors)"
    jq -e '.figures | .tpcc_cache_16_mib_all_tpmc > 0 and (has("tpcc_cache_16_mib_cp_pi_ioi_tpmc") | not)' stopped/admission-postgresql.json >/dev/null ||
        fail "told to stop it reports $(cat figures)"
    ! grep " $DIR/stopped" /proc/mounts || fail "told to stop it leaves something mounted"
    # The kernel takes its time to let them go.
    no_loops() { ! grep -q "$DIR/stopped" /sys/block/loop*/loop/backing_file; }
    await 20 no_loops || fail "told to stop it leaves loop devices: $(losetup)"
    left=$(pgrep -fa "$DIR/stopped") && fail "told to stop it leaves $left"
    [[ ! -e stopped/scratch && -z $(compgen -G "/dev/shm/forebay-bench.$bench.*") ]] || fail "told to stop it leaves files behind"
    pass "bench ends when it is told to, and leaves nothing behind"
    if command -v redis-server >/dev/null; then
        "$FOREBAY" bench admission-redis --quick --out "$DIR/report" >figures 2>errors || fail "bench admission-redis: $(tail -n 3 errors)"
        for figure in all_requests_per_second cp_pi_ioi_of_all no_cache_requests_per_second; do
            jq -e ".figures.ycsb_a_cache_16_mib_$figure > 0" report/admission-redis.json >/dev/null || fail "no figure $figure"
        done
        for shown in "ATC'15, Figure 9)" "ATC'15, Table 4)"; do
            grep -q "$shown" report/admission-redis.html || fail "the page of admission-redis does not have $shown"
        done
        pass "bench admission-redis reports its figures"
        "$FOREBAY" bench admission-redis --quick --seconds 1 --policies all,sync --caches 8M,24M --cache-model ssd-sata --with on-full=bypass --setting maxclients=50 --out "$DIR/chosen" \
            >figures 2>errors || fail "bench admission-redis with choices: $(tail -n 3 errors)"
        jq -e '.figures | .ycsb_a_cache_8_mib_sync_of_all > 0 and .ycsb_a_cache_24_mib_all_requests_per_second > 0 and
            (has("ycsb_a_cache_24_mib_no_cache_requests_per_second") | not)' chosen/admission-redis.json >/dev/null ||
            fail "bench admission-redis does not measure what was chosen: $(cat figures)"
        pass "bench admission-redis measures what was chosen"
        # The first scheduler of the page is the one that is compared with all others; what is missing is told, not left out in silence.
        FOREBAY_WIREDTIGER=$DIR/closed/none PYTHON=none "$FOREBAY" bench priority --quick --seconds 1 --loads redis,wiredtiger --schedulers rcp,fifo \
            --out "$DIR/priority" >figures 2>errors && fail "bench priority does not tell of WiredTiger, which cannot be installed"
        jq -e '(.figures | .redis_rcp_p99_999_ms > 0 and .redis_fifo_p99_999_ms > 0 and .redis_rcp_throughput_of_best_other > 0) and
            (.measured | .redis_rcp_per_second > 0 and .redis_rcp_requests > 0 and has("redis_rcp_snapshots")) and
            (.left_out | length == 1 and (.[0] | startswith("wiredtiger (")))' priority/priority.json >/dev/null || fail "bench priority: $(cat figures errors)"
        grep -q "^error: the report in .*; not measured: wiredtiger (" errors && grep -q "not measured: wiredtiger (" priority/priority.html ||
            fail "bench priority does not say what it has not measured: $(cat errors)"
        pass "bench priority reports its figures, and what it could not measure"
    else
        note "bench admission-redis and bench priority are left out: Redis is not installed"
    fi
else
    note "bench admission-postgresql is left out: it needs root, BTF, FUSE, loop devices and PostgreSQL"
fi
all_installed() {
    local program
    for program; do command -v "$program" >/dev/null || return 1; done
}
if ((EUID == 0)) && all_installed ceph-mon ceph-osd radosgw ceph curl nbdkit s3backer qemu-storage-daemon &&
    [[ -e /dev/fuse && -e /dev/loop-control ]] && ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1; then
    "$FOREBAY" bench distributed --quick --loads rbd,s3,s3_postgresql --out "$DIR/report" >figures 2>errors || fail "bench distributed: $(tail -n 3 errors)"
    for figure in rbd_4k_depth1_of_rbd rbd_4k_depth64_of_rbd rbd_4k_depth16_write_back_full_of_rbd_cache s3_4k_depth64_of_s3backer \
        s3_postgresql_of_s3backer s3_postgresql_journaled_of_write_back s3_bytes_ratio s3_requests_a_gib; do
        jq -e ".figures.$figure > 0" report/distributed.json >/dev/null || fail "no figure $figure: $(cat figures errors)"
    done
    jq -e '.left_out == [] and .measured.rbd_4k_write_back_full_dirty_share > 0.2' report/distributed.json >/dev/null ||
        fail "bench distributed leaves something out, or its full cache is not: $(cat figures)"
    ! pgrep -f "$DIR/report/scratch" >left || fail "bench distributed leaves $(cat left)"
    pass "bench distributed reports its figures"
else
    note "bench distributed is left out: it needs root, FUSE, loop devices, Ceph, QEMU's storage daemon, s3backer, nbdkit and PostgreSQL"
fi
"$FOREBAY" tune journal --quick --load ycsb_a --knob cache-size --values 4M,8M,16M --revenue linear:1 --penalty linear:0 --out "$DIR/tuned" \
    --log warn >figures || fail "tune journal: $(tail -n 3 figures)"
jq -e '.figures.best_w_bytes > 0 and .figures.best_penalty == 0 and .figures.best_profit == .figures.best_revenue' \
    tuned/tune-journal.json >/dev/null || fail "tune journal: $(cat figures)"
grep -q 'w\*' tuned/tune-journal.3.svg || fail "the plot does not show the best position"
# What is worth nothing, but costs, is best kept smallest.
"$FOREBAY" tune journal --quick --load ycsb_a --values 256K,4M --revenue linear:0 --penalty linear:1 --out "$DIR/tuned" >figures 2>&1
jq -e '.figures.best_w_bytes == 262144' tuned/tune-journal.json >/dev/null || fail "tune journal: $(cat figures)"

# A trace is replayed in virtual time: twice the same, and told what is wrong with it.
{
    echo "fio version 2 iolog"
    for n in {1..1000}; do echo "file write $((n * 7919 % 1000 * 4096)) 4096"; ((n % 16)) || echo "file sync"; done
} >trace
for run in 1 2; do
    "$FOREBAY" tune journal --trace trace --depth 4 --revenue linear:1 --penalty linear:0 --out "$DIR/replayed$run" --log warn >figures ||
        fail "tune journal --trace: $(cat figures)"
done
cmp replayed1/tune-journal.json replayed2/tune-journal.json || fail "a replay differs from the one before"
jq -e '.figures | .best_operations_per_second > 0 and .best_staleness_bytes > 0' replayed1/tune-journal.json >/dev/null ||
    fail "tune journal --trace: $(cat figures)"
echo "file leap 0 4096" >>trace
refused 2 "line 1064: 'leap' is not an action" "$FOREBAY" tune journal --trace trace --revenue linear:1 --penalty linear:0
pass "tune journal replays traces"
code=0
"$FOREBAY" tune journal --revenue cubic:1 --penalty linear:1 >refused 2>&1 || code=$?
[[ $code == 2 ]] && grep -q "the forms are" refused || fail "a function of no known form ends with $code: $(cat refused)"

# A running volume, under its own load, is left with the best group size; one without groups is refused.
make_pair 16M 64M
serve --write-policy journaled
"$FOREBAY_STAMP" write --target "nbd:unix:$NBD" --state state --operations 1000000 --threads 4 --seed 1 >stamp.out 2>&1 &
OWN=($!)
"$FOREBAY" tune journal db "${CONTROL[@]}" --values 64K,4M --seconds 1.5 --revenue linear:0 --penalty linear:1 --out "$DIR/tuned" \
    >figures 2>&1 || fail "tune journal db: $(cat figures)"
jq -e '.figures | .best_w_bytes == 65536 and .best_operations_per_second > 0' tuned/tune-journal.json >/dev/null ||
    fail "tune journal db: $(cat figures)"
kill_process "${OWN[0]}"
OWN=()
fb set db write-policy=write-back
refused 2 "no groups" "$FOREBAY" tune journal db "${CONTROL[@]}" --values 64K --revenue linear:1 --penalty linear:1
stop_daemon
pass "tune journal finds the best position, of a built-in load and of a running volume"

pass "bench volume and bench policies report their figures ($SECONDS s)"
