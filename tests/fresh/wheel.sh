#!/bin/sh
# The wheel works on every CPython from 3.9 that this machine has: installed without the Python
# registry (so without numpy) into an environment of its own, and run from outside the tree on the
# bundle that tests/golden/scale_add.py makes.
# Usage: wheel.sh PATH/accrt-*.whl PATH/scale_add.accx
set -eu
wheel=$(realpath "$1")
bundle=$(realpath "$2")
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
  env -u PYTHONPATH -u ACCRT_LIBRARY env/bin/python - "$bundle" <<'EOF'
import array, sys
import accrt
assert accrt.__file__.startswith(sys.prefix), accrt.__file__
x, y = array.array("f", [1, 2, 3]), array.array("f", [10, 20, 30])
accrt.load(sys.argv[1], host_code="all").scale_add(x, y)
assert list(y) == [12, 24, 36], y
from accrt import _fast  # one file for all of them
free = not getattr(sys, "_is_gil_enabled", lambda: True)()
assert (_fast.native is None) == free and (free or _fast.native.__file__.startswith(sys.prefix)), _fast.native
session = accrt.load(sys.argv[1], host_code="all")
result = session.weighted(session.weighted(array.array("f", [1] * 16)))
assert result.shape == (16,) and len(result.tolist()) == 16, result
from accrt._library import lib
assert lib.accrt_write_version() == lib.accrt_version()
from accrt.sandbox import helper
assert helper().startswith(sys.prefix), helper()
print("accrt", accrt.__version__, "ran scale_add on the host device")
EOF
  # The tool is a program of its own that needs no Python, and so is its sandbox.
  accx() { env -i PATH=/nonexistent HOME="$work" "$work/env/bin/accx" "$@"; }
  accx --version
  for words in man/man1/accx.1 bash-completion/completions/accx zsh/site-functions/_accx fish/vendor_completions.d/accx.fish; do
    grep -q sandbox-cpu "env/share/$words" || grep -q 'sandbox..cpu' "env/share/$words"
  done
  accx inspect "$bundle" | grep -q scale_add
  for how in --allow-host-code "--sandbox --sandbox-weak"; do
    # shellcheck disable=SC2086  # one or two words
    accx run "$bundle" $how --function scale_add --input ones --symbol n=3 --output y=y.npy | grep -q 'written to y.npy'
  done
  tried="$tried $version"
done
[ -n "$tried" ] || { echo "no CPython 3.9 or newer found"; exit 1; }
echo "installed and run under CPython$tried"
