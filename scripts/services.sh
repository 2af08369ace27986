#!/usr/bin/env bash
# Install programs that some tests need: nats-server (for comparison in benchmarks) and chromium (to
# render pages). If one cannot be installed, a message names it, and the tests that need it are
# skipped; except in CI (SURECAST_CI=1), where they must run.
set -uo pipefail
. "$(dirname "$0")/packages.sh"

missing=()
for program in nats-server chromium; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} = 0 ] && exit 0
# Prevent the packages from starting services on this machine.
refuse=/usr/sbin/policy-rc.d
if [ "$(id -u)" = 0 ] && [ ! -e $refuse ]; then
    printf '#!/bin/sh\nexit 101\n' > $refuse && chmod +x $refuse
    trap 'rm -f $refuse' EXIT
fi
apt_install "${missing[@]}" && exit 0
echo "services: without ${missing[*]} some tests will be skipped" >&2
[ "${SURECAST_CI:-}" = 1 ] && exit 1
exit 0
