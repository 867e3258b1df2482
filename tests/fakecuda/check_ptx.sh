#!/bin/sh
# The PTX beside a .cu file is what nvcc makes of it. Other versions of nvcc make other PTX: those
# are told from the first lines. Usage: check_ptx.sh NVCC SOURCE.cu [--write]
set -u
nvcc=$1 source=$2 ptx=${2%.cu}.ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(sed -n 's|^// arch: ||p' "$source") # in its head, where it is not the usual one
compile() {
  "$nvcc" -ptx -arch="${arch:-sm_80}" -I"$(dirname "$0")/../../include" -o "$1" "$source" || exit 1
}
build_id() {
  sed -n 's|^// Compiler Build ID: ||p' "$1"
}
compare_entries() {
  grep -E '^(\.visible \.entry|\s*\.param)' "$ptx" >"$work/old.entries"
  grep -E '^(\.visible \.entry|\s*\.param)' "$work/new.ptx" >"$work/new.entries"
  diff -u "$work/old.entries" "$work/new.entries"
  exit # with its status
}
compile "$work/new.ptx"
if [ "${3-}" = --write ]; then
  cp "$work/new.ptx" "$ptx"
  exit
fi
if [ "$(build_id "$ptx")" != "$(build_id "$work/new.ptx")" ]; then
  echo "another nvcc made $ptx: compared by its entries alone"
  compare_entries
fi
cmp -s "$ptx" "$work/new.ptx" && exit
# On a busy machine nvcc leaves parts of its work out. Each run makes another PTX then, or the same
# one again.
is_busy() { awk -v processors="$(nproc)" '{ exit !($1 > processors) }' /proc/loadavg 2>/dev/null; }
for _ in 1 2 3; do
  compile "$work/again.ptx"
  cmp -s "$ptx" "$work/again.ptx" && exit
  if ! cmp -s "$work/new.ptx" "$work/again.ptx"; then
    echo "nvcc makes another PTX in each run here: $ptx is compared by its entries alone"
    compare_entries
  fi
  is_busy || break
done
if is_busy; then
  echo "nvcc made the same other PTX four times on a busy machine: $ptx is compared by its entries alone"
  compare_entries
fi
diff -u "$ptx" "$work/new.ptx"
