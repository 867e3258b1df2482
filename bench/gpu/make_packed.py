"""Compiles packed_LAYOUT.accx for gpu_packed.py and experts_LAYOUT.accx for gpu_experts.py:
products of rows with quantized weights whose bytes are given at load. Usage: make_packed.py FOLDER

A bundle has a function for each copy of a weight, with 1 to 16 rows: `product0` is x W^T of the
constant w0. Constants are outside the bundle, so it is small. Needs nvcc.
"""
from __future__ import annotations

import os
import sys

import numpy as np
from accrt.compiler import Module, available_targets, compile
from accrt.compiler.encodings import LAYOUTS, Quantized

N, K, COPIES, ROWS = 28672, 8192, 3, (1, 4, 8, 16)
#: Matrices of gpu_experts.py, and their layouts.
EXPERTS, EXPERT_N, EXPERT_K, EXPERT_LAYOUTS = 128, 768, 2048, ("q4_k", "q6_k")
#: layout: elements of a row that share a scale, where that is free.
CHOSEN = {"i4_group": 128, "q4_k": 0, "mxfp4": 0, "nvfp4": 0, "f8_channel": 0, "q8_0": 0, "q6_k": 0, "q5_k": 0, "q5_0": 0, "q3_k": 0, "iq4_nl": 0}
#: Where blocks have scales of f16.
SCALES_AT = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q3_k": (108,)}


def weight(layout: str, random: np.random.Generator, n: int = N, k: int = K) -> Quantized:
    """A weight of random bytes with scales of ordinary size."""
    facts, group = LAYOUTS[layout], CHOSEN[layout]
    groups = k // (group or facts.group or k)

    def codes(*shape: int) -> np.ndarray:
        return random.integers(0, 256, shape, dtype=np.uint8)

    def scales(*shape: int) -> np.ndarray:
        return (random.random(shape, np.float32) * 0.03 + 0.003).astype(np.float16)

    if facts.block[1]:
        blocks = codes(n, k // facts.block[0], facts.block[1])
        for at in SCALES_AT.get(layout, (0,)):
            # small scales of these reach 128
            factors = scales(n, k // facts.block[0], 1) * np.float16(2.0**-4 if layout in ("q6_k", "q3_k", "iq4_nl") else 1)
            blocks[..., at : at + 2] = factors.view(np.uint8)
        parts = {"data": blocks}
    elif layout == "mxfp4":
        parts = {"data": codes(n, k // 2), "scales": 112 + codes(n, groups) % 12}
    elif layout == "nvfp4":
        parts = {"data": codes(n, k // 2), "scales": 0x30 + codes(n, groups) % 24, "global_scale": np.array([0.01], np.float32)}
    elif layout == "f8_channel":
        parts = {"data": codes(n, k) & 0xF7, "scales": scales(n)}  # no NaN
    else:
        parts = {"data": codes(n, k // 2), "scales": scales(n, groups)}
    return Quantized(layout, (n, k), parts, group, "f16")


def module(layout: str) -> Module:
    m = Module("packed_" + layout)
    rows = m.symbol("rows", minimum=1, maximum=max(ROWS))
    types = {} if LAYOUTS[layout].block[1] or layout.endswith("fp4") else {"scales": "f16"}
    for i in range(COPIES):
        f = m.function(f"product{i}")
        w = m.external(f"w{i}", "f16", (N, K), layout=layout, group=CHOSEN[layout], components=types, by_name=True)
        f.result("y", f.input("x", "f16", [rows, K]).linear(w))
    return m


def experts_module(layout: str) -> Module:
    """`packed`: rows by the matrices of their groups; `plain`: the same with bf16 matrices."""
    m = Module("experts_" + layout)
    rows = m.symbol("rows", minimum=1, maximum=1 << 17)
    for name in ("packed", "plain"):
        f = m.function(name)
        x = f.input("x", "bf16", [rows, EXPERT_K])
        if name == "packed":
            matrices = m.external("w", "bf16", (EXPERTS, EXPERT_N, EXPERT_K), layout=layout, by_name=True)
            f.result("y", x.grouped_linear([matrices], f.input("ends", "i64", [EXPERTS])))
        else:
            matrices = f.input("w", "bf16", [EXPERTS, EXPERT_N, EXPERT_K])
            f.result("y", x.grouped_matmul(matrices.transpose(1, 2), f.input("ends", "i64", [EXPERTS])))
    return m


def main() -> None:
    if not available_targets(["cuda"]):
        print("no nvcc: packed products are not compiled")
        return
    for layout in CHOSEN:
        path = os.path.join(sys.argv[1], f"packed_{layout}.accx")
        compile(module(layout), path, targets=["sm_90", "ptx"])
        print(f"{path}: {os.path.getsize(path) >> 10} KiB")
    for layout in EXPERT_LAYOUTS:
        path = os.path.join(sys.argv[1], f"experts_{layout}.accx")
        compile(experts_module(layout), path, targets=["sm_90", "ptx"])
        print(f"{path}: {os.path.getsize(path) >> 10} KiB")


if __name__ == "__main__":
    main()
