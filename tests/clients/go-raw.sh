#!/usr/bin/env bash
# client-go's own suite for RawKV, unmodified, from a checkout: `go-raw.sh DIR`, against the cluster that
# FLOTILLA_PD names, of either version of the API. By hand: the suite is not in client-go's module, so it
# cannot be fetched here.
set -euo pipefail
dir=${1:?usage: FLOTILLA_PD=HOST:PORT,... go-raw.sh DIR, a checkout of client-go}
cd "$dir/integration_tests"
exec go test ./raw -count=1 -v -run '^TestApi$' -with-tikv -pd-addrs "${FLOTILLA_PD:?names no endpoints}"
