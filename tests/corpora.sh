#!/usr/bin/env bash
# Keeps what fuzzing has found: of tests/fuzz/corpus/<target> the inputs that reach something that no
# other input reaches, together with those kept before, as tests/fuzz/seeds/<target>.tar.gz. CI's
# short runs begin with them.
#
#   tests/corpora.sh [TARGET...]     all targets, or those that are named
set -euo pipefail
cd "$(dirname "$0")/fuzz"
export RUSTC_BOOTSTRAP=1
mkdir -p seeds
for target in ${@:-$(cargo fuzz list --fuzz-dir .)}; do
  kept=$(mktemp -d)
  if [ -e "seeds/$target.tar.gz" ]; then
    tar --extract --gzip --file "seeds/$target.tar.gz" --directory "$kept"
  fi
  if [ -d "corpus/$target" ]; then
    find "corpus/$target" -type f -exec cp --target-directory "$kept" {} +
  fi
  cargo fuzz cmin --fuzz-dir . "$target" "$kept" -- -rss_limit_mb=2048 -timeout=60
  # The same bytes for the same inputs, whoever makes the archive.
  tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --directory "$kept" . |
    gzip --no-name --best >"seeds/$target.tar.gz"
  printf '%s: %s inputs, %s bytes\n' "$target" "$(ls "$kept" | wc -l)" "$(stat --format=%s "seeds/$target.tar.gz")"
  rm -r "$kept"
done
