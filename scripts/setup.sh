#!/usr/bin/env bash
# Install exactly the packages of requirements.lock into .venv, and this project in editable form, and
# make sure that there is a Java for Spark.
# Safe to run again: existing parts are kept. `make setup` calls it when the lock,
# pyproject.toml or this script changed.
#
# PYTHON=... picks the interpreter; otherwise the first of python3, python3.14 ... python3.11 that
# is new enough. On Debian and Ubuntu the venv module is a separate package: if it is missing it
# is installed with apt-get, which needs root or sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
. scripts/packages.sh

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11 or newer found (set PYTHON=/path/to/python)" >&2
    exit 1
}

# A venv that was moved, or whose interpreter was removed, must be created again.
if [ -e $venv ] && ! { new_enough $venv/bin/python && $venv/bin/python -m pip --version >/dev/null 2>&1 \
        && [ "$($venv/bin/python -c 'import sys; print(sys.prefix)')" = "$PWD/$venv" ]; }; then
    echo "setup: remaking $venv" >&2
    rm -rf $venv
fi
if [ ! -e $venv ]; then
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        apt_install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    "$python" -m venv $venv
fi

pip() { $venv/bin/python -m pip --disable-pip-version-check "$@"; }
echo "setup: installing pinned dependencies into $venv" >&2
# pip spends most time on reading the index, one package after the other, so two run in parallel. The
# lock lists all dependencies, so the two halves are independent.
halves=$(mktemp -d)
trap 'rm -rf "$halves"' EXIT
awk -v to="$halves/" '/^[A-Za-z0-9]/ { half = !half } { print > (to (half + 0)) }' requirements.lock
install_half() { pip install --quiet --no-compile --require-hashes --no-deps -r "$halves/$1"; }
install_half 0 &
install_half 1 || { wait; exit 1; }
wait $!
# Compile like pip, but on all cores, and without the packages' own tests.
$venv/bin/python -m compileall -q -j 0 -x '/tests/' $venv/lib >/dev/null 2>&1 || true
pip install --quiet --no-deps --no-build-isolation -e .
pip check >/dev/null || { pip check; exit 1; }
scripts/java.sh
