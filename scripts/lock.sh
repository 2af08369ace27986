#!/usr/bin/env bash
# Rewrite requirements.lock from pyproject.toml: exact versions with hashes, for every Python the
# project supports. Run it when a dependency changes, read the diff, commit it.
#
# The build backend is locked too, because set-up installs this project without build isolation
# and must not fetch an unpinned backend. Packages come from the index of the machine's pip
# configuration; the result names no index, so the lock is valid on any machine.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"${PYTHON:-python3}" -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet --disable-pip-version-check uv

grep -o '"setuptools[^"]*"' pyproject.toml | head -1 | tr -d '"' > "$tool/backend.in"
{
    echo "# Exact versions of everything set-up installs. Written by scripts/lock.sh; do not edit."
    "$tool/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --extra dev pyproject.toml "$tool/backend.in"
} > "$tool/requirements.lock"
mv "$tool/requirements.lock" requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) pins"
