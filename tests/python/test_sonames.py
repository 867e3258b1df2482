"""Libraries that are opened by their sonames: not from a folder that others may write to, and not from the current one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accrt import _library

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
SOURCE = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { creat(getenv("ACCRT_TEST_MARK"), 0600); }
"""


@pytest.fixture
def planted(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "run.c").write_text(SOURCE)
    place = tmp_path / "planted"
    place.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(place / "libcuda.so.1"), str(tmp_path / "run.c")], check=True)
    shutil.copy(place / "libcuda.so.1", place / "libcrypto.so.3")
    shutil.copy(place / "libcuda.so.1", place / "libcrypto.so.1.1")
    return place


@pytest.mark.parametrize("element", [".", ":/usr/lib", "/usr/lib:", "sub/..", "OPEN"])
@pytest.mark.parametrize("what", ["devices", "keygen"])
def test_no_library_of_an_open_folder_is_opened(tmp_path, planted, element, what):
    mark = tmp_path / "mark"
    (planted / "sub").mkdir()
    if element == "OPEN":
        planted.chmod(0o777)
    code = "import accrt; print([d.name for d in accrt.Instance(trust='no-host-code').devices()])"
    command = {"devices": [sys.executable, "-c", code], "keygen": [str(BUILD / "bin" / "accx"), "keygen", "--output", "key"]}[what]
    environment = os.environ | {"LD_LIBRARY_PATH": str(planted) if element == "OPEN" else element, "ACCRT_TEST_MARK": str(mark),
                                "ACCRT_LIBRARY": os.path.realpath(_library.lib._name), "PYTHONPATH": str(ROOT / "python")}  # fmt: skip
    done = subprocess.run(command, cwd=planted, env=environment, capture_output=True, text=True, timeout=60)
    assert not mark.exists(), done
    if what == "keygen":
        assert done.returncode > 0 and ("others may write to" if element == "OPEN" else "no absolute path") in done.stderr, done.stderr
    else:
        assert done.returncode == 0 and "host" in done.stdout, done.stderr


def test_a_folder_of_ones_own_is_believed(tmp_path, planted):
    mark = tmp_path / "mark"
    code = "import accrt; accrt.Instance(trust='no-host-code').devices()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60,
                   env=os.environ | {"LD_LIBRARY_PATH": str(planted), "ACCRT_TEST_MARK": str(mark), "PYTHONPATH": str(ROOT / "python"),
                                     "ACCRT_LIBRARY": os.path.realpath(_library.lib._name)})  # fmt: skip
    assert mark.exists()
