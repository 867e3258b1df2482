"""Held-out bits per byte of bytelm on a GPU, multiplying straight from packed weights in f16,
against f32 on their exact values there: within 0.001 for each layout with kernels, read by eight
rows and by as many as are read packed. Leaves results/bits.txt. ACCRT_BITS_BYTES: how much of the
text (65,536)."""

from __future__ import annotations

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import bytelm_bits as bits  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler.cuda import packed  # noqa: E402

KEYS = [key for key in bits.PACKED if bits.is_packed(key, "cuda")]
#: Rows at a time: as in decoding for several, the most that are read packed, and so many that the
#: weight becomes a plain one.
ROWS = (8, packed.FEW_ROWS, bits.WINDOW)


def module_exact():
    return bits.module([bits.EXACT])


def module_packed():
    return bits.module(KEYS, "f16")


@pytest.fixture(scope="module")
def programs():
    why = test_ops.reason("bits_exact") or test_ops.reason("bits_packed")
    if why:
        pytest.skip(why)
    import accrt

    instance = accrt.default_instance("all")
    weights = {key: bits.nearest(key) for key in KEYS}
    plain, straight = (
        bits.program(test_ops.built(name, module()), bits.source(values, instance), instance, "cuda:0")
        for name, module, values in (("bits_exact", module_exact, {bits.EXACT: bits.matrices()}), ("bits_packed", module_packed, weights))
    )
    return instance, weights, plain, straight


@pytest.fixture(scope="module")
def table():
    lines = []
    yield lines
    folder = os.environ.get("ACCRT_BENCH_RESULTS")
    if folder and lines:
        with open(os.path.join(folder, "bits.txt"), "w") as out:
            out.write("\n".join(["layout | exact, f32 | " + " | ".join(f"{rows} rows" for rows in ROWS), *lines, ""]))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_packed_is_as_good_as_exact(programs, table, key):
    instance, weights, plain, straight = programs
    text = bits.text(int(os.environ.get("ACCRT_BITS_BYTES", "65536")))
    plain.load_weights(bits.source({bits.EXACT: bits.exact(weights[key])}, instance))
    exact = bits.bits_per_byte(plain, bits.EXACT, text)
    found = [bits.bits_per_byte(straight, key, text, rows) for rows in ROWS]
    table.append(f"{key} | {exact:.4f} | " + " | ".join(f"{y:.4f} ({y - exact:+.4f})" for y in found))
    print(table[-1])
    assert all(abs(y - exact) < bits.MOST for y in found), table[-1]
