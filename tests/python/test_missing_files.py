"""A file that is missing is a FileNotFoundError and a NotFoundError, which names its path, wherever
the package takes a path."""
from __future__ import annotations

import errno
import json
import os
import pickle
import re

import pytest

import accrt
from accrt import trust
from accrt.compiler import Module, compile, safetensors
from accrt.errors import named_files


def scale() -> Module:
    m = Module()
    f = m.function("f")
    f.result("y", f.input("x", "f32", [4]) * 2.0)
    return m


def _secret() -> bytes:
    return bytes(range(32))


def _index_without_shard(folder) -> str:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"w": "shard-1.safetensors"}}))
    return str(index)


# What is called, on a path that does not exist and the golden bundle's.
CALLS = {
    "load": lambda path, good: accrt.load(path),
    "load of keys": lambda path, good: accrt.load(good, keys=[path]),
    "load of weights": lambda path, good: accrt.load(good, weights=path),
    "Bundle": lambda path, good: accrt.Bundle(path),
    "load into a sandbox": lambda path, good: accrt.load(path, sandbox=True),
    "load of weights into a sandbox": lambda path, good: accrt.load(good, sandbox=True, weights=path),
    "compile for target_caps": lambda path, good: compile(scale(), None, target_caps=path),
    "compile of external": lambda path, good: safetensors.read(path),
    "Program": lambda path, good: accrt.Program(path),
    "Weights": lambda path, good: accrt.Weights(path),
    "Weights.open": lambda path, good: accrt.Weights.open(path),
    "load_weights": lambda path, good: accrt.load(good, trust="all").program.load_weights(path),
    "load_adapter": lambda path, good: accrt.load(good, trust="all").program.load_adapter(path),
    "Instance": lambda path, good: accrt.Instance(keys=[path]),
    "load_driver": lambda path, good: accrt.Instance().load_driver(path),
    "KernelPack": lambda path, good: accrt.KernelPack(accrt.Instance(), path),
    "trust.read_public_key": lambda path, good: trust.read_public_key(path),
    "trust.read_secret_key": lambda path, good: trust.read_secret_key(path),
    "trust.SigningKey.read": lambda path, good: trust.SigningKey.read(path),
    "trust.set_role": lambda path, good: trust.set_role(path, "code"),
    "trust.expire": lambda path, good: trust.expire(path, None),
    "trust.revoke": lambda path, good: trust.revoke(path),
    "trust.sign": lambda path, good: trust.sign(path),
    "trust.encrypt": lambda path, good: trust.encrypt(path, path + ".out", _secret()),
    "trust.decrypt": lambda path, good: trust.decrypt(path, path + ".out", _secret()),
}


@pytest.mark.parametrize("place", ("missing.file", "no-folder/missing.file", "file/missing.file"))
@pytest.mark.parametrize("call", CALLS)
def test_a_missing_file_is_a_file_not_found_error_with_its_path(call, place, golden_bundle, tmp_path):
    (tmp_path / "file").write_bytes(b"no folder")
    path = str(tmp_path / place)
    with pytest.raises(FileNotFoundError) as caught:
        CALLS[call](path, golden_bundle)
    error = caught.value
    assert isinstance(error, accrt.NotFoundError) and isinstance(error, accrt.MissingFileError)
    assert error.filename == path
    assert path in str(error) and error.message == str(error)
    assert error.errno and error.strerror


def test_the_variable_that_names_a_missing_file_is_no_part_of_its_path(tmp_path, monkeypatch):
    path = str(tmp_path / "missing.pem")
    monkeypatch.setenv("ACCRT_TRUST_KEYS", path)
    with pytest.raises(FileNotFoundError) as caught:
        accrt.Instance()
    assert caught.value.filename == path


def test_a_shard_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        accrt.Weights(_index_without_shard(tmp_path))
    assert isinstance(caught.value, accrt.NotFoundError)
    assert caught.value.filename.endswith("shard-1.safetensors")


def test_a_folder_that_is_missing_is_named(tmp_path):
    from accrt import bundle_writer as bw

    path = tmp_path / "no" / "made.accx"
    writer = bw.BundleWriter()
    writer.function("f").result("y", "f32", [1])
    for write in (lambda: compile(scale(), path), lambda: compile(scale(), str(path)), lambda: writer.write(path), lambda: writer.write(str(path))):
        with pytest.raises(accrt.MissingFileError, match=f"made.accx: no such file: there is no folder {path.parent}") as caught:
            write()
        assert caught.value.filename == str(path)


def test_it_can_be_pickled(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        accrt.Bundle(tmp_path / "missing.accx")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is accrt.MissingFileError
    assert (str(again), again.filename, again.errno) == (str(caught.value), caught.value.filename, caught.value.errno)


def test_other_things_that_are_missing_are_no_files(golden_bundle):
    session = accrt.load(golden_bundle, trust="all")
    with pytest.raises(accrt.NotFoundError) as caught:
        session.function("nothing")
    assert not isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("number, done", [("ENOSPC", "written"), ("EDQUOT", "written"), ("EFBIG", "written"), ("EACCES", "opened"), ("EIO", "opened")])
def test_a_disk_without_room_is_not_called_a_file_that_cannot_be_opened(number, done):
    code = getattr(errno, number)
    with pytest.raises(accrt.IoError, match=f"x.accx: could not be {done}: {re.escape(os.strerror(code))}"), named_files():
        raise OSError(code, os.strerror(code), "x.accx")
