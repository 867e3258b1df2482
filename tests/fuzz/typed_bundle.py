"""A bundle without kernels for the fuzzers of the Python surface: several types, ranks and states,
moved by the runtime's own commands.

    python3 tests/fuzz/typed_bundle.py -o typed.accx

For each type of TYPES, at ranks 0 to 3 (RANKS): echo_TYPE_RANK(x) -> y, a copy. keep_TYPE(x [rows,
3], slot) -> y [8, 3], which writes rows of x into the state kept_TYPE from row `slot` on and gives
the state back. fill(x inout [n, m]) writes 0x11 into each byte; choose(x, extra?, flag) -> y gives
x, or extra where flag is 1 and extra is given; two(x [n], y [m, n]) -> (first, second) copies both;
table() -> y gives a constant.
"""
from __future__ import annotations

import argparse
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from accrt import bundle_writer as bw  # noqa: E402 - from the tree

TYPES = {"bool": 1, "u8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
RANKS, ROWS = (0, 1, 2, 3), 8


def build() -> bw.BundleWriter:
    """The bundle, as its writer."""
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/fuzz/typed_bundle.py")
    n, m = bundle.symbol("n", maximum=1 << 16), bundle.symbol("m", maximum=1 << 16)
    slot, rows = (bundle.symbol(name, bw.SymbolClass.RUNTIME, maximum=ROWS) for name in ("slot", "rows"))
    flag = bundle.symbol("flag", maximum=1)
    for dtype, width in TYPES.items():
        for rank in RANKS:
            shape = [n, m, 2][:rank]
            echo = bundle.function(f"echo_{dtype}_{rank}", doc="y = x")
            x, y = echo.input("x", dtype, shape), echo.result("y", dtype, shape)
            size = bw.constant(width)
            for extent in shape:
                size = size * extent
            echo.body.copy(x.read(), y.write(), size)
        state = bundle.state(f"kept_{dtype}", dtype, [ROWS, 3])
        keep = bundle.function(f"keep_{dtype}", doc="rows of x into the state from row slot on; y = the state")
        x, y = keep.input("x", dtype, [rows, 3]), keep.result("y", dtype, [ROWS, 3])
        keep.scalar("slot", slot)
        row = 3 * width
        kept = keep.state(state)
        checked = keep.body.check(slot * row, rows * row, bw.constant(ROWS * row), kept)
        written = keep.body.copy(x.read(), kept.write(slot * row), rows * row, after=[checked])
        keep.body.copy(kept.read(), y.write(), ROWS * row, after=[written])

    fill = bundle.function("fill", doc="0x11 into each byte of x")
    x = fill.input("x", "i32", [n, m], access="read_write")
    fill.body.fill(x.write(0, n * m * 4), 0x11, 1)

    choose = bundle.function("choose", doc="y = extra where flag and given, else x")
    x, extra = choose.input("x", "i64", [n]), choose.input("extra", "i64", [n], optional=True)
    choose.scalar("flag", flag)
    y = choose.result("y", "i64", [n])
    branch = choose.body.branch(flag)
    inner = branch.then.branch(choose.present(extra))
    inner.then.copy(extra.read(), y.write(), n * 8)
    inner.otherwise.copy(x.read(), y.write(), n * 8)
    branch.otherwise.copy(x.read(), y.write(), n * 8)

    two = bundle.function("two", doc="copies of x and of y")
    x, y = two.input("x", "u8", [n]), two.input("y", "f64", [m, n])
    first, second = two.result("first", "u8", [n]), two.result("second", "f64", [m, n])
    two.body.copy(x.read(), first.write(), n)
    two.body.copy(y.read(), second.write(), m * n * 8)

    table = bundle.constant("t", struct.pack("<6h", *range(6)), dtype="i16", shape=[2, 3])
    given = bundle.function("table", doc="y = the constant t")
    y = given.result("y", "i16", [2, 3])
    given.body.copy(given.constant(table).read(), y.write(), 12)
    return bundle


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    build().write(parser.parse_args().output)
