#!/usr/bin/env bash
# Builds an image of a finished program: ops/container/build.sh PROGRAM IMAGE, as
# `ops/container/build.sh target/release/flotilla flotilla:0.1.0`. Needs buildah, or docker if
# BUILDER says so, and binutils.
set -euo pipefail
program=$(realpath "$1")
image=$2
here=$(cd "$(dirname "$0")" && pwd)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

mkdir -p "$context/root/usr/bin" "$context/root/etc" "$context/data"
cp "$here/Dockerfile" "$context"
objcopy --strip-all "$program" "$context/root/usr/bin/flotilla"
# The loader and the libraries, each where the program looks for it.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$context/root$(dirname "$library")"
  cp -L "$library" "$context/root$library"
done
# Names of hosts are looked up in the file of hosts, then by DNS.
echo 'hosts: files dns' >"$context/root/etc/nsswitch.conf"
echo 'flotilla:x:65532:65532::/data:/nonexistent' >"$context/root/etc/passwd"
echo 'flotilla:x:65532:' >"$context/root/etc/group"

if [ "${BUILDER:-buildah}" = docker ]; then
  docker build --tag "$image" "$context"
else
  buildah build --isolation "${BUILDAH_ISOLATION:-chroot}" --tag "$image" "$context"
fi
