#!/usr/bin/env bash
# Coverage by lines of crates/region and crates/store: by the named cases of the simulator, by seeds,
# and by both together. Needs nothing but Rust; the profiles are read by tests/coverage.
#
#   tests/coverage.sh [SEEDS] [--missed]     300 seeds; with each line that was not reached
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=300
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
  seeds="$1"
  shift
fi
dir="${CARGO_TARGET_DIR:-target}/coverage"
mkdir -p "$dir/profiles"
dir="$(cd "$dir" && pwd)"
rm -f "$dir"/profiles/*

# Only the crates of the workspace are instrumented, and no build script leaves a profile.
printf '#!/bin/sh\nexec "$@" -C instrument-coverage\n' >"$dir/rustc"
chmod +x "$dir/rustc"
export LLVM_PROFILE_FILE=/dev/null
build() { RUSTC_WORKSPACE_WRAPPER="$dir/rustc" cargo "$@" --locked --release --target-dir "$dir" -p flotilla-sim; }
build build
sim="$dir/release/flotilla-sim"
cases="$(build test --lib --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)"

# Counters are not atomic: each process has one thread.
LLVM_PROFILE_FILE="$dir/profiles/cases" "$cases" --quiet --test-threads=1
jobs="$(nproc)"
for ((job = 0; job < jobs; job++)); do
  LLVM_PROFILE_FILE="$dir/profiles/seeds-$job" "$sim" --jobs 1 --seed $((1 + job * 100000)) \
    --seeds $(((seeds + jobs - 1) / jobs)) &
done
for job in $(jobs -p); do
  wait "$job" || echo "a run has failed, see above"
done
profiles=("$dir"/profiles/seeds-*)
cargo run --quiet --locked --manifest-path tests/coverage/Cargo.toml --target-dir "$dir" -- "$@" \
  "cases=$cases,$dir/profiles/cases" "seeds=$sim$(printf ',%s' "${profiles[@]}")"
