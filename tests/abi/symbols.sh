#!/bin/sh
# What the library exports is exactly what abi/api.def lists, each under the version node that
# brought it, and every function of the public headers is in that list. Beside them stand the two
# names of gdb's JIT interface, by which gdb learns about kernels loaded from memory.
# Usage: symbols.sh PATH/libaccrt.so
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^ACCRT_FUNCTION(\(accrt_[a-z0-9_]*\), \([0-9]*\), \([0-9]*\))$/\1@ACCRT_\2.\3/p' \
  abi/api.def | sort >"$work/listed"
nm -D --defined-only --with-symbol-versions "$1" | awk '$2 != "A" { print $3 }' |
  sed 's/@@/@/' | grep -v '^__jit_debug_\(descriptor\|register_code\)@' | sort >"$work/exported"
[ -s "$work/listed" ] || { echo "abi/api.def lists nothing"; exit 1; }
if ! diff "$work/listed" "$work/exported" >"$work/diff"; then
  echo "abi/api.def (<) and the exported symbols of $1 (>) differ:"
  cat "$work/diff"
  exit 1
fi

find include/accrt -name '*.h' ! -path '*/sys/*' -exec cat {} + | tr '\n' ' ' |
  grep -oE 'ACCRT_API [^;(]*\(' | sed 's/.*[ *]\(accrt_[a-z0-9_]*\)($/\1/' | grep '^accrt_' |
  sort -u >"$work/declared"
cut -d@ -f1 "$work/listed" >"$work/names"
if ! diff "$work/names" "$work/declared" >"$work/diff"; then
  echo "abi/api.def (<) and the functions marked ACCRT_API in include/accrt (>) differ:"
  cat "$work/diff"
  exit 1
fi
echo "$(wc -l <"$work/listed") exported symbols"
