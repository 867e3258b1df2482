#!/usr/bin/env python3
"""Makes weight files with the packages of their own formats, and says what these packages read in
them.

    python3 tests/weights/make.py FOLDER SEED

The files under tests/weights/golden were made so, with seed 2026 (matrices.gguf came later:
20261120), safetensors 0.8.0 and gguf 0.19.0, and are not made again: tests read them without these
packages (tests/python/test_weights.py). `./dev check weights` makes new ones, with another seed,
and compares.
"""
from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import gguf
import numpy as np
import safetensors
from safetensors import TensorSpec

SHAPE = (2, 256)
MATRIX = (40, 256)
#: Types that are layouts of the registry.
MATRIX_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4")
SAFETENSORS_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
                    "C64": 64, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}  # fmt: skip
# What the package calls them when it writes.
WRITTEN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
           "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
           "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
           "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}  # fmt: skip


def digest(data) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()


def random_bytes(rng, count: int, dtype: str) -> bytes:
    return rng.integers(0, 2 if dtype == "BOOL" else 256, count, dtype=np.uint8).tobytes()


def safetensors_tensors(rng):
    """Random bytes of every type that the package writes, and edges: a scalar, none at all, odd
    sizes."""
    out = {}
    for dtype, name in WRITTEN.items():
        bits = SAFETENSORS_BITS[dtype]
        for suffix, shape in (("", SHAPE), (".scalar", ()), (".empty", (0, 7)), (".odd", (5, 3, 2))):
            elements = int(np.prod(shape, dtype=np.int64))
            if bits < 8 and (suffix == ".scalar" or elements * bits % 8):
                continue
            # Of packed types the package is told how many bytes there are, and says elements in the
            # file.
            written = (*shape[:-1], shape[-1] * bits // 8) if bits < 8 else shape
            out[dtype.lower() + suffix] = {"dtype": name, "shape": list(written),
                                           "data": random_bytes(rng, elements * bits // 8, dtype)}  # fmt: skip
    return out


def write_safetensors(path: pathlib.Path, tensors, metadata=None) -> dict:
    arrays = {name: np.frombuffer(t["data"] or b"\0", np.uint8) for name, t in tensors.items()}
    specs = {name: TensorSpec(dtype=t["dtype"], shape=t["shape"], data_ptr=arrays[name].ctypes.data, data_len=len(t["data"]))
             for name, t in tensors.items()}  # fmt: skip
    path.write_bytes(safetensors.serialize(specs, metadata))
    read = dict(safetensors.deserialize(path.read_bytes()))
    return {name: {"type": t["dtype"], "shape": list(t["shape"]), "sha256": digest(np.frombuffer(t["data"], np.uint8))}
            for name, t in read.items()}  # fmt: skip


def blocks(rng, kind, elements: int) -> np.ndarray:
    """Random weights through the package's quantizer, or random blocks where it has none."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    plain = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
    if kind.name in plain:
        dtype = np.dtype(plain[kind.name])
        values = rng.standard_normal(SHAPE) if dtype.kind == "f" else rng.integers(-128, 127, SHAPE)
        return values.astype(dtype)
    try:
        return gguf.quantize(rng.standard_normal(SHAPE).astype(np.float32), kind)
    except NotImplementedError:
        return rng.integers(0, 256, (SHAPE[0], SHAPE[1] // block * size), dtype=np.uint8)


def write_gguf(path: pathlib.Path, rng) -> dict:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b\u00fc", "", "<eos>"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_float32("quarter", 0.25)
    writer.add_bool("yes", True)
    writer.add_uint64("large", 1 << 63)
    writer.add_string("text", "two\nlines")
    for kind in gguf.GGMLQuantizationType:
        if kind.name in ("Q8_1",):  # an intermediate of products: no file has it
            continue
        if SHAPE[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(f"t.{kind.name.lower()}", blocks(rng, kind, SHAPE[1]), raw_dtype=kind)
    writer.add_tensor("vector", rng.standard_normal(7).astype(np.float32))
    writer.add_tensor("deep", rng.standard_normal((2, 3, 4, 5)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def write_matrices(path: pathlib.Path, rng) -> dict:
    """A matrix in each type of the layout registry, as compiled programs multiply with:
    tests/python/test_end_to_end.py."""
    writer = gguf.GGUFWriter(path, "llama")
    for name in MATRIX_TYPES:
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"blk.0.{name.lower()}.weight", matrix(rng, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def matrix(rng, kind) -> np.ndarray:
    """Through the package's quantizer, or random blocks with scales of ordinary size where it has
    none."""
    values = (rng.standard_normal(MATRIX) * 0.1).astype(np.float32)
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        pass
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (MATRIX[0] * MATRIX[1] // block, size), dtype=np.uint8)
    if kind.name.startswith("NVFP4"):
        blocks[:, :4] = rng.integers(0x10, 0x40, (len(blocks), 4))
    for at in {"Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2)}.get(kind.name, ()):
        blocks[:, at : at + 2] = (rng.random((len(blocks), 1)) * 0.002 + 0.0001).astype(np.float16).view(np.uint8)
    return blocks.reshape(MATRIX[0], -1)


def read_gguf(path: pathlib.Path) -> dict:
    """What the package reads: bytes, and values where it has a dequantizer. NaNs are one class."""
    out = {}
    for tensor in gguf.GGUFReader(path).tensors:
        facts = {"type": tensor.tensor_type.name, "shape": [int(n) for n in reversed(tensor.shape.tolist())],
                 "sha256": digest(tensor.data)}  # fmt: skip
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            facts["values"] = digest(np.where(np.isnan(values), np.float32(np.nan), values))
        except NotImplementedError:
            pass
        out[tensor.name] = facts
    return out


def make(folder: pathlib.Path, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = safetensors_tensors(rng)
    expected = {"seed": seed, "files": {}}
    expected["files"]["all.safetensors"] = write_safetensors(folder / "all.safetensors", tensors, {"format": "pt", "\u00fcber": "\u00e9"})
    shards = folder / "sharded"
    shards.mkdir(exist_ok=True)
    names = list(tensors)
    weight_map, merged = {}, {}
    for i, part in enumerate((names[0::3], names[1::3], names[2::3])):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        facts = write_safetensors(shards / file, {name: tensors[name] for name in part})
        weight_map.update({name: file for name in facts})
        merged.update(facts)
    index = {"metadata": {"total_size": sum(len(t["data"]) for t in tensors.values())}, "weight_map": weight_map}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    expected["files"]["sharded"] = merged
    expected["files"]["all.gguf"] = write_gguf(folder / "all.gguf", rng)
    expected["files"]["matrices.gguf"] = write_matrices(folder / "matrices.gguf", rng)
    return expected


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    expected = make(folder, int(sys.argv[2]))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
