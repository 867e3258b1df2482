"""The fast CUDA kernels at sizes and forms that choose each of them: products from one row to many,
attention of all head sizes, masks and groupings, norms and softmax of short, long and odd rows;
compiled, run by the runtime and by the plain executor, and both held against the float64 reference
as in test_ops.py. They must give the same bytes, except where the runtime has a vendor's product to
choose and the executor has none. Run as a program it prints one line for each case that fails.
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
import test_compiler_ops as host_cases  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402
from accrt.compiler import expr as ex  # noqa: E402

#: name: (builder, roundings and scale as in test_ops, values of n and m)
CASES = {}


def case(name, shapes, roundings=4, scale=8.0):
    def register(build):
        CASES[name] = (build, roundings, scale, shapes)

    return register


# ---- Products ------------------------------------------------------------------------------------


def _weights(f, dtype, rows, columns, seed):
    """[rows, columns], whose products with numbers up to 2 stay near 1."""
    random = np.random.default_rng(seed)
    weight = kh.encode(random.uniform(-1, 1, (rows, columns)) / np.sqrt(columns), dtype)
    bias = kh.encode(random.uniform(-1, 1, (rows,)), dtype)
    return f.module.constant(f"{f.name}.w", weight, dtype), f.module.constant(f"{f.name}.b", bias, dtype)


def _product(f, n, dtype, columns, inner, form):
    x = f.input("x", dtype, [n, inner])
    weight, bias = _weights(f, dtype, columns, inner, 11)
    y = x.linear(weight) if form == "plain" else x.linear(weight, bias)
    if form == "residual":
        return y + f.input("r", dtype, [n, columns])
    return {"gelu": lambda: y.gelu(), "gelu_tanh": lambda: y.gelu("tanh"), "relu": y.relu, "silu": y.silu}.get(form, lambda: y)()


#: One row, the last and the first of each kernel's range, and rows that fill no tile.
ROWS = tuple((rows, 1) for rows in (1, 16, 17, 64, 65, 130, 301))
for _dtype in ("f16", "bf16"):
    for _columns, _inner in ((384, 384), (1536, 384), (384, 1536), (130, 33), (7, 1000), (1, 1)):
        for _form in ("plain", "bias", "residual", "gelu", "relu"):
            case(f"product_{_dtype}_{_columns}x{_inner}_{_form}", ROWS)(
                lambda f, n, m, d=_dtype, c=_columns, k=_inner, form=_form: _product(f, n, d, c, k, form)
            )
    for _form in ("bias", "residual", "gelu", "gelu_tanh", "silu"):
        case(f"product_{_dtype}_large_{_form}", ((1500, 1),))(lambda f, n, m, d=_dtype, form=_form: _product(f, n, d, 1000, 200, form))
    case(f"matmul_{_dtype}_kn", ((1, 1), (40, 24), (129, 130)))(
        lambda f, n, m, d=_dtype: f.input("x", d, [3, n, 40]) @ f.input("y", d, [3, 40, m])
    )
    case(f"matmul_{_dtype}_nk", ((1, 1), (40, 24), (129, 130)))(
        lambda f, n, m, d=_dtype: f.input("x", d, [3, n, 40]) @ f.input("y", d, [3, m, 40]).transpose(1, 2)
    )
    case(f"matmul_{_dtype}_one_b", ((1, 1), (40, 24), (129, 130)))(
        lambda f, n, m, d=_dtype: f.input("x", d, [2, 3, n, 40]) @ f.input("y", d, [3, 40, m])
    )


# ---- Attention -----------------------------------------------------------------------------------


def _attention(f, n, m, dtype, head, heads, kv_heads, mask, causal):
    q = f.input("q", dtype, [2, n, heads, head]).transpose(1, 2)
    k, v = (f.input(name, dtype, [2, m, kv_heads, head]).transpose(1, 2) for name in "kv")
    seen = {
        "none": lambda: None,
        "padding": lambda: f.input("mask", "bool", [2, 1, 1, m]),
        "any": lambda: f.input("mask", "bool", [2, heads, n, m]),
        "added": lambda: f.input("mask", dtype, [n, m]),
    }[mask]()
    return q.scaled_dot_product_attention(k, v, seen, is_causal=causal)


#: (queries, keys): decoding, blocks that are not full, more than one block.
LENGTHS = ((1, 1), (1, 300), (3, 5), (33, 65), (130, 200))
for _dtype in ("f16", "bf16"):
    for _head in (25, 32, 40, 64, 80, 96, 100, 128, 136, 160, 192, 200, 256):
        for _mask, _causal in (("none", False), ("none", True), ("padding", False), ("any", False), ("added", True)):
            case(f"attention_{_dtype}_{_head}_{_mask}_{int(_causal)}", LENGTHS, scale=2)(
                lambda f, n, m, d=_dtype, h=_head, mask=_mask, c=_causal: _attention(f, n, m, d, h, 4, 2, mask, c)
            )
    for _head in (32, 64, 96, 128, 160, 192, 256):
        case(f"decode_{_dtype}_{_head}", ((1, 1), (1, 7), (1, 300), (1, 1025)), scale=2)(
            lambda f, n, m, d=_dtype, h=_head: _attention(f, 1, m, d, h, 8, 2, "none", True)
        )
        case(f"decode_{_dtype}_{_head}_many_heads", ((1, 1), (1, 300)), scale=2)(
            lambda f, n, m, d=_dtype, h=_head: _attention(f, 1, m, d, h, 80, 80, "padding", False)
        )


# ---- Norms and softmax ---------------------------------------------------------------------------

for _dtype in ("f32", "f16", "bf16"):
    _roundings = 64 if _dtype == "f32" else 8
    for _size in (1, 7, 384, 1000, 8192, 20001):
        case(f"layer_norm_{_dtype}_{_size}", ((1, 1), (5, 1), (700, 1)) if _size == 384 else ((3, 1),), _roundings)(
            lambda f, n, m, d=_dtype, s=_size: f.input("x", d, [n, s]).layer_norm(f.input("w", d, [s]), f.input("b", d, [s]), 1e-5)
        )
        case(f"rms_norm_{_dtype}_{_size}", ((3, 1),), _roundings)(
            lambda f, n, m, d=_dtype, s=_size: f.input("x", d, [n, s]).rms_norm(f.input("w", "f32", [s]), 1e-5)
        )
        case(f"softmax_{_dtype}_{_size}", ((3, 1),), _roundings, 1.0)(
            lambda f, n, m, d=_dtype, s=_size: f.input("x", d, [n, s]).softmax(-1)
        )
    case(f"rows_unknown_{_dtype}", ((3, 8), (5, 333), (2, 4096), (1, 30000)), _roundings)(
        lambda f, n, m, d=_dtype: f.input("x", d, [n, m]).layer_norm(f.input("w", d, [m]), f.input("b", d, [m]), 1e-5).softmax(-1)
    )


# ---- Running -------------------------------------------------------------------------------------


def module():
    m = Module("fast")
    sizes = [m.symbol(name, maximum=1 << 17) for name in ("n", "m")]
    for name, (build, *_rest) in CASES.items():
        f = m.function(name)
        f.result("y", build(f, *sizes))
        host_cases._bind_sizes(f, sizes)
    return m


def made():
    import cuda_exec

    m = module()
    data = test_ops.built("fast", m)
    loaded = ch.runtime_program(data, "", "cuda:0")
    assert loaded is not None, "the library has no device cuda:0"
    return m, cuda_exec.Program(data), loaded.session()


def run_case(m, program, session, name):
    import cuda_exec

    _build, roundings, scale, shapes = CASES[name]
    function = m.functions[name]
    for n, k in shapes:
        random = np.random.default_rng([kh.SEED, n, k])
        sizes = {"n": n, "m": k}
        tensors = [i.value for i in function.inputs if i.value is not None]
        inputs = [ch.values(random, t.dtype, [ex.evaluate(s, sizes) for s in t.shape], -2.0, 2.0) for t in tensors]
        scalars = {i.name: sizes[i.symbol] for i in function.inputs if i.symbol}
        got = cuda_exec.Session(program).run(name, *[x.copy() for x in inputs], **scalars)
        ours = ch.run_in_runtime(session, m, name, [x.copy() for x in inputs], scalars, got)
        if not name.startswith(("product_", "matmul_")):
            for have, want in zip(ours, got):
                assert have.tobytes() == want.tobytes(), f"{n} x {k}: the runtime and the executor differ"
        expected = Interpreter(m).run(name, *inputs, **scalars)
        for result, have, run, want in zip(function.results, got, ours, expected):
            ch.assert_close(have, want, result.value.dtype, roundings, scale, f"{n} x {k}: ")
            ch.assert_close(run, want, result.value.dtype, roundings, scale, f"{n} x {k}, the runtime: ")


@pytest.fixture(scope="module")
def suite():
    why = test_ops.reason("fast")
    if why:
        pytest.skip(why)
    return made()


@pytest.mark.parametrize("name", CASES)
def test_fast(suite, name):
    run_case(*suite, name)


def main():
    why = test_ops.reason("fast")
    if why:
        print(why)
        return 0
    suite = made()
    failed = 0
    for name in CASES:
        try:
            run_case(*suite, name)
        except Exception:  # noqa: BLE001 - each case is told of
            failed += 1
            print(f"FAIL {name}: {traceback.format_exc().strip().splitlines()[-1][:300]}")
    print(f"{len(CASES)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
