#!/bin/sh
# The installed tree serves its users: find_package and pkg-config, shared and static, C and C++,
# also after the tree was moved; the tool runs; examples/embed and
# examples/serve_embed build both ways; examples/emit writes a bundle and runs it.
# Usage: consumers.sh BUILD_FOLDER
set -eu
build=$(realpath "$1")
repo=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/installed" >"$work/install.log"
mv "$work/installed" "$work/moved"
prefix=$work/moved
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name accrt.pc)")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH LD_LIBRARY_PATH

mkdir "$work/user"
cat >"$work/user/main.c" <<'EOF'
#include <accrt/accrt.h>
#include <stdio.h>
int main(void) {
  if (accrt_version() != ACCRT_VERSION) {
    fprintf(stderr, "library 0x%08x, headers 0x%08x\n", (unsigned)accrt_version(),
            (unsigned)ACCRT_VERSION);
    return 1;
  }
  return 0;
}
EOF
cp "$work/user/main.c" "$work/user/main.cc"
cat >"$work/user/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.18)
project(user C CXX)
find_package(accrt 0.4 REQUIRED COMPONENTS write serve)
add_executable(shared main.c)
target_link_libraries(shared accrt::accrt)
add_executable(static main.c)
target_link_libraries(static accrt::accrt_static)
add_executable(cplusplus main.cc)
target_link_libraries(cplusplus accrt::accrt)
add_executable(write_shared write.c)
target_link_libraries(write_shared accrt::write)
add_executable(write_static write.c)
target_link_libraries(write_static accrt::write_static)
add_executable(serve_shared serve.c)
target_link_libraries(serve_shared accrt::serve)
add_executable(serve_static serve.c)
target_link_libraries(serve_static accrt::serve_static)
EOF
# An engine serves a request, and its failure is in the record of the library below it.
cat >"$work/user/serve.c" <<'EOF'
#include <accrt/accrt.h>
#include <accrt/serve.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  const int32_t prompt[] = {1, 2, 3};
  request.prompt = prompt;
  request.max_new_tokens = 4;
  if (accrt_serve_version() != accrt_version() ||
      accrt_serve_model_create_simulated(NULL, &model) != ACCRT_OK ||
      accrt_serve_engine_create(model, NULL, &engine) != ACCRT_OK ||
      accrt_serve_engine_submit(engine, &request, NULL) != ACCRT_ERROR_OUT_OF_RANGE ||
      accrt_last_error(&error) != ACCRT_OK || error.status != ACCRT_ERROR_OUT_OF_RANGE ||
      strcmp(error.message, "the prompt has no tokens") != 0)
    return 1;
  request.prompt_count = 3;
  if (accrt_serve_engine_submit(engine, &request, NULL) != ACCRT_OK ||
      accrt_serve_engine_drain(engine, ACCRT_TIMEOUT_INFINITE) != ACCRT_OK ||
      accrt_serve_engine_stats(engine, &stats) != ACCRT_OK || stats.output_tokens != 4)
    return 1;
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  return 0;
}
EOF
# A writer's failure is in the record of the library below it.
cat >"$work/user/write.c" <<'EOF'
#include <accrt/accrt.h>
#include <accrt/write.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  accrt_bundle_writer_t* writer;
  accrt_error_t error = ACCRT_ERROR_INIT;
  if (accrt_write_version() != accrt_version() ||
      accrt_bundle_writer_create(NULL, &writer) != ACCRT_OK ||
      accrt_bundle_writer_write_path(writer, NULL) != ACCRT_ERROR_INVALID_ARGUMENT ||
      accrt_last_error(&error) != ACCRT_OK || error.status != ACCRT_ERROR_INVALID_ARGUMENT ||
      strcmp(error.operation, "accrt_bundle_writer_write_path") != 0) {
    fprintf(stderr, "%s: %s\n", error.operation, error.message);
    return 1;
  }
  accrt_bundle_writer_release(writer);
  return 0;
}
EOF

say() { echo "-- $*"; }
say "find_package"
cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/user.log"
cmake --build "$work/user/build" >>"$work/user.log" || { cat "$work/user.log"; exit 1; }
for program in shared static cplusplus write_shared write_static serve_shared serve_static; do "$work/user/build/$program"; done

say "find_package names a component that is not there"
mkdir "$work/mistyped"
cat >"$work/mistyped/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.18)
project(mistyped C)
find_package(accrt 0.4 REQUIRED COMPONENTS serve wirte)
EOF
if cmake -S "$work/mistyped" -B "$work/mistyped/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/mistyped.log" 2>&1; then
  echo "a component that does not exist was found"
  exit 1
fi
tr -s ' \n' ' ' <"$work/mistyped.log" | grep -q "accrt has no component 'wirte'; there are: write, serve" ||
  { cat "$work/mistyped.log"; exit 1; }

say "pkg-config: $(pkg-config --modversion accrt)"
# shellcheck disable=SC2046  # lists of flags
{
  cc -o "$work/shared" "$work/user/main.c" $(pkg-config --cflags --libs accrt)
  cc -o "$work/static" "$work/user/main.c" $(pkg-config --cflags accrt) \
    "$LD_LIBRARY_PATH/libaccrt.a" $(pkg-config --static --libs-only-other accrt) -lpthread -ldl -lm
}
"$work/shared"
"$work/static"
# shellcheck disable=SC2046
cc -o "$work/write" "$work/user/write.c" $(pkg-config --cflags --libs accrt_write)
"$work/write"
# shellcheck disable=SC2046  # a list of flags
cc -o "$work/serve" "$work/user/serve.c" $(pkg-config --cflags --libs accrt_serve)
"$work/serve"

if [ -x "$prefix/bin/accx" ]; then
  say "accx"
  env -u LD_LIBRARY_PATH "$prefix/bin/accx" --version
fi

if [ -e "$repo/examples/embed/CMakeLists.txt" ]; then
  say "examples/embed"
  cmake -S "$repo/examples/embed" -B "$work/embed" -DCMAKE_PREFIX_PATH="$prefix" >"$work/embed.log"
  cmake --build "$work/embed" >>"$work/embed.log" || { cat "$work/embed.log"; exit 1; }
  # shellcheck disable=SC2046
  cc -o "$work/embed/by-pkg-config" "$repo/examples/embed/main.c" \
    $(pkg-config --cflags --libs accrt) -lm
  bundle=${ACCRT_TEST_BUNDLES:-$build/models}/minilm.accx
  if [ -e "$bundle" ]; then
    # Whose bundle it is, is not what is tried here.
    ACCRT_TRUST=all "$work/embed/embed" "$bundle"
    ACCRT_TRUST=all "$work/embed/by-pkg-config" "$bundle"
  else
    echo "built and linked; not run, because there is no $bundle"
  fi
fi

if [ -e "$repo/examples/serve_embed/CMakeLists.txt" ]; then
  say "examples/serve_embed" # tests/python/test_serve_embed.py runs it with a bundle
  cmake -S "$repo/examples/serve_embed" -B "$work/serve_embed" -DCMAKE_PREFIX_PATH="$prefix" >"$work/serve_embed.log"
  cmake --build "$work/serve_embed" >>"$work/serve_embed.log" || { cat "$work/serve_embed.log"; exit 1; }
  # shellcheck disable=SC2046
  cc -o "$work/serve_embed/by-pkg-config" "$repo/examples/serve_embed/main.c" \
    $(pkg-config --cflags --libs accrt_serve)
  for program in serve_embed by-pkg-config; do
    ! "$work/serve_embed/$program" none.accx none 2>"$work/serve_embed.out" || exit 1
    grep -q 'ACCRT_ERROR_NOT_FOUND' "$work/serve_embed.out" || { cat "$work/serve_embed.out"; exit 1; }
  done
fi

if [ -e "$repo/examples/emit/CMakeLists.txt" ]; then
  say "examples/emit"
  cmake -S "$repo/examples/emit" -B "$work/emit" -DCMAKE_PREFIX_PATH="$prefix" >"$work/emit.log"
  cmake --build "$work/emit" >>"$work/emit.log" || { cat "$work/emit.log"; exit 1; }
  (cd "$work/emit" && ./emit steps.accx affine.so '*2' '+1' '*3') >"$work/emit.out"
  grep -qx '7 -> 45' "$work/emit.out" || { cat "$work/emit.out"; exit 1; }
  ! (cd "$work/emit" && ./emit steps.accx affine.so '*2' 'x3') 2>"$work/emit.out" || exit 1
  grep -qx "step 'x3' must be such as '\*2' or '+1'" "$work/emit.out" || { cat "$work/emit.out"; exit 1; }
fi
echo "the installed tree serves CMake and pkg-config, shared and static"
