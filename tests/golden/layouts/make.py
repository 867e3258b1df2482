#!/usr/bin/env python3
"""Makes the golden vectors of the layouts: random weights, and their f32 values as the oracle of
each layout gives them.

    PYTHONPATH=python:tests/layouts python tests/golden/layouts/make.py

They were made once and are never made again: a layout never changes its meaning. Needs what
tests/layouts/oracles.py needs. Those of the layouts that version 0.3 of the registry brought are
listed in manifest_0_3.txt. manifest.txt has a line for each: name, layout, data type, group, shape,
then role:type:bytes of its components. The file of that name has the components one after another,
then the values as f32, every NaN as 0x7FC00000.
"""
from __future__ import annotations

import pathlib
import sys

import numpy as np
import oracles

FOLDER = pathlib.Path(__file__).parent
SEED = 1
# Small shapes, with ragged edges where a layout allows them.
SHAPES = {
    "plain/f32": (2, 9), "plain/f16": (5, 51), "plain/bf16": (5, 51), "plain/i8": (2, 130), "plain/u8": (2, 130),
    "plain/f8e4m3fn": (2, 130), "plain/f8e5m2": (2, 130), "plain/f4e2m1": (3, 7),
    "f8_tensor/f8e4m3fn/f32": (3, 67), "f8_channel/f8e4m3fn/f32": (7, 33), "f8_channel/f8e5m2/f32": (7, 33),
    "f8_block128/f8e4m3fn/f32": (131, 150), "i8_channel/f16": (7, 33), "i8_channel/bf16": (7, 33), "i8_group/f32": (5, 96),
    "i8_group/ragged": (5, 70), "i4_group/f16": (5, 96), "i4_group/g_idx": (5, 96), "i4_group/ragged": (5, 70),
    "i4_group_asym/f16": (5, 96), "i4_group_asym/g_idx": (5, 96), "i4_group_asym/ragged": (5, 70),
    "gptq_v1/g_idx": (16, 64), "gptq_v1/in order": (16, 96), "gptq_v2/g_idx": (16, 64), "gptq_v2/in order": (16, 96),
    "awq": (16, 96), "q8_0": (3, 64), "q4_0": (3, 64), "q4_1": (3, 64), "q4_k": (2, 512), "q5_k": (2, 512), "q6_k": (2, 512),
    "ggml_mxfp4": (3, 64), "ggml_nvfp4": (3, 128), "mxfp4": (3, 64), "mxfp8/f8e4m3fn": (3, 64), "mxfp8/f8e5m2": (3, 64),
    "nvfp4": (3, 64),
}
SHAPES_0_3 = {"q5_0": (3, 64), "q5_1": (3, 64), "q2_k": (2, 512), "q3_k": (2, 512), "iq4_nl": (3, 64)}


def write(manifest: pathlib.Path, shapes: dict[str, tuple[int, int]]) -> bool:
    if manifest.exists():
        print(f"{manifest} is there")
        return True
    lines = []
    for one in oracles.CASES:
        if one.name not in shapes:
            continue
        rng = np.random.default_rng([SEED, *one.name.encode()])
        like = one.make(rng, 1600)
        packed = oracles.random_weight(oracles.layouts.info(like.layout).name, shapes[one.name],
                                       {role: c.dtype for role, c in like.components.items()}, like.group_elements)(rng)
        expected = one.expect(packed)
        name = one.name.replace("/", "-").replace(" ", "-")
        (FOLDER / f"{name}.bin").write_bytes(
            b"".join(c.data.tobytes() for c in packed.components.values()) + oracles.canonical(expected))
        parts = [f"{oracles.layouts.ROLES.index(role)}:{oracles.layouts.DTYPES[c.dtype]}:{c.data.nbytes}"
                 for role, c in packed.components.items()]
        dtype = oracles.layouts.DTYPES[packed.dtype]
        lines.append(f"{name} {packed.layout} {dtype} {packed.group_elements} {packed.shape[0]} {packed.shape[1]} {' '.join(parts)}\n")
    manifest.write_text("".join(lines))
    print(f"{len(lines)} of {len(shapes)} vectors written")
    return len(lines) == len(shapes)


def main() -> int:
    good = [write(FOLDER / "manifest.txt", SHAPES), write(FOLDER / "manifest_0_3.txt", SHAPES_0_3)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
