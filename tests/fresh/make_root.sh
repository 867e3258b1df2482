#!/bin/sh
# Makes a bare root of the oldest Debian that the mirror has, with Python, venv and a C compiler,
# for old_root.sh. A root that is there is left as it is. Prints the root's folder; exits with 77
# and the reason where none can be had. Usage: make_root.sh FOLDER
set -eu
folder=$1
# shellcheck source=tests/fresh/network.sh disable=SC1091
. "$(dirname "$0")/network.sh"
skip() { echo "$*" && exit 77; }

for suite in bullseye bookworm; do
  if [ -e "$folder/$suite/.complete" ]; then echo "$folder/$suite" && exit 0; fi
done
[ "$(id -u)" = 0 ] || skip "a bare root needs root (chroot)"
command -v debootstrap >/dev/null || skip "a bare root needs debootstrap, which could not be had"
unshare --mount --pid --fork true 2>/dev/null || skip "a bare root needs namespaces (unshare), which are refused here"
mkdir -p "$folder"
for suite in bullseye bookworm; do
  url=${ACCRT_FRESH_MIRROR:-$(mirror_of $suite)}
  [ -n "$url" ] || skip "a bare root needs a Debian mirror among this machine's apt sources (or in ACCRT_FRESH_MIRROR)"
  rm -rf "${folder:?}/$suite"
  if debootstrap --variant=minbase --include=python3,python3-venv,gcc,libc6-dev,ca-certificates $suite "$folder/$suite" "$url" \
    >"$folder/$suite.log" 2>&1; then
    carry_network "$folder/$suite"
    chroot "$folder/$suite" update-ca-certificates >>"$folder/$suite.log" 2>&1 || true
    : >"$folder/$suite/.complete"
    echo "$folder/$suite"
    exit 0
  fi
done
skip "a bare root could not be made of $url: $(tail -n 1 "$folder/$suite.log")"
