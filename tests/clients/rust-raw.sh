#!/usr/bin/env bash
# The raw tests of TiKV's own suite for its Rust client (`tests/integration_tests.rs`), unmodified,
# against the cluster of API V2 that FLOTILLA_PD names: rust-raw.sh DIR, the unpacked package
# `tikv-client`. By hand, since its packages are not ours to build in every run.
set -euo pipefail
# The package names a toolchain of its own; any later one will do. Asked here: there it is that one.
toolchain=${RUSTUP_TOOLCHAIN:-$(rustup show active-toolchain 2>/dev/null | cut -d' ' -f1)}
cd "${1:?the folder of the package tikv-client}"
RUSTUP_TOOLCHAIN=$toolchain \
  PD_ADDRS=${FLOTILLA_PD:?the stores of a cluster} \
  cargo test --features integration-tests --test integration_tests raw_ -- --test-threads 1
