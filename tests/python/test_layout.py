"""The generated ctypes declarations against C: every size, every offset, every function."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys

import pytest

from accrt import _ffi, _library
from accrt._library import lib

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def c_layout():
    """What tests/abi/layout.c prints, compiled here from the headers."""
    program = pathlib.Path(os.environ.get("ACCRT_LAYOUT", ROOT / "build" / "tests" / "abi.layout"))
    return json.loads(subprocess.run([program], capture_output=True, text=True, check=True).stdout)


def test_every_struct_is_compared(c_layout):
    assert set(_ffi.STRUCTS) == set(c_layout)
    assert len(c_layout) > 40


def test_sizes_and_offsets(c_layout):
    for struct in _ffi.STRUCTS:
        kind, expected = getattr(_ffi, struct), c_layout[struct]
        assert ctypes.sizeof(kind) == expected["size"], struct
        fields = {name: [getattr(kind, name).offset, getattr(kind, name).size] for name, *_ in kind._fields_}
        assert fields == expected["fields"], struct


def test_every_function_of_the_api_is_declared_and_there():
    names = [line[len("ACCRT_FUNCTION("):].split(",")[0] for line in (ROOT / "abi/api.def").read_text().splitlines()
             if line.startswith("ACCRT_FUNCTION(")]
    assert len(names) > 100
    for name in names:
        function = getattr(lib, name)
        if name != "accrt_get_api":
            assert function.argtypes is not None, name


def test_constants_match_the_library():
    assert _ffi.ACCRT_VERSION == lib.accrt_version()
    for name, value in vars(_ffi).items():
        if name.startswith("ACCRT_ERROR_"):
            assert lib.accrt_status_name(value).decode() == name
    assert _ffi.ACCRT_TIMEOUT_INFINITE == 2**64 - 1


def test_declarations_are_made_when_asked_for():
    code = "from accrt import _ffi; assert 'accrt_chain' not in vars(_ffi); _ffi.accrt_chain; assert 'accrt_chain' in vars(_ffi)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    with pytest.raises(AttributeError, match="accrt_no_such_struct"):
        _ffi.accrt_no_such_struct
    assert _ffi.accrt_chain is _ffi.accrt_chain
    assert _ffi.accrt_kernel_workgroup_fn is _ffi.accrt_kernel_workgroup_fn


def test_declarations_made_by_many_threads_at_once():
    code = """
import threading
from accrt import _ffi, _library
ready, seen = threading.Barrier(8), []
def look():
    ready.wait()
    seen.append([(getattr(_ffi, n), len(getattr(_ffi, n)._fields_)) for n in _ffi.STRUCTS])
threads = [threading.Thread(target=look) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert len(seen) == 8 and all(s == seen[0] for s in seen)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})


@pytest.mark.parametrize("version, text", [
    ((_ffi.ACCRT_VERSION_MAJOR + 1) << 24, "major version"),
    pytest.param((_ffi.ACCRT_VERSION_MAJOR << 24) + ((_ffi.ACCRT_VERSION_MINOR - 1) << 12), "too old",
                 marks=pytest.mark.skipif(_ffi.ACCRT_VERSION_MINOR == 0, reason="no minor version is older")),
])  # fmt: skip
def test_libraries_of_other_versions_are_refused(version, text):
    with pytest.raises(ImportError, match=text):
        _library._check_version("libaccrt.so", version)


def test_newer_minor_versions_are_taken():
    _library._check_version("libaccrt.so", lib.accrt_version() + (1 << 12))
