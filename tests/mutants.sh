#!/usr/bin/env bash
# Breaks the product on purpose, one way after the other, and demands that the simulator notices, or
# the test that a patch names with "test: <arguments of cargo test>".
#
#   tests/mutants.sh [NAME...]      all of tests/mutants/*.patch, or those that are named
#   SEEDS=5000 tests/mutants.sh     seeds to try before a mutant counts as having survived
#
# Works on a copy of the tracked files as they are now, below the target directory. Prints a table
# for docs/testing.md; exits with 1 if a mutant survived or a patch does not fit any more.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
seeds=${SEEDS:-1000}
work=${CARGO_TARGET_DIR:-$root/target}/mutants
tree=$work/tree
export CARGO_TARGET_DIR=$work/build
# A mutant changes one function: only what depends on it is compiled again.
export CARGO_PROFILE_RELEASE_INCREMENTAL=true CARGO_PROFILE_RELEASE_DEBUG=0

rm -rf "$tree"
mkdir -p "$tree"
# Touched, or a build directory that was used before would be newer than the files, with the last
# mutant in it.
git ls-files -z | tar --null --files-from - --create | tar --extract --touch --directory "$tree"
# A repository of its own: git apply would else take the paths for those of the outer one.
git init --quiet "$tree"
cd "$tree"

simulate() {
  # Linked by && because `set -e` does not count in a condition: the program of the last mutant must
  # not stand for one that does not compile.
  cargo build --quiet --release --locked -p flotilla-sim &&
    "$CARGO_TARGET_DIR/release/flotilla-sim" --seeds "$seeds" --stop
}

named_test() {
  # shellcheck disable=SC2046 # arguments without blanks
  cargo test --release --locked $(sed -n 's/^test: //p; /^diff/q' "$1")
}

if ! simulate >"$work/control.txt"; then
  echo "the simulator complains without any mutant:" >&2
  cat "$work/control.txt" >&2
  exit 1
fi

if [ $# -gt 0 ]; then names=("$@"); else
  names=()
  for patch in "$root"/tests/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi

survivors=0
echo "| mutant | seeds | how it was noticed |"
echo "|---|---|---|"
for name in "${names[@]}"; do
  patch=$root/tests/mutants/$name.patch
  git apply "$patch"
  if grep -q '^test: ' "$patch"; then
    words=$(sed -n 's/^test: .* //p' "$patch")
    if named_test "$patch" >"$work/$name.txt" 2>&1; then
      survivors=$((survivors + 1))
      echo "| $name | - | **survived** |"
    # A mutant may also end its process, as by a read of a file that was cut (SIGBUS).
    elif grep -aqE '^test result: FAILED|\(signal: ' "$work/$name.txt"; then
      echo "| $name | - | the test \`$words\` |"
    else
      survivors=$((survivors + 1))
      echo "| $name | not built | |"
    fi
  elif simulate >"$work/$name.txt"; then
    survivors=$((survivors + 1))
    echo "| $name | $seeds | **survived** |"
  else
    tried=$(sed -n 's/^\([0-9]*\) seeds, .*/\1/p' "$work/$name.txt")
    words=$(sed -n 's/^seed [0-9]* FAILED: //p' "$work/$name.txt" | head -1 | cut -c1-110)
    echo "| $name | ${tried:-not built} | ${words//|/\\|} |"
    [ -n "$tried" ] || survivors=$((survivors + 1))
  fi
  git apply --reverse "$patch"
done
[ "$survivors" -eq 0 ]
