#!/usr/bin/env bash
# Make sure a Java 17+ runtime is there, for Spark. Not part of set-up yet: nothing in the
# repository needs Java until the Spark source and sink exist; `make setup` will call this then.
set -euo pipefail

java_version() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1; }

if command -v java >/dev/null && [ "$(java_version)" -ge 17 ]; then
    exit 0
fi
command -v apt-get >/dev/null || { echo "java: please install a Java 17 runtime" >&2; exit 1; }
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    openjdk-17-jre-headless
