"""The generated ctypes declarations against C: every size, every offset, every function."""
import ctypes
import json
import os
import pathlib
import subprocess

import pytest

from accrt import _ffi
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
