#!/bin/sh
# quick_cc.sh LEVEL ARGUMENTS...: the C compiler of tests that are not about kernels. It optimizes
# less than kernels are compiled with, and takes 40 % less time (rotation.py).
level=$1
shift
for compiler in cc gcc clang; do
  if command -v "$compiler" >/dev/null 2>&1; then exec "$compiler" "$@" "$level"; fi
done
echo "no C compiler" >&2
exit 127
