#!/usr/bin/env bash
# Runs the tests on a PostgreSQL server of their own, with cargo-nextest when it is installed.
#
#   scripts/test.sh [--package NAME] [FILTER...]
#
# Everything without --package, documentation tests included. What follows goes to the runner. The last line
# counts the tests. A test that lacks its means says so and counts as skipped; with OUTHAUL_NO_SKIP=1 that
# fails the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

main() {
    package=
    if [ "${1:-}" = --package ]; then package=$2 && shift 2; fi
    prepare
    local failed=0
    if [ -z "$package" ] && [ $# -eq 0 ]; then doc_tests || failed=$?; fi
    if cargo nextest --version >/dev/null 2>&1; then
        nextest "$@" || failed=$?
    else
        libtest "$@" || failed=$?
    fi
    report || failed=1
    return "$failed"
}

# One build for all that follows: other sets of packages or features would build the dependencies again.
prepare() {
    local temp=${TMPDIR:-/tmp}
    # The TMPDIR of root may lie in a folder that is closed to the account of the server.
    if [ "$(id -u)" -eq 0 ]; then temp=/tmp; fi
    run=$(mktemp -d "$temp/outhaul-test.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    chmod 711 "$run"
    # Set by whoever wants to look at the databases afterwards.
    keep=${OUTHAUL_TEST_RUN:-}
    export OUTHAUL_TEST_RUN=${keep:-$run/server}
    cargo build --locked --workspace --all-features --all-targets
    target=$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    server=$target/debug/outhaul-test-server
    # Whatever is wrong with the installed server is said once, here, and not by every test.
    "$server" start >/dev/null
}

clean_up() {
    if [ -z "$keep" ] && [ -x "${server:-}" ]; then "$server" stop >/dev/null || true; fi
    rm -rf "$run"
}

nextest() {
    local profile=default
    if [ -n "${CI:-}" ]; then profile=ci; fi
    junit=$target/nextest/$profile/junit.xml
    rm -f "$junit"
    cargo nextest run --locked --workspace --all-features --profile "$profile" \
        ${package:+-E "package($package)"} "$@"
}

libtest() {
    local scope=--workspace
    if [ -n "$package" ]; then scope="--package=$package"; fi
    # Else a test that passes keeps to itself that it was skipped.
    if [[ " $* " != *" -- "* ]]; then set -- "$@" -- --show-output; fi
    cargo test --locked "$scope" --all-features --all-targets --no-fail-fast "$@" 2>&1 | tee -a "$run/libtest.log"
}

doc_tests() {
    cargo test --locked --workspace --all-features --doc 2>&1 | tee -a "$run/libtest.log"
}

# Prints the tests that were skipped and, last, the counts.
report() {
    { nextest_results; libtest_results; } >"$run/results"
    sed -n 's/^skip /skipped: /p' "$run/results"
    local passed failed skipped
    skipped=$(grep -c '^skip ' "$run/results" || true)
    passed=$(($(total pass) - skipped))
    failed=$(total fail)
    echo "$passed passed, $failed failed, $skipped skipped"
    if [ "${OUTHAUL_NO_SKIP:-}" = 1 ] && [ "$skipped" -gt 0 ]; then
        echo "test: OUTHAUL_NO_SKIP=1 allows no skipped test" >&2
        return 1
    fi
}

total() {
    awk -v what="$1" '$1 == what { sum += $2 } END { print sum + 0 }' "$run/results"
}

nextest_results() {
    if [ ! -f "${junit:-}" ]; then return; fi
    awk '
        /<testcase / { match($0, / name="[^"]*"/); name = substr($0, RSTART + 7, RLENGTH - 8); tests++; bad = 0 }
        /<(failure|error)[ >]/ { if (!bad) failures++; bad = 1 }
        {
            sub(/^.*<system-(out|err)>/, ""); sub(/<\/system-(out|err)>.*$/, "")
            if (/^skipped: /) {
                gsub(/&quot;/, "\""); gsub(/&apos;/, "\047"); gsub(/&lt;/, "<"); gsub(/&gt;/, ">"); gsub(/&amp;/, "\\&")
                print "skip " name ": " substr($0, 10)
            }
        }
        END { print "pass " tests - failures; print "fail " failures + 0 }
    ' "$junit"
}

libtest_results() {
    if [ ! -f "$run/libtest.log" ]; then return; fi
    awk '
        /^---- .* std(out|err) ----$/ { name = $2 }
        /^skipped: / { print "skip " (name ? name ": " : "") substr($0, 10) }
        /^test result: / { match($0, /[0-9]+ passed; [0-9]+ failed/); split(substr($0, RSTART, RLENGTH), n, " "); print "pass " n[1]; print "fail " n[3] }
    ' "$run/libtest.log"
}

main "$@"
