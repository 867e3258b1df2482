#!/bin/sh
# The stripped libraries stay within their sizes, and need no library beyond those that
# docs/dependencies.md names. Usage: size.sh PATH/libaccrt.so PATH/libaccrt_write.so
# PATH/libaccrt_serve.so PATH/libaccrt_http.so (the last one may not be there: it is built where
# llhttp is)
set -eu
ALLOWED="libc.so.6 libpthread.so.0 libdl.so.2 libm.so.6 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1"

stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT

# check LIBRARY LIMIT_BYTES [NEEDED...]
check() {
  library=$1 limit=$2
  shift 2
  strip -o "$stripped" "$library"
  size=$(wc -c <"$stripped")
  needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  for one in $needed; do
    case " $ALLOWED $* " in
      *" $one "*) ;;
      *) echo "$library needs $one, which is not among: $ALLOWED $*"; exit 1 ;;
    esac
  done
  if [ "$size" -gt "$limit" ]; then
    echo "$library is $size bytes stripped; the limit is $limit"
    exit 1
  fi
  echo "$(basename "$library"): $size bytes stripped (limit $limit); needs $(echo "$needed" | tr '\n' ' ')"
}
check "$2" 131072 libaccrt.so.0
check "$3" 147456 libaccrt.so.0
[ ! -e "${4:-}" ] || check "$4" 167936 libaccrt.so.0 libaccrt_serve.so.0
# 60 KiB below 600 KiB, so that there is room for what comes. The size goes in steps of 4096 bytes:
# the linker fills up the page before what is made read-only after loading.
check "$1" 552960
