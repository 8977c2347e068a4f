#!/usr/bin/env bash
# TiKV's client for Java, from Maven Central, against the cluster that FLOTILLA_PD names; FLOTILLA_API is
# its version of the API. Ends with 77 where it cannot be had. With
# FLOTILLA_FETCH it only fetches.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${FLOTILLA_CLIENTS:-${TMPDIR:-/tmp}/flotilla-clients}/java
for tool in java mvn; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed here"; exit 77; }
done
if ! [ -s "$dir/class-path" ]; then
  mkdir -p "$dir"
  mvn --quiet --batch-mode --file "$here/java/pom.xml" dependency:build-classpath \
    -Dmdep.outputFile="$dir/class-path" || { echo "skipped: the Java client cannot be fetched"; exit 77; }
fi
[ -z "${FLOTILLA_FETCH:-}" ] || exit 0
exec java -cp "$(cat "$dir/class-path")" "$here/java/RawKv.java"
