#!/bin/sh
# The wheel works on every CPython from 3.9 that this machine has: installed without the Python
# registry into an environment of its own, imported from outside the tree, its library loaded.
# Usage: wheel.sh PATH/accrt-*.whl
set -eu
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Every distinct CPython: on the path, and where pyenv keeps its versions.
pythons() {
  for p in /usr/bin/python3.? /usr/bin/python3.?? /usr/local/bin/python3.? /usr/local/bin/python3.?? \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
    [ -x "$p" ] || continue
    "$p" -c 'import sys, ensurepip
sys.exit(sys.implementation.name != "cpython" or sys.version_info < (3, 9))' 2>/dev/null || continue
    realpath "$p"
  done | sort -u
}

tried=
for python in $(pythons); do
  version=$("$python" -c 'import platform; print(platform.python_version())')
  echo "-- CPython $version ($python)"
  rm -rf env
  "$python" -m venv env
  env/bin/python -m pip install -q --disable-pip-version-check --no-index "$wheel"
  env -u PYTHONPATH -u ACCRT_LIBRARY env/bin/python -c '
import accrt
print("accrt", accrt.__version__, "with devices:", [d.name for d in accrt.devices()])'
  tried="$tried $version"
done
[ -n "$tried" ] || { echo "no CPython 3.9 or newer found"; exit 1; }
echo "installed and imported under CPython$tried"
