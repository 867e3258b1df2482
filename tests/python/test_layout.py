"""The generated ctypes declarations against C: every size, every offset, every function."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys

import pytest

import accx_tool
from accrt import _ffi, _library
from accrt._library import lib

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def c_layout():
    """What tests/abi/layout.c prints, compiled here from the headers."""
    program = pathlib.Path(os.environ.get("ACCRT_LAYOUT", accx_tool.BUILD / "tests" / "abi.layout"))
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


OWN = (_ffi.ACCRT_VERSION_MAJOR, _ffi.ACCRT_VERSION_MINOR)


@pytest.mark.parametrize("own, version, is_taken", [
    ((0, 4), (0, 4), True), ((0, 4), (0, 3), False), ((0, 4), (0, 5), False), ((0, 4), (0, 9), False), ((0, 4), (1, 4), False),
    ((1, 4), (1, 4), True), ((1, 4), (1, 3), False), ((1, 4), (1, 5), True), ((1, 4), (2, 4), False), ((1, 4), (0, 4), False),
    (OWN, OWN, True), (OWN, (OWN[0] + 1, OWN[1]), False), (OWN, (OWN[0], OWN[1] + 1), OWN[0] > 0),
])  # fmt: skip
def test_libraries_of_other_versions_are_refused(own, version, is_taken, monkeypatch):
    """Below 1.0 every other minor version, too, as accrt_get_api refuses it: the ABI may change
    with one."""
    monkeypatch.setattr(_ffi, "ACCRT_VERSION_MAJOR", own[0])
    monkeypatch.setattr(_ffi, "ACCRT_VERSION_MINOR", own[1])
    number = version[0] << 24 | version[1] << 12 | 7
    if is_taken:
        _library._check_version("libaccrt.so", number)
        return
    with pytest.raises(ImportError, match=f"libaccrt.so has version {version[0]}.{version[1]}, this package needs {own[0]}.{own[1]}"):
        _library._check_version("libaccrt.so", number)
