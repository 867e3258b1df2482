#!/bin/sh
# Expectation files do what they say: `unsupported` skips, `expected_failure` must fail, an
# unexpected pass is a failure, and names that do not exist are refused. Usage: expectations.sh
# CTS_PROGRAM
set -u
cts=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS WORDS FILE-CONTENT ARGUMENTS...
expect() {
  wanted=$1 words=$2
  printf '%s\n' "$3" >"$work/list"
  shift 3
  "$cts" --driver null --expect "$work/list" "$@" >"$work/out" 2>&1
  got=$?
  if [ "$got" != "$wanted" ] || ! grep -q -- "$words" "$work/out"; then
    echo "cts $* with '$(cat "$work/list")': exit $got, expected $wanted and '$words'"
    cat "$work/out"
    failed=1
  fi
}

expect 0 "1 skipped" "unsupported stream.test_idle_stream no such thing here" --test stream.test_idle
expect 0 "0 skipped" "# nothing" --test stream.test_idle
expect 1 "take it from the list" "expected_failure stream.test_idle_stream" --test stream.test_idle
expect 2 "no test is called" "unsupported stream.test_no_such" --test stream
expect 2 "not understood" "perhaps stream.test_idle_stream" --test stream
expect 2 "no test of that name" "# nothing" --test no_such_test
# A test that fails: the device is not there.
expect 0 "PASSED" "expected_failure stream.test_idle_stream" --test stream.test_idle --device null:9
expect 1 "FAILED" "# nothing" --test stream.test_idle --device null:9
expect 1 "no device 'null:9': the driver has 1" "# nothing" --test direct.test_facts --device null:9
# A driver that has no device of the name that its own suggests: said once.
"$cts" --driver null --name absent >"$work/out" 2>&1
if [ $? != 2 ] || ! grep -q "no device 'absent'; there is: null:0" "$work/out"; then
  echo "a device that is not there was not said once"
  cat "$work/out"
  failed=1
fi
"$cts" --nonsense >"$work/out" 2>&1
if [ $? != 2 ] || ! grep -q usage: "$work/out"; then
  echo "no usage for a bad option"
  failed=1
fi
exit $failed
