#!/bin/sh
# The PTX beside a .cu file is what nvcc makes of it. Other versions of nvcc make other PTX: those
# are told from the first lines. Usage: check_ptx.sh NVCC SOURCE.cu [--write]
set -u
nvcc=$1 source=$2 ptx=${2%.cu}.ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(sed -n 's|^// arch: ||p' "$source") # in its head, where it is not the usual one
"$nvcc" -ptx -arch="${arch:-sm_80}" -I"$(dirname "$0")/../../include" -o "$work/new.ptx" "$source" || exit 1
if [ "${3-}" = --write ]; then
  cp "$work/new.ptx" "$ptx"
  exit
fi
if [ "$(sed -n 's|^// Compiler Build ID: ||p' "$ptx")" != "$(sed -n 's|^// Compiler Build ID: ||p' "$work/new.ptx")" ]; then
  echo "another nvcc made $ptx: compared by its entries alone"
  grep -E '^(\.visible \.entry|\s*\.param)' "$ptx" >"$work/old.entries"
  grep -E '^(\.visible \.entry|\s*\.param)' "$work/new.ptx" >"$work/new.entries"
  exec diff -u "$work/old.entries" "$work/new.entries"
fi
diff -u "$ptx" "$work/new.ptx"
