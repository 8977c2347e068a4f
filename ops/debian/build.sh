#!/usr/bin/env bash
# Builds the Debian packages `flotilla` and `flotilla-dbgsym` below target/debian, of the program as
# it is built for a release. Needs cargo-deb (`cargo install cargo-deb`) and Debian's dpkg-dev.
# CARGO names another cargo.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
made=$target/package

"$cargo" build --release --locked --package flotilla-cli --bin flotilla
rm -rf "$made"
mkdir -p "$made"
"$target/release/flotilla" man "$made/man"
for shell in bash zsh fish; do
  "$target/release/flotilla" completions $shell >"$made/flotilla.$shell"
done
"$target/release/flotilla" config default >"$made/flotilla.toml"
"$cargo" deb --no-build --package flotilla-cli --dbgsym
