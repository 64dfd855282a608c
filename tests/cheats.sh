#!/usr/bin/env bash
# Products that cheat, and the scripts that must notice: `make cheats`. No part of CI, and not executable, so that `make test` leaves it alone.
#
# Each cheat is the real binary behind a wrapper that leaves out one thing and says that all is well. A script must fail with the
# words that tell of it, and must pass with the wrapper that leaves out nothing. What is printed is a table of cheats and scripts.
# CHEATS and SCRIPTS are those that are tried: all by default. It takes about half an hour, and what the scripts need.
set -euo pipefail
cd "$(dirname "$0")/.."

export FOREBAY_REAL=${FOREBAY:-$PWD/target/debug/forebay}
[[ -x $FOREBAY_REAL ]] || cargo build --locked --quiet -p forebay
DIR=$(mktemp -d "${TMPDIR:-/tmp}/forebay-cheats.XXXXXX")
trap 'rm -rf "$DIR"' EXIT

# Which cheat a script must notice, and in which words.
EXPECTED='
keeps-nothing   kill-nbd           hardly took place: 0 of|looked at no record|has no record
keeps-nothing   redis              hardly took place: 0 of
keeps-nothing   postgresql         hardly took place: 0 of
keeps-nothing   fio-verify         bytes are in the cache|was never full
keeps-nothing   ordered            the cache took
keeps-nothing   journaled          the cache took
keeps-nothing   power-cuts         hardly took place
keeps-nothing   remove-cache       nothing is ever dirty
admits-nothing  kill-nbd           hardly took place|looked at no record|there is no record|the cache took
admits-nothing  redis              hardly took place|known to be waited for
admits-nothing  postgresql         hardly took place|known to be waited for
admits-nothing  fio-verify         bytes are in the cache
admits-nothing  ordered            the cache took
admits-nothing  journaled          the cache took
admits-nothing  remove-cache       nothing is ever dirty
no-tracker      redis              known to be waited for
no-tracker      postgresql         known to be waited for
no-tracker      mariadb            only 0 writes are critical
no-tracker      wiredtiger         nobody who works for a client is critical
recovers-nothing journaled         there, but block|finds something to do|recover went to another group
recovers-nothing consistency-group across both volumes|another recovery
checks-nothing  kill-nbd           a flipped bit of
checks-nothing  refusals           not refused|check|instead of
flushes-nothing kill-nbd           a flush leaves
flushes-nothing sick-devices       a flush leaves|flush ends with 0
simulates-nothing simulation       three seeds from
unacknowledged  redis              told of no write
unacknowledged  postgresql         told of no write
'

cat >"$DIR/wrapper" <<'END'
#!/usr/bin/env bash
# The real binary, but for what $CHEAT leaves out.
set -euo pipefail

# without FLAGS...: $REST is the command line without these flags and their values.
without() {
    local args=("${LINE[@]}") i
    REST=()
    for ((i = 0; i < ${#args[@]}; i++)); do
        if [[ " $* " == *" ${args[i]} "* ]]; then i=$((i + 1)); else REST+=("${args[i]}"); fi
    done
}

# value FLAG: what the command line says of it.
value() {
    local i
    for ((i = 0; i < ${#LINE[@]}; i++)); do
        [[ ${LINE[i]} != "$1" ]] || echo "${LINE[i + 1]}"
    done
}

# without_faults: nor with errors of the backing, which a cache hides. What lets them through is noticed for another reason.
without_faults() {
    local args=("${REST[@]}") i
    REST=()
    for ((i = 0; i < ${#args[@]}; i++)); do
        if [[ ${args[i + 1]:-} == backing:inject:* ]]; then i=$((i + 1)); else REST+=("${args[i]}"); fi
    done
}

LINE=("$@")
case $CHEAT:${1:-} in
    keeps-nothing:serve)
        without --cache --write-policy --order --on-full --durability --admission --ranges --rules --group-size --group-age --group-ends \
            --max-staleness --journal
        without_faults
        exec "$FOREBAY_REAL" "${REST[@]}" --no-cache --accept-stale
        ;;
    admits-nothing:serve)
        # The last sector, which hardly anybody writes to.
        size=$(stat -L -c %s "$(value --backing)")
        without --admission --ranges
        without_faults
        exec "$FOREBAY_REAL" "${REST[@]}" --admission range --ranges "$((size - 512))-$size"
        ;;
    no-tracker:serve)
        without --admission --rules
        exec "$FOREBAY_REAL" "${REST[@]}"
        ;;
    recovers-nothing:recover)
        # What recovery would say of these files it says of copies.
        [[ " $* " != *" --list "* ]] || exec "$FOREBAY_REAL" "$@"
        copies=$(mktemp -d)
        trap 'rm -rf "$copies"' EXIT
        for ((i = 1; i < ${#LINE[@]}; i++)); do
            [[ -f ${LINE[i]} ]] || continue
            for part in "" .forebay .journal; do
                [[ ! -e ${LINE[i]}$part ]] || cp --sparse=always "${LINE[i]}$part" "$copies/"
            done
            LINE[i]=$copies/$(basename "${LINE[i]}")
        done
        code=0
        "$FOREBAY_REAL" "${LINE[@]}" || code=$?
        exit "$code"
        ;;
    checks-nothing:check)
        case " $* " in
            *" --json "*) echo '{"verdict": "ok", "log": {"records": 4711}, "findings": []}' ;;
            *) echo "verdict    ok: no damage was found" ;;
        esac
        exit
        ;;
    flushes-nothing:flush)
        echo "all is on the backing"
        exit
        ;;
    simulates-nothing:sim)
        # What a real run says, whatever is asked for; but for what is no plan at all.
        [[ " $* " != *" bad.plan "* ]] || exec "$FOREBAY_REAL" "$@"
        exec "$FOREBAY_REAL" sim --seed 7 --seeds 40
        ;;
esac
exec "$FOREBAY_REAL" "$@"
END

# A client that is told of nothing, in place of the one that notes what was acknowledged.
mkdir "$DIR/path"
cat >"$DIR/path/python3" <<END
#!/usr/bin/env bash
if [[ \${2:-} == write && \${1:-} == */tests/clients/*_*s.py ]]; then
    : >>"\$4"
    echo writing
    exec sleep 40
fi
exec $(command -v python3) "\$@"
END
chmod +x "$DIR/wrapper" "$DIR/path/python3"

# run CHEAT SCRIPT: its words are in $DIR/said; the code is its own.
run() {
    mkdir -p "$DIR/$1"
    cp "$DIR/wrapper" "$DIR/$1/forebay"
    local path=$PATH
    [[ $1 != unacknowledged ]] || path=$DIR/path:$PATH
    env CHEAT="$1" FOREBAY="$DIR/$1/forebay" PATH="$path" CI=true FOREBAY_PATIENCE=30 FOREBAY_ROUNDS=6 FOREBAY_CYCLES=3 N="$(requests "$2")" \
        FOREBAY_SIM_MINUTES=0.02 FOREBAY_INSTANTS=3 timeout -k 30 600 "tests/$2.sh" >"$DIR/said" 2>&1 </dev/null
}

# Recorded requests of the scripts that take $N; crashes of power-cuts.
requests() { [[ $1 == power-cuts ]] && echo 24 || echo 3000; }

wanted() { [[ -z $2 || " $2 " == *" $1 "* ]]; }

declare -A TABLE
failed=0

# told CHEAT SCRIPT WHAT: a cell of the table.
told() {
    TABLE[$1,$2]=$3
    echo "$2 against $1: $3: $(grep -m 1 '^FAIL' "$DIR/said" | cut -c 1-150)"
}

mapfile -t SCRIPTS_ALL < <(awk 'NF { print $2 }' <<<"$EXPECTED" | sort -u)
mapfile -t CHEATS_ALL < <(awk 'NF { print $1 }' <<<"$EXPECTED" | sort -u)
for script in "${SCRIPTS_ALL[@]}"; do
    wanted "$script" "${SCRIPTS:-}" && wanted honest "${CHEATS:-}" || continue
    if run honest "$script"; then
        told honest "$script" passes
    else
        told honest "$script" "FAILS"
        failed=1
    fi
done
while read -r cheat script words; do
    [[ -n $cheat ]] && wanted "$script" "${SCRIPTS:-}" && wanted "$cheat" "${CHEATS:-}" || continue
    if run "$cheat" "$script"; then
        told "$cheat" "$script" "PASSES"
        failed=1
    elif grep '^FAIL' "$DIR/said" | grep -qE -- "$words"; then
        told "$cheat" "$script" noticed
    else
        told "$cheat" "$script" "FAILS BY CHANCE"
        tail -n 5 "$DIR/said"
        failed=1
    fi
done <<<"$EXPECTED"

echo
{
    echo "| script | honest $(printf '| %s ' "${CHEATS_ALL[@]}")|"
    for script in "${SCRIPTS_ALL[@]}"; do
        printf '| %s ' "$script"
        for cheat in honest "${CHEATS_ALL[@]}"; do printf '| %s ' "${TABLE[$cheat,$script]:-}"; done
        echo "|"
    done
} | column -t -s '|' -o '|'
exit "$failed"
