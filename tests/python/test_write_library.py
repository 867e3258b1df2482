"""Two libraries: what runs bundles works where libaccrt_write.so is not, and what needs it says so
in one line."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from accrt import _ffi, _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build" / "lib" / "libaccrt.so")).resolve()


def run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {k: v for k, v in os.environ.items() if k != "ACCRT_WRITE_LIBRARY"}
    return subprocess.run([sys.executable, "-c", code], env={**env, "PYTHONPATH": str(ROOT / "python"), **environment},
                          capture_output=True, text=True)  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """libaccrt.so in a folder of its own."""
    return str(shutil.copy(LIBRARY, tmp_path_factory.mktemp("lib") / "libaccrt.so.0"))


def test_running_needs_one_library(alone):
    done = run("import accrt\nwith accrt.Instance() as i: print(len(i.devices()) > 0)", ACCRT_LIBRARY=alone)
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr


def test_what_needs_the_other_says_so(alone):
    np = pytest.importorskip("numpy")
    assert np
    code = "import numpy as np\nfrom accrt import layouts\nlayouts.quantize(np.zeros((32, 256), np.float32), 'q4_k')"
    done = run(code, ACCRT_LIBRARY=alone)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: writing, signing and quantizing need libaccrt_write.so"), done.stderr
    assert alone in last and "ACCRT_WRITE_LIBRARY" in last
    chosen = str(LIBRARY.parent / "libaccrt_write.so.0")
    done = run(code, ACCRT_LIBRARY=alone, ACCRT_WRITE_LIBRARY=chosen)
    assert done.returncode == 0, done.stderr


def test_another_version_is_refused():
    code = """
from accrt import _library
_library.lib.accrt_version = lambda: 7 << 24
try: _library.write_library()
except ImportError as error: print(error)
"""
    done = run(code)
    assert done.returncode == 0 and "which is not that of" in done.stdout, done.stderr


def test_functions_are_where_they_are_looked_for():
    for name in _ffi._PROTOTYPES:
        owner = _library.lib
        if name in _ffi._WRITE or name in _ffi._SERVE:
            owner = _library.write_library() if name in _ffi._WRITE else _library.serve_library()
        if name in _ffi._HTTP:
            try:
                owner = _library.http_library()
            except ImportError:  # built where llhttp is
                continue
        assert getattr(_library.lib, name) is not None
        # Straight from the file: no other library was asked.
        assert _ffi.CDLL.__getitem__(owner, name) is not None
