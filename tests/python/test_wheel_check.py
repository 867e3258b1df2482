"""What the wheel is linked with (python/_build/old_glibc.py) and what reads it afterwards
(tests/fresh/manylinux.py) refuse what is too new."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so"))
sys.path.insert(0, str(ROOT / "python/_build"))
import old_glibc  # noqa: E402

CC = os.environ.get("CC", "cc").split()
pytestmark = pytest.mark.skipif(not shutil.which(CC[0]) or not shutil.which("readelf") or platform.libc_ver()[0] != "glibc",
                                reason="needs a C compiler, readelf and glibc")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    return old_glibc.prepare(tmp_path_factory.mktemp("old"), CC)


def link(folder, option, source):
    (folder / "p.c").write_text(source)
    done = subprocess.run([*CC, *([option] if option else []), "-o", "p", "p.c", "-lm", "-lpthread", "-ldl"], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stderr


PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
extern char** environ;
static void* run(void* p) { return p; }
static void at_fork(void) {}
int main(int argc, char** argv) {
  struct stat facts;
  pthread_t thread;
  void* back = NULL;
  if (pthread_create(&thread, NULL, run, argv) || pthread_join(thread, &back) || back != argv || pthread_atfork(at_fork, NULL, NULL)) return 1;
  if (stat(argv[0], &facts) || !S_ISREG(facts.st_mode) || fstat(0, &facts) || lstat("/", &facts) || !S_ISDIR(facts.st_mode)) return 2;
  if (!dlopen(NULL, RTLD_NOW) || environ == NULL || setenv("A", "b", 1) || exp((double)argc - 1) != 1.0) return 3;
  puts("ran");
  return 0;
}
"""


def test_a_program_asks_for_old_versions_alone_and_runs(stand_ins, tmp_path):
    assert stand_ins
    assert link(tmp_path, stand_ins, PROGRAM) == (0, "")
    version, libraries = old_glibc.needed(tmp_path / "p")
    assert version <= old_glibc.NEWEST and "libc.so.6" in libraries
    assert subprocess.run([tmp_path / "p"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout == "ran\n"
    if tuple(map(int, platform.libc_ver()[1].split("."))) >= (2, 34):
        assert {"libpthread.so.0", "libdl.so.2"} <= set(libraries)
        assert link(tmp_path, None, PROGRAM)[0] == 0 and old_glibc.needed(tmp_path / "p")[0] > old_glibc.NEWEST


@pytest.mark.skipif(tuple(map(int, (platform.libc_ver()[1] or "0.0").split("."))) < (2, 32), reason="this glibc has nothing newer")
def test_a_newer_function_fails_at_link(stand_ins, tmp_path):
    newer = '#define _GNU_SOURCE\n#include <string.h>\n#include <stdio.h>\nint main(void) { puts(strerrorname_np(1)); return 0; }\n'
    assert link(tmp_path, None, newer)[0] == 0
    code, said = link(tmp_path, stand_ins, newer)
    assert code != 0 and "strerrorname_np" in said


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library is not built")
def test_the_check_refuses_a_wheel_that_is_too_new(tmp_path):
    wheel = tmp_path / "accrt-0.0.0-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(LIBRARY.resolve(), "accrt/libaccrt.so.0")
    done = subprocess.run([sys.executable, ROOT / "tests/fresh/manylinux.py", wheel], capture_output=True, text=True)
    assert done.returncode != 0 and "accx is not in the wheel" in done.stderr
    version = old_glibc.needed(LIBRARY.resolve())[0]
    if version > old_glibc.NEWEST:
        assert f"asks for glibc {'.'.join(map(str, version))}" in done.stderr and "pthread_create (2.34)" in done.stderr
    named = tmp_path / "accrt-0.0.0-py3-none-linux_x86_64.whl"
    wheel.rename(named)
    done = subprocess.run([sys.executable, ROOT / "tests/fresh/manylinux.py", named], capture_output=True, text=True)
    assert done.returncode != 0 and "no manylinux tag" in done.stderr


#: `./dev check wheel` with every part replaced that works on a wheel. `sh` is what runs the scripts
#: of tests/fresh.
PARTS = """set -eu
. .ci/check.sh
die() { echo "$*"; exit 1; }
note() { :; }
ensure_packages() { :; }
quick_wheel() { optimized= seed=1; }
in_tree() { :; }
wheel_serves() { :; }
PY=true BUILD=/nonexistent
pick_python() { AUDITWHEEL; }
sh() { case $1 in *make_root.sh) MAKE_ROOT ;; *old_root.sh) OLD_ROOT ;; esac; }
check_wheel
"""


@pytest.mark.parametrize("auditwheel, make_root, old_root, code, said", [
    ("return 1", "echo /root", ":", 77, "auditwheel could not be had"),
    ("echo true", "echo 'it needs debootstrap'; return 77", ":", 77, "it needs debootstrap"),
    ("echo true", "echo /root", "return 77", 77, "could not be had in the bare root"),
    ("echo true", "echo /root", "return 1", 1, "the wheel failed in /root"),
    ("echo true", "return 1", ":", 1, "make_root.sh failed"),
    ("echo true", "echo /root", ":", 0, "a bare root, and serving"),
])
def test_what_could_not_be_had_is_no_success(auditwheel, make_root, old_root, code, said):
    script = PARTS.replace("AUDITWHEEL", auditwheel).replace("MAKE_ROOT", make_root).replace("OLD_ROOT", old_root)
    if auditwheel != "return 1":  # a Python that has it
        script = script.replace("check_wheel\n", "wheel_tags() { :; }\ncheck_wheel\n")
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout.splitlines()[-1], done
