"""accx pack: weights of other formats into packs, byte for byte or converted, as a process of its
own."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import accrt
import rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCX = pathlib.Path(os.environ.get("ACCRT_ACCX", ROOT / "build/bin/accx"))
GOLDEN = ROOT / "tests" / "weights" / "golden"
pytestmark = pytest.mark.skipif(not ACCX.exists(), reason=f"{ACCX} is not built (it needs json-c, zlib and libyaml)")


def pack(*arguments, code=0) -> str:
    done = subprocess.run([str(ACCX), "pack", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_bytes(tmp_path):
    out = tmp_path / "all.accx"
    pack(GOLDEN / "sharded", GOLDEN / "all.gguf", out)
    assert subprocess.run([str(ACCX), "verify", "--full", str(out)], capture_output=True).returncode == 0
    packed = accrt.Weights(out)
    sources = [accrt.Weights(GOLDEN / "sharded"), accrt.Weights(GOLDEN / "all.gguf")]
    assert len(packed) == sum(map(len, sources))
    for source in sources:
        for name, weight in source.items():
            assert bytes(packed[name].memoryview()) == bytes(weight.memoryview()), name
            assert (packed[name].shape, packed[name].encoding) == (weight.shape, weight.encoding), name
    again = tmp_path / "again.accx"
    pack(out, again)  # one content has one byte sequence
    assert again.read_bytes() == out.read_bytes()


def test_metadata(tmp_path):
    pack(GOLDEN / "all.gguf", tmp_path / "o.accx", "--only", "vector")
    metadata = accrt.Weights(tmp_path / "o.accx").metadata
    assert metadata["general.architecture"] == "llama" and metadata["quarter"] == "0.25" and metadata["large"] == str(1 << 63)
    assert "numbers" not in metadata


def bf16_bits(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0 | bits >> 16 & 0x8000, rounded).astype(np.uint16)


def test_convert(tmp_path):
    rng = np.random.default_rng(rotation.seed())
    x = (rng.standard_normal(300_000) * 10.0 ** rng.integers(-12, 9, 300_000)).astype(np.float32)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2**-24, 2**-25, 2**-25 * 1.0001, 1e-45, 3.4e38]
    x = np.concatenate([x, np.array(edges, np.float32)])
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    np.savez(tmp_path / "n.npz", x=x, half=half, whole=np.arange(5))
    pack(tmp_path / "n.npz", tmp_path / "f16.accx", "--dtype", "f16")
    found = accrt.Weights(tmp_path / "f16.accx")["x"].numpy()
    assert found.dtype == np.float16
    assert ((found.view(np.uint16) == half.view(np.uint16)) | (np.isnan(found) & np.isnan(half))).all()
    pack(tmp_path / "n.npz", tmp_path / "bf16.accx", "--dtype", "bf16")
    packed = accrt.Weights(tmp_path / "bf16.accx")
    bits = np.frombuffer(packed["x"].memoryview(), np.uint16)
    nan = np.isnan(x)
    assert (bits[~nan] == bf16_bits(x)[~nan]).all() and ((bits[nan] & 0x7FFF) > 0x7F80).all()
    assert np.array_equal(packed["whole"].numpy(), np.arange(5))
    pack(tmp_path / "n.npz", tmp_path / "f32.accx", "--dtype", "f32", "--only", "half")
    packed = accrt.Weights(tmp_path / "f32.accx")
    assert list(packed) == ["half"] and np.array_equal(packed["half"].numpy(), half.astype(np.float32), equal_nan=True)


def test_choice_and_split(tmp_path):
    out = tmp_path / "q.accx"
    told = json.loads(pack(GOLDEN / "all.gguf", out, "--split", "1K", "--only", "t.q*", "--exclude", "*8*", "--rename", "t.*=model.*",
                           "--rename", "t.q4_0=first", "--json"))  # fmt: skip
    files = [pathlib.Path(entry["file"]) for entry in told["files"]]
    assert len(files) > 2 and files[0].name == f"q-00001-of-{len(files):05d}.accx"
    source = accrt.Weights(GOLDEN / "all.gguf")
    names = []
    for file in files:
        packed = accrt.Weights(file)
        assert len(packed) == 1 or packed.info.data_size_bytes <= 1024
        for name, weight in packed.items():
            names.append(name)
            assert bytes(weight.memoryview()) == bytes(source["t." + name[len("model."):]].memoryview())
    assert names == sorted("model." + n[2:] for n in source if n.startswith("t.q") and "8" not in n)
    assert told["tensors"] == len(names)


def test_mistakes(tmp_path):
    np.savez(tmp_path / "n.npz", x=np.zeros(3))
    out = tmp_path / "o.accx"
    assert "'x' is in" in pack(tmp_path / "n.npz", tmp_path / "n.npz", out, code=1)
    assert "--split" in pack(tmp_path / "n.npz", out, "--split", "4X", code=2)
    assert "--split" in pack(tmp_path / "n.npz", out, "--split", "0", code=2)
    assert "--rename" in pack(tmp_path / "n.npz", out, "--rename", "a", code=2)
    assert "--dtype" in pack(tmp_path / "n.npz", out, "--dtype", "i8", code=2)
    assert "no such file" in pack(tmp_path / "none", out, code=1)
    assert "nothing to pack: --only 'y*' fits no name" in pack(tmp_path / "n.npz", out, "--only", "y*", code=1)
    assert pack(tmp_path / "n.npz", out, "--exclude", "x", code=1).strip().endswith("nothing to pack")
    (tmp_path / "bad").write_bytes(b"\x03" + b"\0" * 7 + b"{}")
    assert "safetensors rule 1" in pack(tmp_path / "bad", out, code=3)
    assert not out.exists()
