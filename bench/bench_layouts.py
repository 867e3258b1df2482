#!/usr/bin/env python3
"""What weight layouts cost a model: held-out bits per byte of bytelm with its matrices in each layout, beside f32.

    bench_layouts.py [--bytes N] [LAYOUT...]

Each layout is made by round to nearest and by the search that is weighted with the mean squares of each matrix's inputs (over text
that the model itself wrote: the held-out text is not looked at). `values` is the f32 program on the dequantized weights, whose
values are those of the oracles of docs/layouts.md to the bit; `packed` is the program that multiplies straight from the packed
weights, made by round to nearest, where the compiler has kernels for them.
"""
from __future__ import annotations

import argparse
import pathlib
import platform
import sys
import tempfile

import common
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "bytelm"))
import build  # noqa: E402
import reference  # noqa: E402

import accrt  # noqa: E402
from accrt import compiler, layouts  # noqa: E402

WINDOW = 1024
TARGETS = ["x86-64-v3", "x86-64-v4"] if platform.machine() == "x86_64" else [platform.machine()]
SEED = 20261120
GROUPS = {"i8_group": (64,), "i4_group": (32, 128), "i4_group_asym": (32, 128)}


class Program:
    """bytelm compiled with some matrices replaced."""

    def __init__(self, folder: pathlib.Path, weights: dict):
        tensors, config = build.load()
        module = make_module(tensors, config, weights)
        path = folder / "model.accx"
        compiler.compile(module, str(path), targets=TARGETS)
        self.size_bytes = path.stat().st_size
        self.model = accrt.load(path, host_code="all", options={"host.threads": 1})

    def bits_per_byte(self, text: np.ndarray) -> float:
        total = 0.0
        for start in range(0, len(text) - 1, WINDOW):
            window = text[start:start + WINDOW + 1]
            logits = np.asarray(self.model.prefill(window[:WINDOW].copy(), 0))[:len(window) - 1].astype(np.float64)
            logits -= logits.max(1, keepdims=True)
            chosen = logits[np.arange(len(logits)), window[1:]]
            total += (np.log(np.exp(logits).sum(1)) - chosen).sum()
        return total / (len(text) - 1) / np.log(2)

    def write(self, count: int) -> np.ndarray:
        """Text by the model itself, byte by byte."""
        rng = np.random.default_rng(SEED)
        text = list(b"\n")
        while len(text) < count:
            logits = np.asarray(self.model.decode(np.array(text[-1:], np.uint8), len(text) - 1))[-1].astype(np.float64)
            shares = np.exp(logits - logits.max())
            text.append(int(rng.choice(256, p=shares / shares.sum())))
        return np.array(text, np.uint8)


def make_module(tensors, config, weights: dict):
    """build.build with constants of our own."""
    class Model(build.Model):
        pass

    add = compiler.safetensors.add_constants

    def add_constants(module, plain):
        for name, value in weights.items():
            if isinstance(value, np.ndarray):
                module.constant(name, value)
            else:
                module.weight(name, value)
        add(module, {name: tensor for name, tensor in plain.items() if name not in weights})

    compiler.safetensors.add_constants = add_constants
    try:
        return build.build(tensors, config)
    finally:
        compiler.safetensors.add_constants = add


class Recorder:
    """Stands for a matrix in the float64 reference and sums the squares of what it is multiplied with."""

    __array_ufunc__ = None

    def __init__(self, matrix: np.ndarray, sums: np.ndarray):
        self.matrix, self.sums = matrix, sums

    T = property(lambda self: self)

    def __rmatmul__(self, x: np.ndarray) -> np.ndarray:
        self.sums += (x * x).sum(0)
        return x @ self.matrix.T

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self.matrix[rows]


def importances(text: np.ndarray) -> dict[str, np.ndarray]:
    """Mean squares of the inputs of every matrix."""
    weights, config = reference.load()
    sums = {name: np.zeros(w.shape[1]) for name, w in weights.items() if w.ndim == 2}
    recorded = {name: Recorder(w, sums[name]) if w.ndim == 2 else w for name, w in weights.items()}
    reference.forward(recorded, config, text)
    sums["model.embed_tokens.weight"] = sums.pop("lm_head.weight")  # one matrix
    return {name: (s / len(text)).astype(np.float32) for name, s in sums.items()}


def matrices() -> dict[str, np.ndarray]:
    weights, _config = reference.load()
    return {name: w.astype(np.float32) for name, w in weights.items() if w.ndim == 2 and name != "lm_head.weight"}


def quantized(info: layouts.Info, group: int, importance: dict | None) -> dict[str, layouts.Packed]:
    return {name: layouts.quantize(w, info.id, group_elements=group, importance=importance[name] if importance else None)
            for name, w in matrices().items()}


def for_compiler(name: str, packed: layouts.Packed):
    """The compiler's form of a packed weight."""
    kinds = {"f32": np.float32, "i8": np.int8, "i32": np.int32, "f16": np.float16, "bf16": np.uint16}
    components = {role: c.data.view(kinds.get(c.dtype, np.uint8)) for role, c in packed.components.items()}
    return compiler.Quantized(name, packed.shape, components, packed.group_elements,
                              types={role: c.dtype for role, c in packed.components.items()})


def decibels(packed: dict[str, layouts.Packed]) -> float:
    noise = sum(p.error.rms_error ** 2 * p.error.elements for p in packed.values())
    signal = sum(p.error.rms_weight ** 2 * p.error.elements for p in packed.values())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def measure(folder: pathlib.Path, info: layouts.Info, group: int, importance: dict, text: np.ndarray) -> dict:
    nearest = quantized(info, group, None)
    aware = quantized(info, group, importance)
    count = sum(int(np.prod(p.shape)) for p in nearest.values())
    row = {"layout": info.name + (f" {group}" if group else ""), "bits": 8 * sum(p.size_bytes for p in nearest.values()) / count,
           "sqnr_db": decibels(nearest)}
    row["nearest"] = Program(folder, {n: layouts.dequantize(p) for n, p in nearest.items()}).bits_per_byte(text)
    row["aware"] = Program(folder, {n: layouts.dequantize(p) for n, p in aware.items()}).bits_per_byte(text)
    try:
        row["packed"] = Program(folder, {n: for_compiler(info.name, p) for n, p in nearest.items()}).bits_per_byte(text)
    except (ValueError, NotImplementedError, KeyError) as error:
        row["packed"], row["why"] = None, str(error)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    text = np.frombuffer((ROOT / "examples/bytelm/heldout.txt").read_bytes(), np.uint8)[:options.bytes]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plain = Program(folder, {})
        base = plain.bits_per_byte(text)
        importance = importances(plain.write(WINDOW))
        print(f"bytelm, {len(text)} bytes of held-out text, f32: {base:.4f} bits per byte\n")
        print(f"  {'layout':18} {'bits':>6} {'SQNR dB':>8} {'nearest':>9} {'aware':>9} {'packed':>9} {'packed - values':>16}")
        for info in layouts.all_layouts():
            if not info.writable or info.id < 2 or (options.only and info.name not in options.only):
                continue
            for group in GROUPS.get(info.name, (0,)):
                row = measure(folder, info, group, importance, text)
                rows.append(row)
                packed = f"{row['packed']:9.4f} {row['packed'] - row['nearest']:16.6f}" if row["packed"] else f"{'-':>9}"
                print(f"  {row['layout']:18} {row['bits']:6.3f} {row['sqnr_db']:8.2f} {row['nearest']:9.4f} {row['aware']:9.4f} {packed}",
                      flush=True)
    common.save("layouts", {"bytes": len(text), "f32": base, "rows": rows})
    far = [r["layout"] for r in rows if r["packed"] and not abs(r["packed"] - r["nearest"]) < 1e-3]
    if far:
        print(f"packed programs that are more than 0.001 bits per byte off: {', '.join(far)}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
