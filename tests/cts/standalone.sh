#!/bin/sh
# The suite as a driver author uses it: built from an installed tree, run against a driver that was
# built outside of the project from a copy of the null driver.
# Usage: standalone.sh BUILD_FOLDER
set -eu
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/installed" >"$work/install.log"
mv "$work/installed" "$work/prefix"
suite=$work/prefix/share/accrt/cts

# A clone under a name of its own.
sed 's/"null"/"clone"/' "$suite/null/null.c" >"$work/clone.c"
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden \
  -Wl,--no-undefined -I"$work/prefix/include" -o "$work/libaccrt_clone.so" "$work/clone.c" -lm

cmake -S "$suite" -B "$work/suite" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCTS_DRIVER="$work/libaccrt_clone.so" >"$work/suite.log"
cmake --build "$work/suite" -j2 >>"$work/suite.log" || { cat "$work/suite.log"; exit 1; }
(cd "$work/suite" && ctest --output-on-failure -R 'cts\.(driver|null|host\.threads1)$')
echo "the installed suite builds on its own and passes for a driver from outside the tree"
