#!/usr/bin/env bash
# TiKV's client for Python, from PyPI, against the cluster that FLOTILLA_PD names. Ends with 77 where it
# cannot be had. With FLOTILLA_FETCH it only fetches.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${FLOTILLA_CLIENTS:-${TMPDIR:-/tmp}/flotilla-clients}/python
command -v python3 >/dev/null || { echo "skipped: Python is not installed here"; exit 77; }
if ! "$dir/bin/python" -c 'import tikv_client' 2>/dev/null; then
  python3 -m venv "$dir" && "$dir/bin/pip" install --quiet --disable-pip-version-check tikv-client==0.0.4 ||
    { echo "skipped: the Python client cannot be fetched"; exit 77; }
fi
[ -z "${FLOTILLA_FETCH:-}" ] || exit 0
exec "$dir/bin/python" "$here/python/rawkv.py"
