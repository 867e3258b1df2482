"""What a row gives does not depend on the other rows, nor on how many there are: bit for bit, on
hosts, of the operations that a step of a serving engine is made of."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Module, compile
from accrt.compiler.quantizers import quantize

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 28, 29, 31, 33, 64, 65, 112, 113, 120)
ROWS = COUNTS[-1]


def random():
    return np.random.default_rng([kh.SEED, 21])


def weight(m, rows, columns, dtype="f32", name="w"):
    return m.constant(name, kh.encode(random().standard_normal((rows, columns)) / np.sqrt(columns), dtype), dtype)


def vector(m, n, name="b"):
    return m.constant(name, random().standard_normal(n).astype(np.float32))


CASES = {
    "linear": (96, lambda m, x: x.linear(weight(m, 200, 96))),
    "linear_long": (1100, lambda m, x: x.linear(weight(m, 33, 1100))),
    "linear_bias_silu_residual": (128, lambda m, x: x.linear(weight(m, 128, 128), vector(m, 128)).silu() + x),
    "linear_joined": (64, lambda m, x: x.linear(weight(m, 64, 64)) * x.linear(weight(m, 64, 64, name="v")).gelu()),
    "linear_bf16_weight": (192, lambda m, x: x.linear(weight(m, 70, 192, "bf16"))),
    "linear_bf16": (192, lambda m, x: x.to_copy("bf16").linear(weight(m, 70, 192, "bf16")).to_copy("f32")),
    "linear_f16": (192, lambda m, x: x.to_copy("f16").linear(weight(m, 70, 192, "f16")).to_copy("f32")),
    "rms_norm": (333, lambda m, x: x.rms_norm(vector(m, 333), 1e-6)),
    "layer_norm": (333, lambda m, x: x.layer_norm(vector(m, 333), vector(m, 333, "c"))),
    "softmax": (1000, lambda m, x: x.softmax(-1)),
    "by_element": (77, lambda m, x: (x.silu() * x + x.tanh()).exp()),
    "sum": (500, lambda m, x: x.sum(-1, True)),
    "largest": (900, lambda m, x: x.topk(30)[0]),
}
QUANTIZED = ("q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "mxfp4", "i4_group", "i8_channel")


def same(call, columns):
    x = random().standard_normal((ROWS, columns)).astype(np.float32)
    alone = np.concatenate([call(x[i : i + 1]) for i in range(ROWS)])
    for count in COUNTS:
        assert call(x[:count]).tobytes() == alone[:count].tobytes(), f"{count} rows at once"


@pytest.mark.rotating(5)
@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("name", CASES)
def test_rows_alone_and_together(name, on):
    columns, build = CASES[name]
    m = Module("rows")
    f = m.function("f")
    f.result("y", build(m, f.input("x", "f32", [m.symbol("n"), columns])))
    session = ch.session(ch.program(m, on))
    same(lambda x: session.run("f", x)[0], columns)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("layout", QUANTIZED)
def test_rows_of_products_with_quantized_weights(layout, on):
    m = Module("rows")
    f = m.function("f")
    w = random().standard_normal((96, 512)).astype(np.float32) / 20
    f.result("y", f.input("x", "f32", [m.symbol("n"), 512]).linear(m.weight("w", quantize(w, layout))))
    loaded = ch.runtime_program(compile(m, targets=[on]), on)
    if loaded is None:
        pytest.skip("the library is not built")
    session = loaded.session()
    same(lambda x: np.array(session.f(x)), 512)
