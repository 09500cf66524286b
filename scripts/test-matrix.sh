#!/usr/bin/env bash
# Runs the tests of the library on one PostgreSQL server of each supported major version.
#
#   scripts/test-matrix.sh [FILTER...]     all of them
#   MAJORS="14 18" scripts/test-matrix.sh  some
#
# A server that the distribution has put into /usr/lib/postgresql is used first. The others are packages of
# npm with pinned versions and checksums (scripts/postgres). Ends with a table, and fails when any run failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MAJORS=${MAJORS:-14 15 16 17 18}
LOGS=target/test-matrix

main() {
    mkdir -p "$LOGS"
    cache=$(cache_folder)
    if needs_packages; then fetch_packages; fi
    local table failed=0 major
    table=$(printf '%-7s %-9s %-8s %-7s %7s %7s %8s %8s' server version from result passed failed skipped seconds)
    for major in $MAJORS; do
        echo "matrix: PostgreSQL $major ..." >&2
        run_tests "$major" "$@"
        table+=$'\n'$row
    done
    echo
    echo "$table"
    return "$failed"
}

run_tests() {
    local major=$1 log=$LOGS/pg$1.log began=$SECONDS result=ok bin counts
    shift
    bin=$(server_bin "$major")
    if ! OUTHAUL_PG_BINDIR=$bin scripts/test.sh --package outhaul "$@" >"$log" 2>&1; then
        result=FAILED failed=1
        grep -aE '^ *(FAIL|TIMEOUT|SIG[A-Z]+) |^error|panicked at|\.\.\. FAILED$' "$log" | head -n 40 >&2 || true
        echo "matrix: the whole output is in $log" >&2
    fi
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log" | tail -n 1)
    # shellcheck disable=SC2086 # three words
    add_row "$major" $result ${counts:-- - -} $((SECONDS - began))
}

add_row() {
    local bin version from=npm
    bin=$(server_bin "$1")
    version=$("$bin/postgres" --version | sed 's/^postgres (PostgreSQL) \([^ ]*\).*/\1/')
    if [ "$bin" = "$(installed_bin "$1")" ]; then from=system; fi
    row=$(printf '%-7s %-9s %-8s %-7s %7s %7s %8s %8s' "$1" "$version" "$from" "$2" "$3" "$4" "$5" "$6")
}

server_bin() {
    local installed
    installed=$(installed_bin "$1")
    if [ -x "$installed/postgres" ] && [ -x "$installed/initdb" ]; then echo "$installed"; else package_bin "$1"; fi
}

installed_bin() {
    echo "/usr/lib/postgresql/$1/bin"
}

package_bin() {
    echo "$cache/node_modules/pg$1/native/bin"
}

# Inside the checkout, unless that lies where the account of the servers cannot go when we are root.
cache_folder() {
    if [ "$(id -u)" -eq 0 ] && ! open_to_all "$PWD"; then
        echo /var/cache/outhaul/postgres
    else
        echo "$PWD/.cache/postgres"
    fi
}

open_to_all() {
    local folder=$1
    while [ "$folder" != / ]; do
        case $(stat -c %A "$folder") in
        *[xt]) folder=$(dirname "$folder") ;;
        *) return 1 ;;
        esac
    done
}

needs_packages() {
    local major
    for major in $MAJORS; do
        if [ "$(server_bin "$major")" = "$(package_bin "$major")" ]; then return 0; fi
    done
    return 1
}

fetch_packages() {
    if cmp -s scripts/postgres/package-lock.json "$cache/complete"; then return; fi
    require_npm
    echo "matrix: fetching PostgreSQL servers into $cache" >&2
    mkdir -p "$cache"
    cp scripts/postgres/package.json scripts/postgres/package-lock.json scripts/postgres/.npmrc "$cache/"
    (cd "$cache" && npm ci --no-audit --no-fund >&2)
    local package
    for package in "$cache"/node_modules/pg*; do
        # npm packages cannot carry symbolic links, so these bring a list of them.
        (cd "$package" && node scripts/hydrate-symlinks.js)
    done
    chmod -R a+rX "$cache"
    if [ "$cache" = /var/cache/outhaul/postgres ]; then chmod a+x /var/cache/outhaul; fi
    cp scripts/postgres/package-lock.json "$cache/complete"
}

require_npm() {
    if [ "$(uname -sm)" != "Linux x86_64" ]; then
        die "the packages are for Linux on x86_64 only; install the servers in /usr/lib/postgresql, or choose with MAJORS"
    fi
    if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
        die "npm is not installed, and the servers that the distribution lacks come from it. Install it (on Debian:
    apt-get install -y --no-install-recommends npm), or choose installed majors with MAJORS=\"15\""
    fi
}

die() {
    echo "matrix: $1" >&2
    exit 1
}

main "$@"
