#!/usr/bin/env bash
# The upgrade rehearsal: the release before and this one work one queue while the schema is migrated under them.
#
# Builds the commit named in scripts/upgrade-from beside this tree, starts its worker and a producer on its schema, migrates
# with this version while they work, adds a worker and a producer of this version, stops the old worker, and compares what was
# enqueued with what has run: every job once. No process is killed, so even "at least once" leaves no second run.
# Minutes long because of the build; not part of the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FROM=$(cat scripts/upgrade-from)
JOBS=${JOBS:-150}
PLACE=$PWD/target/upgrade
OLD=$PLACE/old/debug/outhaul
NEW=${CARGO_TARGET_DIR:-$PWD/target}/debug/outhaul

main() {
    mkdir -p "$PLACE"
    if [ ! -d "$PLACE/tree/.git" ] && [ ! -f "$PLACE/tree/.git" ]; then
        git clone --quiet --no-checkout . "$PLACE/tree"
    fi
    git -C "$PLACE/tree" fetch --quiet "$PWD" "$FROM"
    git -C "$PLACE/tree" checkout --quiet --force "$FROM"
    (cd "$PLACE/tree" && CARGO_TARGET_DIR=$PLACE/old cargo build --quiet --locked -p outhaul-cli)
    cargo build --quiet --locked -p outhaul-cli

    RUN=$(mktemp -d)
    # The account that the server runs as must get through.
    chmod 755 "$RUN"
    trap cleanup EXIT
    unset OUTHAUL_CONFIG
    "$NEW" dev up --dir "$RUN/server" >/dev/null
    DATABASE_URL=$("$NEW" dev --dir "$RUN/server" url)
    export DATABASE_URL
    cd "$RUN"
    # The payload is a number; a run of the job writes it down, after a while.
    cat >outhaul.toml <<'TOML'
[jobs."upgrade.rehearsal"]
command = ["sh", "-c", "n=$(cat); sleep 0.05; echo $n >> ran.txt"]
queue = "rehearsal"

[projections.rehearsal]
start = "beginning"

[[projections.rehearsal.rules]]
event = "upgrade.asked"
job = "upgrade.rehearsal"
TOML
    touch ran.txt asked.txt
    "$OLD" migrate -q
    echo "schema of $FROM: $("$OLD" migrate status --json | tr -d '\n')"
    "$OLD" work --queue rehearsal=4 >old.log 2>&1 &
    OLD_WORKER=$!
    produce "$OLD" 1 "$JOBS" &
    OLD_PRODUCER=$!
    until [ "$(wc -l <ran.txt)" -ge $((JOBS / 10)) ]; do sleep 0.1; done

    "$NEW" migrate
    "$NEW" work --queue rehearsal=4 >new.log 2>&1 &
    NEW_WORKER=$!
    produce "$NEW" $((JOBS + 1)) $((2 * JOBS)) &
    NEW_PRODUCER=$!
    wait "$OLD_PRODUCER" "$NEW_PRODUCER"
    kill -TERM "$OLD_WORKER"
    wait "$OLD_WORKER"
    produce "$OLD" $((2 * JOBS + 1)) $((2 * JOBS + 20))
    for _ in $(seq 600); do
        [ "$(sort -u ran.txt | wc -l)" -eq $((2 * JOBS + 20)) ] && break
        sleep 0.1
    done
    kill -TERM "$NEW_WORKER"
    wait "$NEW_WORKER"
    verdict
}

# Asks for the numbers from $2 to $3 with the program $1: every third through an event and a projection.
produce() {
    for n in $(seq "$2" "$3"); do
        if [ $((n % 3)) -eq 0 ]; then
            "$1" -q publish upgrade.asked rehearsal "$(cat /proc/sys/kernel/random/uuid)" "$n" >/dev/null
        else
            "$1" -q enqueue upgrade.rehearsal "$n" --queue rehearsal >/dev/null
        fi
        echo "$n" >>asked.txt
    done
}

verdict() {
    local lost twice by_old by_new
    lost=$(comm -23 <(sort asked.txt) <(sort -u ran.txt) | wc -l)
    twice=$(sort ran.txt | uniq -d | wc -l)
    echo "asked $(wc -l <asked.txt)  ran $(wc -l <ran.txt)  lost $lost  twice $twice"
    if [ "$lost" -ne 0 ] || [ "$twice" -ne 0 ]; then
        tail -n 20 old.log new.log
        exit 1
    fi
    if grep -E "ERROR|panicked" old.log new.log; then
        echo "a worker has met an error"
        exit 1
    fi
}

cleanup() {
    local jobs
    jobs=$(jobs -p)
    # shellcheck disable=SC2086
    [ -z "$jobs" ] || kill $jobs 2>/dev/null || true
    "$NEW" dev --dir "$RUN/server" down >/dev/null 2>&1 || true
    rm -rf "$RUN"
}

main "$@"
