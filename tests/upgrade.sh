#!/usr/bin/env bash
# Upgrades a cluster from an older version store by store: builds the program of a commit and runs
# tests/tests/upgrade.rs with it. Usage: tests/upgrade.sh [COMMIT], of feature level 1. Takes some
# minutes and 2 GiB below TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."

# The last commit whose regions were fixed: feature level 1, schema 1.
commit="${1:-f80767269201be1de1362e8783f703399170cf24}"
dir="$(mktemp -d)"
trap 'git worktree remove --force "$dir/source" 2>/dev/null; rm -rf "$dir"' EXIT

git worktree add --detach "$dir/source" "$commit"
(cd "$dir/source" && CARGO_TARGET_DIR="$dir/target" cargo build --locked --bin flotilla)
FLOTILLA_OLD_BINARY="$dir/target/debug/flotilla" \
  cargo test --locked -p tests --test upgrade -- --nocapture
