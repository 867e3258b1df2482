"""Quantized weights on a GPU: products with each layout that has kernels, from one row to so many
that the weight becomes a plain one, layouts that are made plain at load, and lookups; run by the
runtime, against float64 over the dequantized weights. Run as a program it prints one line for each
case that fails.
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Module, encodings, packing  # noqa: E402
from test_packed_kernels import random_weight  # noqa: E402

HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-9}
#: Rows: one, the ends of what each kernel takes, and more than are read packed.
ROWS = (1, 3, 8, 9, 16, 17, 33, 64, 65, 130)

#: name: (layout, type of x, rows of the weight, k, group, options of random_weight)
CASES = {}


def _cases():
    for dtype in ("f16", "bf16"):
        for layout in ("q4_k", "q8_0", "q4_0", "i8_channel", "i4_group_asym", "f8_channel", "mxfp4", "mxfp8"):
            yield layout, dtype, 200, 1024, 128 if layout == "i4_group_asym" else 0, {}
        for layout in ("q4_1", "q5_0", "q5_1", "iq4_nl"):
            yield layout, dtype, 200, 352, 0, {}
        for layout in ("q2_k", "q3_k", "q5_k", "q6_k"):
            yield layout, dtype, 200, 768, 0, {}
        yield "i4_group", dtype, 40, 384, 64, {}
        for layout in ("nvfp4", "ct_nvfp4"):
            yield layout, dtype, 200, 1040, 0, {}
        yield "ggml_nvfp4", dtype, 200, 1088, 0, {}
        yield "ct_i4_asym", dtype, 203, 1024, 128, {}
        yield "ct_i8", dtype, 77, 768, 128, {}
        yield "ct_i8_asym", dtype, 77, 768, 32, {}
        yield "i8_asym", dtype, 200, 330, 330, {}
        yield "f8_channel", dtype, 33, 300, 0, {"e5m2": True}
    for group in (32, 128, 256):
        yield "i4_group", "f16", 70, 640, group, {}
    yield "i4_group_asym", "f16", 70, 640, 32, {"scales": np.float32}
    yield "i4_group_asym", "bf16", 70, 640, 64, {"bf16": True}
    yield "i8_group", "f16", 17, 320, 64, {}
    yield "i8_channel", "f16", 5, 131, 0, {"scales": np.float32}
    yield "f8_tensor", "f16", 130, 200, 0, {}
    yield "f8_block128", "f16", 300, 390, 0, {"scales": np.float32}
    yield "q4_k", "f16", 2000, 2048, 0, {}
    for layout, at in (("f8_channel", (7, 100)), ("mxfp8", (7, 100)), ("mxfp4", (3, 2)), ("nvfp4", (3, 2))):
        yield layout, "f16", 40, 512, 0, {"nan_at": at}
    # So many rows that blocks have 2, 4, 7, 8, 14 and 16 tiles.
    yield "mxfp4", "bf16", 8440, 256, 0, {}
    yield "q4_k", "f16", 16890, 512, 0, {}
    yield "i4_group", "f16", 28660, 256, 128, {}
    yield "i4_group_asym", "bf16", 33780, 256, 64, {}
    yield "f8_channel", "f16", 29560, 256, 0, {}
    yield "i8_channel", "bf16", 33790, 128, 0, {}
    yield "q6_k", "f16", 8440, 256, 0, {}
    yield "q6_k", "bf16", 28660, 256, 0, {}
    yield "q5_0", "f16", 16890, 96, 0, {}
    yield "q5_1", "f16", 28660, 64, 0, {}
    yield "q2_k", "f16", 33780, 256, 0, {}
    yield "mxfp4", "f16", 16, 32, 0, {}
    yield "nvfp4", "f16", 16, 16, 0, {}
    yield "ct_nvfp4", "bf16", 8440, 256, 0, {}
    yield "ct_nvfp4", "f16", 28660, 256, 0, {}
    yield "ct_i8_asym", "bf16", 33790, 128, 64, {}
    for layout in ("gptq_v1", "awq", "ggml_mxfp4", "nvfp4"):
        yield layout, "f16", 40, 512, 0, {}
    yield "q4_k", "f32", 40, 512, 0, {}


for _index, _case in enumerate(_cases()):
    CASES[f"{_case[0]}_{_case[1]}_{_case[2]}x{_case[3]}_{_index}"] = _case


#: Cases that have a second result, with bias, activation and residual.
WITH_EPILOGUE = [name for name in CASES if name.startswith(("q4_k_f16_200", "f8_channel_f16_200"))]


#: Rows of these are looked up: of the last as they are stored, of the others in what products
#: read.
LOOKED_UP = [name for name in CASES if name.startswith(("q4_k_f16_200", "q8_0_bf16_200", "q4_1_f", "q5_0_f16_200", "q5_1_b", "iq4_nl_f", "q2_k_f16_200", "q3_k_f", "q5_k_f", "q6_k_f16_200", "i4_group_asym_f16_70"))] + [list(CASES)[-1]]

#: A column of each is in a group that is not there.
ASTRAY = {f"astray_{layout}_{i}": (layout, bad) for i, bad in enumerate((-1, 2, 2**31 - 1)) for layout in ("i4_group", "i4_group_asym", "gptq_v1", "gptq_v2")}


def astray(name):
    """The weight, and its values: NaN in column 77."""
    layout, bad = ASTRAY[name]
    q = random_weight(layout, 24, 128, np.random.default_rng([kh.SEED, *name.encode()]))
    q = encodings.Quantized(layout, q.shape, {**q.components, "group_index": np.arange(128, dtype=np.int32) // 64}, q.group)
    values = encodings.dequantize(q)
    q.components["group_index"][77], values[:, 77] = bad, np.nan
    return q, values


def add_astray(m, name, rows):
    f = m.function(name)
    w = m.weight("w." + name, astray(name)[0])
    f.result("all", f.as_value(w) * 1.0)
    f.result("rows", f.as_value(w).embedding(f.input("index", "i32", [rows])))
    f.result("product", f.input("x", "f32", [rows, 128]).linear(w))


def weight(name):
    layout, dtype, n, k, group, more = CASES[name]
    q = random_weight(layout, n, k, np.random.default_rng([kh.SEED, *name.encode()]), group=group, **more)
    if "nan_at" in more and layout in ("mxfp4", "nvfp4"):
        q.components["scales"].reshape(n, -1)[more["nan_at"]] = 255
    elif "nan_at" in more:
        q.components["data"].reshape(n, k)[more["nan_at"]] = 0x7F
    return encodings.Quantized(q.layout, q.shape, q.components, q.group, dtype, q.types)


def module():
    m = Module("packed")
    rows = m.symbol("rows", minimum=1, maximum=4096)
    for name, (_layout, dtype, n, k, _group, _more) in CASES.items():
        f = m.function(name)
        x, w = f.input("x", dtype, [rows, k]), m.weight("w." + name, weight(name))
        f.result("y", x.linear(w))
        if name in WITH_EPILOGUE:
            bias = m.constant("b." + name, np.linspace(-1, 1, n).astype(np.float16))
            f.result("z", x.linear(w, bias).relu() + f.input("r", dtype, [rows, n]))
    f = m.function("lookup")
    index = f.input("index", "i32", [rows])
    for name in LOOKED_UP:
        f.result(f"y {name}", f.as_value(m.constants["w." + name]).embedding(index))
    for name in ASTRAY:
        add_astray(m, name, rows)
    return m


def bound(name, q, x, w, exact):
    return limit(packing.form_of(q), CASES[name][1], x, w, exact)


def limit(form, dtype, x, w, exact):
    """What a product may be off by, with the rows and the type of x."""
    magnitude = np.abs(x) @ np.abs(w).T
    plain = packing.packed_bytes(form, "cuda") is None or dtype == "f32"
    rounded = 1.01 * HALF_ULP[dtype] * magnitude if plain or len(x) > 64 else 0.0
    if form.codes in ("q4", "q5", "q2") or form.has("zeros"):
        magnitude = magnitude * 4
    return rounded + (x.shape[1] + 64) * HALF_ULP["f32"] * magnitude + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14) + 2.0**-20 * (dtype == "f16")


def run_case(m, session, name):
    _layout, dtype, n, k, _group, _more = CASES[name]
    q = weight(name)
    w = encodings.dequantize(q).astype(np.float64)
    for rows in ROWS:
        random = np.random.default_rng([kh.SEED, rows, *name.encode()])
        x = kh.encode(random.standard_normal((rows, k)), dtype)
        two = len(m.functions[name].results) == 2
        residual = kh.encode(random.standard_normal((rows, n)), dtype)
        made = [np.empty((rows, n), kh.NUMPY[dtype])] * (1 + two)
        got = ch.run_in_runtime(session, m, name, [x, residual][: 1 + two], {}, made)
        values = kh.decode(x, dtype).astype(np.float64)
        exact = values @ w.T
        limit = bound(name, q, values, w, exact)
        # beyond f16
        limit = np.where(np.abs(exact) > 60000, np.inf, limit) if dtype == "f16" else limit
        error = np.abs(kh.decode(got[0], dtype) - exact)
        wrong = ~((error <= limit) | (np.isnan(error) & np.isnan(exact)))
        assert not wrong.any(), f"{rows} rows: error {error[wrong].max():.3g} at {np.argwhere(wrong)[0]}, {wrong.sum()} too large"
        if two:
            finished = np.maximum(exact + np.linspace(-1, 1, n).astype(np.float16), 0) + kh.decode(residual, dtype)
            error = np.abs(kh.decode(got[1], dtype) - finished)
            assert (error <= 2 * limit + 4 * HALF_ULP[dtype] * (np.abs(finished) + 1)).all(), f"{rows} rows, finished: error {error.max():.3g}"


def made():
    m = module()
    loaded = ch.runtime_program(test_ops.built("quantized", m), "", "cuda:0")
    assert loaded is not None, "the library has no device cuda:0"
    return m, loaded.session()


@pytest.fixture(scope="module")
def suite():
    why = test_ops.reason("quantized")
    if why:
        pytest.skip(why)
    return made()


@pytest.mark.parametrize("name", CASES)
def test_quantized(suite, name):
    run_case(*suite, name)


def test_lookup(suite):
    m, session = suite
    check_lookup(m, session)


def check_lookup(m, session):
    index = np.array([3, 39, 0, 3], np.int32)
    made = [np.empty((4, CASES[name][3]), kh.NUMPY[CASES[name][1]]) for name in LOOKED_UP]
    for name, got in zip(LOOKED_UP, ch.run_in_runtime(session, m, "lookup", [index], {}, made)):
        dtype = CASES[name][1]
        want = kh.encode(encodings.dequantize(weight(name))[index].astype(np.float64), dtype)
        np.testing.assert_array_equal(np.asarray(got).view(want.dtype), want, err_msg=name)


@pytest.mark.parametrize("name", ASTRAY)
def test_groups_that_are_not_there(suite, name):
    check_astray(*suite, name)


def check_astray(m, session, name):
    """Device code cannot fail one call: NaN, and nothing outside is read."""
    values, index = astray(name)[1], np.array([5, 23, 0], np.int32)
    made = [np.empty(shape, np.float32) for shape in (values.shape, (3, 128), (3, 24))]
    every, rows, product = ch.run_in_runtime(session, m, name, [index, np.ones((3, 128), np.float32)], {}, made)
    np.testing.assert_array_equal(every, values)
    np.testing.assert_array_equal(rows, values[index])
    assert np.isnan(product).all()


def main():
    why = test_ops.reason("quantized")
    if why:
        print(why)
        return 0
    suite = made()
    failed = 0
    names = [*CASES, *ASTRAY, "lookup"]
    for name in names:
        try:
            if name == "lookup":
                check_lookup(*suite)
            elif name in ASTRAY:
                check_astray(*suite, name)
            else:
                run_case(*suite, name)
        except Exception:  # noqa: BLE001 - each case is told of
            failed += 1
            print(f"FAIL {name}: {traceback.format_exc().strip().splitlines()[-1][:300]}")
    print(f"{len(names)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
