#!/bin/sh
# Runs the library's tests and benchmarks on a GPU machine, from a folder that `./dev gpu-pack`
# made. Needs a driver, a C library and Python; what more there is (numpy, torch, CuPy, Triton,
# cuda.core, nvcc, compute-sanitizer) is used where it is found.
#
#   ./run.sh test       conformance suite, transcript, manners towards others who use CUDA,
#   programs, streams of others, example models,
#                       tests of kernels
#   ./run.sh bench      benchmarks, each beside the raw driver or a peer
#   ./run.sh sanitize   the conformance suite under compute-sanitizer
#   ./run.sh all
#
# Leaves results/*.txt and results/*.json. ACCRT_DEVICE (cuda:0) says where.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
RESULTS=${ACCRT_BENCH_RESULTS:-$HERE/results}
DEVICE=${ACCRT_DEVICE:-cuda:0}
PYTHON=${PYTHON:-python3}
export LD_LIBRARY_PATH="$HERE/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$HERE/python${PYTHONPATH:+:$PYTHONPATH}"
export ACCRT_LIBRARY="$HERE/lib/libaccrt.so.0" ACCRT_BENCH_RESULTS="$RESULTS" ACCRT_DEVICE="$DEVICE"
export ACCRT_TEST_BUNDLES="$HERE/bundles" ACCRT_TEST_DATA="$HERE/tests/bundles" ACCRT_GPU_TEST_BUNDLES="$HERE/tests/gpu/bundles"
export ACCRT_GPU_PACK="$HERE" PYTHONDONTWRITEBYTECODE=1
# The bundles here were signed by who made this folder, whom this machine does not know.
export ACCRT_TRUST=all
failed=
records=

# step NAME SECONDS COMMAND...: runs it with a limit, keeps what it printed, says how it went.
step() {
  name=$1 limit=$2
  shift 2
  begin=$(date +%s)
  timeout "$limit" "$@" >"$RESULTS/$name.txt" 2>&1
  code=$?
  if [ $code = 0 ]; then word=passed; else word="FAILED ($code)" failed="$failed $name"; fi
  printf '%-24s %-12s %4d s  %s\n' "$name" "$word" $(($(date +%s) - begin)) \
    "$(grep -v '^[[:space:]]*$' "$RESULTS/$name.txt" | tail -1 | cut -c1-100)"
}

# suite NAME SECONDS COMMAND...: a step whose tests are counted: passed, failed, skipped and why.
# One that skipped all has not passed.
suite() {
  name=$1 limit=$2
  shift 2
  begin=$(date +%s)
  timeout "$limit" "$@" >"$RESULTS/$name.txt" 2>&1
  code=$?
  "$PYTHON" "$HERE/bench/gpu/count_tests.py" one "$name" "$RESULTS/$name.txt" $code $(($(date +%s) - begin)) "$records"
}

# has NAME MODULES...: whether Python has what a step needs; says so when not.
has() {
  name=$1
  shift
  missing=$("$PYTHON" -c 'import importlib.util, sys
print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])' "$@")
  [ -z "$missing" ] || printf '%-24s %-12s Python has no %s\n' "$name" skipped "$missing"
  [ -z "$missing" ]
}

run_test() {
  records=$RESULTS/.records
  rm -f "$records"
  suite cts 300 "$HERE/bin/cts" --driver "${DEVICE%%:*}" --device "$DEVICE"
  [ ! -x "$HERE/bin/transcript" ] || suite transcript 60 sh "$HERE/tests/transcript.sh" "$HERE/bin/transcript"
  [ ! -x "$HERE/bin/manners" ] || suite manners 120 "$HERE/bin/manners" "$HERE/bin/kernels.ptx" "$HERE/bin/traits.ptx"
  for t in "$HERE"/tests/gpu/test_*.py; do
    name=$(basename "$t" .py)
    if missing=$(has "$name" numpy pytest); then
      suite "$name" 600 "$PYTHON" -m pytest -q -rs -p no:cacheprovider "$t"
    else
      echo "$missing" >"$RESULTS/$name.txt"
      "$PYTHON" "$HERE/bench/gpu/count_tests.py" one "$name" "$RESULTS/$name.txt" 77 0 "$records"
    fi
  done
  "$PYTHON" "$HERE/bench/gpu/count_tests.py" table "$records" "$RESULTS/test.json" "$RESULTS/test.txt" || failed="$failed test"
  rm -f "$records"
}

run_bench() {
  for b in "$HERE"/bin/gpu_*; do
    [ -x "$b" ] && step "$(basename "$b")" 240 "$b"
  done
  for b in "$HERE"/bench/gpu/gpu_*.py; do
    case $b in
      *gpu_load.py) modules="numpy torch safetensors" ;;
      *gpu_minilm.py) modules="numpy torch transformers" ;;
      *gpu_experts.py | *gpu_packed.py | *gpu_rows.py | *gpu_sample.py) modules="numpy torch" ;;
      *) modules= ;;
    esac
    # shellcheck disable=SC2086  # a list of names
    [ -f "$b" ] && has "$(basename "$b" .py)" $modules && step "$(basename "$b" .py)" 600 "$PYTHON" "$b"
  done
  cat "$RESULTS"/gpu_*.txt
}

run_sanitize() {
  command -v compute-sanitizer >/dev/null 2>&1 || { echo "compute-sanitizer is not on this machine"; return; }
  for tool in memcheck racecheck initcheck synccheck; do
    step "sanitize_$tool" 590 compute-sanitizer --tool $tool --error-exitcode 99 --report-api-errors no \
      --target-processes application-only \
      "$HERE/bin/cts" --driver "${DEVICE%%:*}" --device "$DEVICE" --option pool.one_mapping=1
  done
  libraries=own,numpy
  has "sanitize_round_trips" cupy && libraries=own,numpy,cupy
  has "sanitize_round_trips" numpy && step sanitize_round_trips 590 compute-sanitizer --tool memcheck --leak-check full \
    --error-exitcode 99 --report-api-errors no --target-processes application-only \
    "$PYTHON" "$HERE/tests/gpu/round_trips.py" --count 10000 --with "$libraries" --leaks
}

case ${1:-all} in
  test | bench | sanitize | all) ;;
  *)
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    case $1 in help | -h | --help) exit 0 ;; esac
    echo "run.sh: there is no '$1'" >&2
    exit 2 ;;
esac
mkdir -p "$RESULTS"
command -v nvidia-smi >/dev/null 2>&1 &&
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$RESULTS/machine.txt"
case ${1:-all} in
  test) run_test ;;
  bench) run_bench ;;
  sanitize) run_sanitize ;;
  all) run_test; run_bench; run_sanitize ;;
esac
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
