#!/bin/sh
# quick_cc.sh LEVEL[,ARGUMENT] ARGUMENTS...: the C compiler of tests that are not about kernels. It
# optimizes less than kernels are compiled with, and takes half as long (rotation.py). What has the
# argument behind the comma is compiled as it is asked for.
level=${1%%,*} but=${1#*,}
shift
case " $* " in *" $but "*) level= ;; esac
for compiler in cc gcc clang; do
  if command -v "$compiler" >/dev/null 2>&1; then exec "$compiler" "$@" ${level:+"$level"}; fi
done
echo "no C compiler" >&2
exit 127
