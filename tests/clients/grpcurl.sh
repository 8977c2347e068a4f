#!/usr/bin/env bash
# grpcurl, from the Go module proxy, against the stores that FLOTILLA_PD names: it lists, describes and
# calls by reflection alone. Ends with 77 where it cannot be had. With
# FLOTILLA_FETCH it only fetches.
set -euo pipefail
dir=${FLOTILLA_CLIENTS:-${TMPDIR:-/tmp}/flotilla-clients}/grpcurl
command -v go >/dev/null || { echo "skipped: Go is not installed here"; exit 77; }
if ! [ -x "$dir/grpcurl" ]; then
  GOBIN=$dir GOFLAGS= go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 2>/dev/null ||
    { echo "skipped: grpcurl cannot be fetched"; exit 77; }
fi
[ -z "${FLOTILLA_FETCH:-}" ] || exit 0
grpcurl=("$dir/grpcurl" -plaintext -max-time 10)

# The answer of a call, asked for again some times: a store may have no leader to tell of for a moment.
want() {
  local what=$1 pattern=$2 found
  for _ in {1..50}; do
    found=$("${grpcurl[@]}" "${@:3}" 2>&1) || true
    if grep -q -- "$pattern" <<<"$found"; then return; fi
  done
  echo "$what: no \"$pattern\" in: $found" >&2
  exit 1
}

for store in ${FLOTILLA_PD//,/ }; do
  want "list of $store" '^grpc.health.v1.Health$' "$store" list
  for service in tikvpb.Tikv pdpb.PD; do
    want "list of $store" "^$service\$" "$store" list
    want "health of $service on $store" '"status": "SERVING"' \
      -d "{\"service\": \"$service\"}" "$store" grpc.health.v1.Health/Check
  done
  want "methods of $store" '^tikvpb.Tikv.RawGet$' "$store" list tikvpb.Tikv
  want "description by $store" 'bytes key = 2' "$store" describe kvrpcpb.RawGetRequest
  want "members by $store" '"clientUrls"' "$store" pdpb.PD/GetMembers
  want "refusal by $store" '"regionNotFound"' -d '{"context": {"region_id": 99}}' "$store" tikvpb.Tikv/RawGet
done
echo "grpcurl: ${FLOTILLA_PD//,/ } passed"
