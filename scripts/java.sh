#!/usr/bin/env bash
# Install a Java 17 runtime for Spark, unless one is found in the places that
# surecast.pipeline.session searches: JAVA_HOME, the PATH, /usr/lib/jvm.
set -euo pipefail
. "$(dirname "$0")/packages.sh"

version() { "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -1; }

for java in "${JAVA_HOME:-}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    if [ -x "$java" ] && [ "$(version "$java")" -ge 17 ] 2>/dev/null; then
        exit 0
    fi
done
apt_install openjdk-17-jre-headless
