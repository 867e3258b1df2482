#!/bin/sh
# The wheel in a root of an old system. Its libraries, accx and accrt-sandbox run there. Where the
# root has Python 3.9 or newer with venv, the wheel is installed and used from Python too; where it
# has a C compiler, the wheel is installed with [compiler], and quick_start.py does there what
# README.md and docs/quick-start.md say. Needs root, and a folder that make_root.sh or debootstrap
# has filled, for instance
#   debootstrap --variant=minbase --include=python3 bionic /tmp/bionic MIRROR                glibc
#   2.27
# Exits with 77 and the reason where the packages of [compiler] could not be had in it.
# Usage: old_root.sh PATH/accrt-*.whl PATH/scale_add.accx ROOT...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
clone=$(cd "$here/../.." && pwd)
wheel=$(realpath "$1")
bundle=$(realpath "$2")
shift 2
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

# What runs in the root, in a folder of its own below /tmp.
inside() {
  cat <<'EOS'
cd "$1"
ldd --version | head -n 1
accx=$(echo unpacked/*.data/scripts/accx)
"$accx" --version
"$accx" verify --full ./*.accx
"$accx" run ./*.accx --allow-host-code --function scale_add --input ones --symbol n=3 --output y=y.npy
"$accx" run ./*.accx --sandbox --sandbox-weak --function scale_add --input ones --symbol n=3
"$accx" dump ./*.accx >text.yaml
python3 - <<'EOP'
import ctypes
run = ctypes.CDLL("unpacked/accrt/libaccrt.so.0")
write = ctypes.CDLL("unpacked/accrt/libaccrt_write.so.0")
assert run.accrt_version() == write.accrt_write_version()
print("libaccrt.so.0 and libaccrt_write.so.0 load: version %#x" % run.accrt_version())
EOP
python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || {
  echo "no Python 3.9 with venv here: the tools and the libraries alone"
  exit 0
}
python3 -m venv env
env/bin/python -m pip install -q --disable-pip-version-check --no-index ./*.whl
env/bin/accx --version
env/bin/python -c 'import accrt, array, glob
x, y = array.array("f", [1, 2, 3]), array.array("f", [10, 20, 30])
accrt.load(glob.glob("*.accx")[0], host_code="all").scale_add(x, y)
assert list(y) == [12, 24, 36], y
print("Python ran scale_add")'
command -v cc >/dev/null || { echo "no C compiler here: no bundle is made"; exit 0; }
# The environment's pip may be as old as the root: it follows the wheel's own list for [compiler].
env/bin/python -m pip install -q --disable-pip-version-check --retries 1 "$(echo ./*.whl)[compiler]" "mypy<3" || {
  echo "the packages of accrt[compiler] and mypy could not be had in the bare root"
  exit 77
}
cd clone
../env/bin/python quick_start.py
EOS
}

for root in "$@"; do
  work=$(mktemp -d "$root/tmp/accrt.XXXXXX")
  name=/tmp/$(basename "$work")
  mkdir -p "$work/unpacked" "$work/home" "$work/clone/docs" "$work/clone/examples"
  cp "$wheel" "$bundle" "$work"
  cp "$here/quick_start.py" "$clone/README.md" "$work/clone"
  cp "$clone/docs/quick-start.md" "$work/clone/docs"
  cp -r "$clone/examples/bytelm" "$work/clone/examples"
  (cd "$work/unpacked" && python3 -m zipfile -e "$wheel" . && chmod 755 ./*.data/scripts/* accrt/accrt-sandbox)
  inside >"$work/inside.sh"
  code=0
  # In its own mount and process namespace, so that nothing stays mounted or running whatever
  # happens inside.
  # shellcheck disable=SC2016  # what is quoted here is expanded there
  unshare --mount --pid --fork --propagation private sh -eu -c '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" /usr/bin/env -i HOME="$2/home" PIP_CACHE_DIR=/var/cache/pip LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -eu "$2/inside.sh" "$2"
  ' sh "$root" "$name" || code=$?
  rm -rf "$work"
  work=
  [ $code != 77 ] || exit 77
  [ $code = 0 ] || { echo "FAILED in $root"; exit 1; }
done
