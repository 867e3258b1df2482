#!/bin/sh
# What each library exports is exactly what its list in abi/ has, each under the version node that
# brought it, and every function of its public headers is in that list. Beside them stand the two
# names of gdb's JIT interface in libaccrt.so, by which gdb learns about kernels loaded from memory.
# Usage: symbols.sh PATH/libaccrt.so PATH/libaccrt_write.so PATH/libaccrt_serve.so
# PATH/libaccrt_http.so (the last one may not be there: it is built where llhttp is)
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check LIBRARY LIST NODE HEADERS...
check() {
  library=$1 list=$2 node=$3
  shift 3
  sed -n "s/^ACCRT_FUNCTION(\(accrt_[a-z0-9_]*\), \([0-9]*\), \([0-9]*\))$/\1@${node}_\2.\3/p" \
    "$list" | sort >"$work/listed"
  nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" { print $3 }' |
    sed 's/@@/@/' | grep -v '^__jit_debug_\(descriptor\|register_code\)@ACCRT_' | sort >"$work/exported"
  [ -s "$work/listed" ] || { echo "$list lists nothing"; exit 1; }
  if ! diff "$work/listed" "$work/exported" >"$work/diff"; then
    echo "$list (<) and the exported symbols of $library (>) differ:"
    cat "$work/diff"
    exit 1
  fi

  cat "$@" | tr '\n' ' ' |
    grep -oE 'ACCRT_API [^;(]*\(' | sed 's/.*[ *]\(accrt_[a-z0-9_]*\)($/\1/' | grep '^accrt_' |
    sort -u >"$work/declared"
  cut -d@ -f1 "$work/listed" >"$work/names"
  if ! diff "$work/names" "$work/declared" >"$work/diff"; then
    echo "$list (<) and the functions marked ACCRT_API in its headers (>) differ:"
    cat "$work/diff"
    exit 1
  fi
  echo "$(basename "$library"): $(wc -l <"$work/listed") exported symbols"
}
# shellcheck disable=SC2046  # names of headers: no blanks in them
check "$1" abi/api.def ACCRT $(find include/accrt -maxdepth 1 -name '*.h' ! -name write.h ! -name serve.h ! -name http.h)
check "$2" abi/write.def ACCRT_WRITE include/accrt/write.h include/accrt/write/*.h
check "$3" abi/serve.def ACCRT_SERVE include/accrt/serve.h include/accrt/serve/*.h
[ ! -e "${4:-}" ] || check "$4" abi/http.def ACCRT_HTTP include/accrt/http.h
