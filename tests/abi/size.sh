#!/bin/sh
# The stripped library stays within its size, and needs no library beyond those that
# docs/dependencies.md names. Usage: size.sh PATH/libaccrt.so
set -eu
LIMIT_BYTES=614400
ALLOWED="libc.so.6 libpthread.so.0 libdl.so.2 libm.so.6 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1"

stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$1"
size=$(wc -c <"$stripped")
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
  case " $ALLOWED " in
    *" $library "*) ;;
    *) echo "$1 needs $library, which is not among: $ALLOWED"; exit 1 ;;
  esac
done
if [ "$size" -gt $LIMIT_BYTES ]; then
  echo "$1 is $size bytes stripped; the limit is $LIMIT_BYTES"
  exit 1
fi
echo "$size bytes stripped (limit $LIMIT_BYTES); needs $(echo "$needed" | tr '\n' ' ')"
