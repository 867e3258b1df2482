#!/bin/sh
# Compares what the transcript program prints with what it printed on a real driver. Usage:
# transcript.sh PROGRAM [FOLDER]: where transcript_kernels.ptx and transcript.expected lie; else
# beside this script
set -u
folder=${2:-$(dirname "$0")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" "$folder/transcript_kernels.ptx" >"$work/got" 2>"$work/errors"
status=$?
if [ $status != 0 ]; then
  cat "$work/errors" "$work/got"
  exit $status
fi
diff -u "$folder/transcript.expected" "$work/got"
