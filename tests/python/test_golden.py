"""The golden bundles are what the writer makes today: a change of the encoding does not go unseen.

When it is meant (0.2 is not released yet), run tests/golden/make.py again. Those of 0.1 are never made again.
"""

import importlib.util
import pathlib
import struct

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden"
pytest.importorskip("xxhash")


def load_make():
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images_of(file):
    """Images of a bundle by name, read with struct alone."""
    sections = {}
    for i in range(struct.unpack_from("<I", file, 48)[0]):
        kind, _flags, offset, size = struct.unpack_from("<2I2Q", file, 128 + 64 * i)
        sections[kind] = (offset, size)
    strings, (images, size), code = sections[1][0], sections[19], sections[62][0]
    found = {}
    for at in range(images, images + size, 24):
        _kind, name, offset, length = struct.unpack_from("<2I2Q", file, at)
        start = strings + name
        found[file[start : file.index(b"\0", start)].decode()] = file[code + offset : code + offset + length]
    return found


def test_minimal():
    make = load_make()
    assert make.bw.BundleWriter().to_bytes() == (FOLDER / "0.2" / "minimal.accx").read_bytes()


def test_everything():
    """With the images that are in it: compilers differ."""
    make = load_make()
    golden = (FOLDER / "0.2" / "everything.accx").read_bytes()
    assert make.everything(images_of(golden)).to_bytes() == golden


def test_images_have_the_shape_that_the_script_makes():
    assert sorted(images_of((FOLDER / "0.2" / "everything.accx").read_bytes())) == [
        "golden.aarch64", "golden.cubin", "golden.operators", "golden.ptx", "golden.x86-64",
    ]  # fmt: skip
