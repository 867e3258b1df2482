#!/bin/sh
# The wheel in a root of an old system: its libraries, accx and accrt-sandbox run there; where the root has Python 3.9 or newer with
# venv, the wheel is installed and used from Python too. Needs root and a folder that debootstrap has filled, for instance
#   debootstrap --variant=minbase --include=python3,python3-venv bullseye /tmp/bullseye      glibc 2.31
#   debootstrap --variant=minbase --include=python3 bionic /tmp/bionic MIRROR                glibc 2.27
# Usage: old_root.sh PATH/accrt-*.whl PATH/scale_add.accx ROOT...
set -eu
wheel=$(realpath "$1")
bundle=$(realpath "$2")
shift 2
for root in "$@"; do
  work=$(mktemp -d "$root/tmp/accrt.XXXXXX")
  cp "$wheel" "$bundle" "$work"
  mkdir "$work/unpacked"
  (cd "$work/unpacked" && python3 -m zipfile -e "$wheel" . && chmod 755 ./*.data/scripts/* accrt/accrt-sandbox)
  chroot "$root" sh -eu -s "/tmp/$(basename "$work")" <<'EOS' || { echo "FAILED in $root"; exit 1; }
cd "$1"
ldd --version | head -n 1
[ -e /proc/self/exe ] || mount -t proc proc /proc
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
if python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  python3 -m venv env
  env/bin/python -m pip install -q --disable-pip-version-check --no-index ./*.whl
  env/bin/accx --version
  env/bin/python -c 'import accrt, array, glob
x, y = array.array("f", [1, 2, 3]), array.array("f", [10, 20, 30])
accrt.load(glob.glob("*.accx")[0], host_code="all").scale_add(x, y)
assert list(y) == [12, 24, 36], y
print("Python ran scale_add")'
else echo "no Python 3.9 with venv here: the tools and the libraries alone"; fi
EOS
  umount "$root/proc" 2>/dev/null || true
  rm -rf "$work"
done
