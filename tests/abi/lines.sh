#!/bin/sh
# Lines of the product: C sources and headers of the libraries without tests, of the tree or of a
# revision.
#   tests/abi/lines.sh [REVISION]
set -eu
cd "$(dirname "$0")/../.."
revision=${1:-}
if [ -n "$revision" ]; then
  names=$(git ls-tree -r --name-only "$revision" runtime loader format write serve abi)
else
  names=$(git ls-files runtime loader format write serve abi)
fi
total=0
for name in $(printf '%s\n' "$names" | grep '\.[ch]$' | grep -v _test); do
  if [ -n "$revision" ]; then
    lines=$(git show "$revision:$name" | wc -l)
  else
    lines=$(wc -l <"$name")
  fi
  total=$((total + lines))
done
echo "$total"
