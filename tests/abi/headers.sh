#!/bin/sh
# Each public header compiles alone, as C11 and as C++17, with gcc and with clang, warnings as
# errors; kernel.h also freestanding, as kernels are built. The warnings are those of careful
# programs that find the headers by -I, as pkg-config says. Prints one line per failure.
set -u
cd "$(dirname "$0")/../.." || exit 1
WARN="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror -fsyntax-only -Iinclude"
compiled=0
failed=0

# alone HEADER COMPILER LANGUAGE [FLAGS...]: includes it twice, so that a missing guard shows.
alone() {
  header=$1 compiler=$2 language=$3
  shift 3
  command -v "$compiler" >/dev/null 2>&1 || { missing="$missing $compiler"; return 0; }
  compiled=$((compiled + 1))
  # shellcheck disable=SC2086  # a list of flags
  printf '#include <%s>\n#include <%s>\nextern int accrt_header_alone;\n' "$header" "$header" |
    "$compiler" $WARN "$@" -x "$language" - || {
    echo "FAILED: $header as $language $* with $compiler"
    failed=$((failed + 1))
  }
}

missing=
for path in $(find include/accrt -name '*.h' | sort); do
  header=${path#include/}
  alone "$header" gcc c -std=c11
  alone "$header" g++ c++ -std=c++17
  alone "$header" clang c -std=c11
  alone "$header" clang++ c++ -std=c++17
done
alone accrt/kernel.h gcc c -std=c11 -ffreestanding -nostdlib
alone accrt/kernel.h clang c -std=c11 -ffreestanding -nostdlib --target=aarch64-none-elf
[ -z "$missing" ] || echo "not tried, compiler missing:$(echo "$missing" | tr " " "\n" | sort -u | tr '\n' ' ')"
[ $failed = 0 ] && [ $compiled -gt 0 ] && echo "$compiled header compilations"
