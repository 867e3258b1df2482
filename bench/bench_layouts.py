#!/usr/bin/env python3
"""What weight layouts cost a model: held-out bits per byte of bytelm with its matrices in each
layout, beside f32.

    bench_layouts.py [--bytes N] [LAYOUT...]

Each layout is made by round to nearest and by the search that is weighted with the mean squares of
each matrix's inputs (over text that the model itself wrote: the held-out text is not looked at).
`nearest` and `aware` are the f32 program on the dequantized weights, whose values are those of the
oracles of docs/layouts.md to the bit; `packed` is the program that multiplies straight from the
packed weights, made by round to nearest, where the compiler has kernels for them
(tests/python/bytelm_bits.py).
"""
from __future__ import annotations

import argparse
import pathlib
import platform
import sys

import common
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import bytelm_bits as bits  # noqa: E402

import accrt  # noqa: E402
from accrt import layouts  # noqa: E402
from accrt.compiler import compile  # noqa: E402

TARGETS = ["x86-64-v3", "x86-64-v4"] if platform.machine() == "x86_64" else [platform.machine()]
SEED = 20261120
GROUPS = {"i8_group": (64,), "i4_group": (32, 128), "i4_group_asym": (32, 128)}
#: Layouts whose elements may be of another type too.
SECOND = {"f8_tensor": "f8e5m2", "f8_channel": "f8e5m2", "f8_block128": "f8e5m2", "mxfp8": "f8e5m2"}


def variants(only: list[str]) -> list[bits.Variant]:
    found = []
    for info in layouts.all_layouts():
        if info.writable and info.id > 1 and (not only or info.name in only):
            found += [bits.Variant(info.name, group) for group in GROUPS.get(info.name, (0,))]
            found += [bits.Variant(info.name, 0, SECOND[info.name])] if info.name in SECOND else []
    return found


def write(program, count: int) -> np.ndarray:
    """Text by the model itself, byte by byte."""
    rng, session, text = np.random.default_rng(SEED), program.session(), list(b"\n")
    while len(text) < count:
        logits = np.asarray(session.f32(np.array(text[-1:], np.uint8), len(text) - 1))[-1].astype(np.float64)
        shares = np.exp(logits - logits.max())
        text.append(int(rng.choice(256, p=shares / shares.sum())))
    return np.array(text, np.uint8)


class Recorder:
    """Stands for a matrix in the float64 reference and sums the squares of what it is multiplied
    with."""

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
    reference = bits.example("reference")
    weights, config = reference.load()
    sums = {name: np.zeros(w.shape[1]) for name, w in weights.items() if w.ndim == 2}
    recorded = {name: Recorder(w, sums[name]) if w.ndim == 2 else w for name, w in weights.items()}
    reference.forward(recorded, config, text)
    sums["model.embed_tokens.weight"] = sums.pop("lm_head.weight")  # one matrix
    return {name: (s / len(text)).astype(np.float32) for name, s in sums.items()}


def decibels(packed: dict[str, layouts.Packed]) -> float:
    noise = sum(p.error.rms_error ** 2 * p.error.elements for p in packed.values())
    signal = sum(p.error.rms_weight ** 2 * p.error.elements for p in packed.values())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    text, instance = bits.text(options.bytes), accrt.Instance(host_code="all", options={"host.threads": 1})
    keys = variants(options.only)
    nearest = {key: bits.nearest(key) for key in keys}
    straight = [key for key in keys if bits.is_packed(key, "host")]
    plain = bits.program(compile(bits.module([bits.EXACT]), targets=TARGETS), bits.source({bits.EXACT: bits.matrices()}, instance), instance)
    packed = None
    if straight:
        packed = bits.program(compile(bits.module(straight), targets=TARGETS), bits.source({k: nearest[k] for k in straight}, instance), instance)

    def exact(weights: dict) -> float:
        plain.load_weights(bits.source({bits.EXACT: weights}, instance))
        return bits.bits_per_byte(plain, bits.EXACT, text)

    importance = importances(write(plain, bits.WINDOW))
    base, rows = exact(bits.matrices()), []
    half = exact({name: w.astype(np.float16).astype(np.float32) for name, w in bits.matrices().items()})
    print(f"bytelm, {len(text)} bytes of held-out text, f32 and bf16: {base:.4f} bits per byte, f16: {half:.4f}\n")
    print(f"  {'layout':22} {'bits':>6} {'SQNR dB':>8} {'nearest':>9} {'aware':>9} {'packed':>9} {'packed - values':>16}")
    for key in keys:
        made = nearest[key]
        count = sum(int(np.prod(p.shape)) for p in made.values())
        row = {"layout": " ".join(str(part) for part in key if part), "bits": 8 * sum(p.size_bytes for p in made.values()) / count,
               "sqnr_db": decibels(made), "nearest": exact(bits.exact(made)), "packed": None}  # fmt: skip
        row["aware"] = exact(bits.exact(bits.nearest(key, importance=importance)))
        if key in straight:
            row["packed"] = bits.bits_per_byte(packed, key, text)
        rows.append(row)
        beside = f"{row['packed']:9.4f} {row['packed'] - row['nearest']:16.6f}" if row["packed"] else f"{'-':>9}"
        print(f"  {row['layout']:22} {row['bits']:6.3f} {row['sqnr_db']:8.2f} {row['nearest']:9.4f} {row['aware']:9.4f} {beside}", flush=True)
    common.save("layouts", {"bytes": len(text), "f32": base, "f16": half, "rows": rows})
    far = [r["layout"] for r in rows if r["packed"] and not abs(r["packed"] - r["nearest"]) < bits.MOST]
    if far:
        print(f"packed programs that are more than {bits.MOST} bits per byte off: {', '.join(far)}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
