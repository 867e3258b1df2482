#!/bin/sh
# Compares what the transcript program prints with what it printed on a real driver.
# Usage: transcript.sh PROGRAM FOLDER
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" "$2/kernels.ptx" >"$work/got" 2>"$work/errors"
status=$?
if [ $status != 0 ]; then
  cat "$work/errors" "$work/got"
  exit $status
fi
diff -u "$2/transcript.expected" "$work/got"
