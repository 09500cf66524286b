#!/bin/sh
# Makes sure that a PostgreSQL server, or PgBouncer, is installed.
#
#   scripts/ensure.sh server            a PostgreSQL server, 14 or later
#   scripts/ensure.sh server pooler     and PgBouncer, which some tests need
#
# What is missing is installed when we are root on Debian or its kin, without a default cluster and with no
# service left running. Otherwise the one command to run is printed and the exit code is 1, except that
# PgBouncer may be missing when OUTHAUL_NO_SKIP is not 1: tests that need it then say that they are skipped.
# On other systems this does nothing: the programs themselves search there, and name the command.
set -eu

OLDEST=14
CLUSTER_CONF_DIR=/etc/postgresql-common/createcluster.d

main() {
    # Whoever names a server gets that one or a message of the program that was to use it.
    server_named=${OUTHAUL_PG_BINDIR:-}
    missing=
    for what in "$@"; do
        case $what in
        server) [ -n "$server_named" ] || has_server || missing="$missing postgresql" ;;
        pooler) has_pooler || missing="$missing pgbouncer" ;;
        *) die "usage: scripts/ensure.sh [server] [pooler]" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || return 0
    if [ "$(id -u)" -ne 0 ]; then
        tell_command "$missing"
    else
        echo "ensure: installing$missing" >&2
        # shellcheck disable=SC2086 # a list of words
        install_packages $missing
    fi
}

tell_command() {
    command="sudo apt-get update && sudo apt-get install -y --no-install-recommends$1"
    if [ "$1" = " pgbouncer" ] && [ "${OUTHAUL_NO_SKIP:-}" != 1 ]; then
        echo "ensure: PgBouncer is not installed, so the tests that need it are skipped; to have it: $command" >&2
    else
        die "not installed here:$1. Run this, then try again:
    $command
or set OUTHAUL_PG_BINDIR to the folder of a PostgreSQL server's programs."
    fi
}

has_server() {
    for bin in $(server_folders); do
        if is_server "$bin"; then return 0; fi
    done
    return 1
}

# The same places as the programs look at, as far as they exist on Debian.
server_folders() {
    pg_config --bindir 2>/dev/null || true
    if on_path=$(command -v pg_ctl); then dirname "$(readlink -f "$on_path")"; fi
    for dir in /usr/lib/postgresql/*/bin; do echo "$dir"; done
}

# pg_config alone proves nothing: it comes with libpq's headers.
is_server() {
    for program in initdb pg_ctl postgres; do
        [ -x "$1/$program" ] || return 1
    done
    major=$("$1/postgres" --version 2>/dev/null | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
    [ -n "$major" ] && [ "$major" -ge "$OLDEST" ]
}

has_pooler() {
    [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    no_default_cluster
    apt_get update
    apt_get install -y --no-install-recommends "$@"
    for package in "$@"; do
        if [ "$package" = pgbouncer ] && [ -d /run/systemd/system ]; then
            systemctl disable --now pgbouncer.service >&2
        fi
    done
}

apt_get() {
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >&2 </dev/null
}

# Only for this installation: whoever installs another server later gets the usual default.
no_default_cluster() {
    mkdir -p "$CLUSTER_CONF_DIR"
    conf=$CLUSTER_CONF_DIR/outhaul.conf
    trap 'rm -f "$conf"' EXIT
    trap 'exit 130' INT TERM
    echo "create_main_cluster = false" >"$conf"
}

die() {
    echo "ensure: $1" >&2
    exit 1
}

main "$@"
