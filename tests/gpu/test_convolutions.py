"""Convolutions, pooling and norms of groups on a GPU: random shapes, strides, dilations, padding,
odd numbers of channels, all types, and what is fused after them; against the float64 reference, by
the runtime and by the plain executor, which must give the same bytes. Run as a program it prints
one line for each case that fails.
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
from accrt.compiler import Interpreter, Module  # noqa: E402
from accrt.compiler.ops import cat  # noqa: E402

#: name: (builder, type)
CASES = {}
ROUNDINGS = {"f32": 64, "f16": 4, "bf16": 4}


def case(name, dtype, build):
    CASES[f"{name}_{dtype}"] = (build, dtype)


def _constant(f, dtype, shape, size):
    """Numbers of this standard deviation; they repeat, so that bundles are packed well."""
    random = np.random.default_rng([kh.SEED, len(f.constants), *shape])
    name, numbers = f"{f.name}.{len(f.constants)}", np.resize(random.standard_normal(4093), shape)
    return f.constant(f.module.constant(name, kh.encode(numbers * size, dtype), dtype))


def _weight(f, dtype, outputs, inputs, kernel):
    return _constant(f, dtype, (outputs, inputs, *kernel), (inputs * kernel[0] * kernel[1]) ** -0.5)


def _conv(f, dtype, shape, ending="bias"):
    """One convolution. Endings: plain, bias, silu, channels (factors and summands of channels, then
    relu), residual, slice (of an image with more channels), nchw (many channels, first)."""
    batch, channels, height, width, outputs, kernel, stride, padding, dilation, groups = shape
    batch = f.module.symbol(f"n{len(f.module.symbols)}", maximum=64) if batch is None else batch
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    more = 3 if ending == "slice" else 0
    if ending in ("nchw", "plain"):
        x = f.input("x", dtype, [batch, channels, height, width])
    else:
        x = f.input("x", dtype, [batch, height, width, channels + more]).permute([0, 3, 1, 2])
    x = x[:, more:] if more else x
    bias = None if ending in ("plain", "residual") else _constant(f, dtype, (outputs,), 1.0)
    y = x.conv2d(_weight(f, dtype, outputs, channels // groups, kernel), bias, stride, padding, dilation, groups)
    if ending == "silu":
        y = y.silu()
    if ending == "channels":
        y = (y * _constant(f, dtype, (outputs, 1, 1), 1.0) + _constant(f, dtype, (1, outputs, 1, 1), 1.0)).relu()
    if ending == "residual":
        y = (y + f.input("r", dtype, [*y.shape])).relu()
    return y.permute([0, 2, 3, 1]) if ending in ("bias", "silu") else y


ENDINGS = ("plain", "bias", "silu", "channels", "residual", "slice", "nchw")


def _random_shapes(dtype, count=12):
    random = np.random.default_rng([kh.SEED, list(ROUNDINGS).index(dtype)])
    for _at in range(count):
        def pick(*choices):
            return choices[int(random.integers(len(choices)))]

        groups = pick(1, 1, 1, 1, 2)
        channels, outputs = groups * pick(1, 3, 8, 16, 20, 31, 64, 72, 96), groups * pick(1, 5, 8, 33, 64, 72, 130)
        kernel, dilation = (pick(1, 2, 3, 5), pick(1, 2, 3, 4)), (pick(1, 1, 2), pick(1, 1, 3))
        seen = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        padding = [int(random.integers(0, 3)) for _side in range(4)]
        height, width = (max(int(random.integers(1, 30)), s) for s in seen)
        yield (int(random.integers(1, 5)), channels, height, width, outputs, kernel, (pick(1, 2, 3), pick(1, 1, 2)), padding, dilation, groups)


for _dtype in ROUNDINGS:
    for _at, _shape in enumerate(_random_shapes(_dtype)):
        case(f"random_{_at}", _dtype, lambda f, d, s=_shape, e=ENDINGS[_at % len(ENDINGS)]: _conv(f, d, s, e))
    for _name, _shape, _ending in (
        ("many_places", (2, 64, 96, 95, 128, 3, 1, 1, 1, 1), "bias"),  # large tiles, whole
        # two places in a step
        ("many_places_residual", (1, 40, 128, 101, 136, 3, 1, 1, 1, 1), "residual"),
        ("wide", (2, 320, 32, 32, 320, 3, 1, 1, 1, 1), "bias"),  # wide tiles
        ("wide_residual", (1, 320, 64, 62, 300, 3, 1, 1, 1, 1), "residual"),
        ("any_batch", (None, 64, 96, 95, 128, 3, 1, 1, 1, 1), "silu"),
        ("few_places", (1, 256, 8, 8, 192, 3, 1, 1, 1, 1), "silu"),  # in parts
        ("few_places_residual", (2, 200, 7, 9, 100, 3, 2, 1, 1, 1), "residual"),
        ("few_outputs", (1, 160, 12, 12, 3, 3, 1, 1, 1, 1), "bias"),
        ("three_channels", (2, 3, 40, 41, 64, 7, 2, 3, 1, 1), "nchw"),
        ("points", (2, 48, 9, 10, 56, 1, 1, 0, 1, 1), "silu"),
        ("points_apart", (2, 48, 9, 10, 56, 1, 2, 0, 1, 1), "residual"),
        ("patches", (2, 3, 16, 24, 40, 8, 8, 0, 1, 1), "nchw"),
        ("one_dimension", (2, 80, 1, 301, 96, (1, 3), (1, 2), (0, 1), 1, 1), "silu"),
        ("groups", (2, 96, 10, 11, 64, 3, 1, 1, 1, 4), "channels"),
        ("depthwise", (3, 72, 13, 11, 72, (3, 5), 2, 2, 1, 72), "silu"),
        ("depthwise_odd", (2, 35, 9, 8, 35, 3, 1, 2, (2, 1), 35), "residual"),
        ("nothing", (0, 16, 9, 8, 24, 3, 1, 1, 1, 1), "bias"),
    ):
        case(_name, _dtype, lambda f, d, s=_shape, e=_ending: _conv(f, d, s, e))


def _pool(f, dtype, channels, kind):
    x = f.input("x", dtype, [2, channels, 15, 13])
    return x.max_pool2d(3, 2, 1, 1) if kind == "max" else x.avg_pool2d([2, 3], [2, 1], [1, 0])


def _norm(f, dtype, shape, groups, ending):
    x = f.input("x", dtype, shape)
    y = x.max_pool2d(1, 1).group_norm(groups, _constant(f, dtype, (shape[1],), 1.0), _constant(f, dtype, (shape[1],), 1.0), 1e-5)
    return {"silu": lambda: y.silu(), "residual": lambda: y + x, "plain": lambda: y}[ending]()


def _block(f, dtype, batch):
    """As in diffusion models: norms, time, a way around, twice the size, joins."""
    x = f.input("x", dtype, [batch, 4, 10, 12])
    first = x.conv2d(_weight(f, dtype, 48, 4, (3, 3)), _constant(f, dtype, (48,), 1.0), 1, 1)
    y = first.group_norm(8, _constant(f, dtype, (48,), 1.0), _constant(f, dtype, (48,), 1.0), 1e-5).silu()
    y = y.conv2d(_weight(f, dtype, 64, 48, (3, 3)), _constant(f, dtype, (64,), 1.0), 1, 1) + f.input("t", dtype, [batch, 64, 1, 1])
    y = y.group_norm(32, None, None, 1e-5).silu().conv2d(_weight(f, dtype, 64, 64, (3, 3)), None, 1, 1)
    y = y + first.conv2d(_weight(f, dtype, 64, 48, (1, 1)), _constant(f, dtype, (64,), 1.0))
    down = y.conv2d(_weight(f, dtype, 64, 64, (3, 3)), None, 2, 1)
    up = down.upsample_nearest(None, [2.0, 2.0]).conv2d(_weight(f, dtype, 64, 64, (3, 3)), None, 1, 1)
    return cat([up, y], 1).conv2d(_weight(f, dtype, 5, 128, (3, 3)), _constant(f, dtype, (5,), 1.0), 1, 1)


for _dtype in ROUNDINGS:
    for _kind in ("max", "mean"):
        case(f"pool_{_kind}", _dtype, lambda f, d, k=_kind: _pool(f, d, 40, k))
        case(f"pool_{_kind}_odd", _dtype, lambda f, d, k=_kind: _pool(f, d, 5, k))
    for _name, _shape, _groups, _ending in (
        ("few", [2, 64, 3, 5], 32, "silu"),
        ("ten", [1, 320, 33, 31], 32, "silu"),
        ("odd", [3, 21, 9, 7], 7, "residual"),
        ("many", [2, 2560, 4, 4], 32, "plain"),
        ("large", [1, 16, 200, 201], 4, "plain"),
        ("whole", [2, 24, 5, 5], 1, "silu"),
        ("empty", [0, 24, 5, 5], 3, "silu"),
    ):
        case(f"group_norm_{_name}", _dtype, lambda f, d, s=_shape, g=_groups, e=_ending: _norm(f, d, s, g, e))
    case("block", _dtype, lambda f, d: _block(f, d, 2))
    case("block_of_any_batch", _dtype, lambda f, d: _block(f, d, f.module.symbol(f"batch_{d}", maximum=64)))


def module():
    m = Module("convolutions")
    for name, (build, dtype) in CASES.items():
        f = m.function(name)
        f.result("y", build(f, dtype))
    return m


def run_case(program, m, name):
    import cuda_exec

    _build, dtype = CASES[name]
    function = m.functions[name]
    random = np.random.default_rng([kh.SEED, len(name)])
    batch = int(random.integers(1, 5))
    inputs = []
    for i in function.inputs:
        shape = [batch if not isinstance(size, int) else size for size in i.value.shape]
        inputs.append(kh.encode(random.standard_normal(shape), i.value.dtype))
    got = cuda_exec.Session(program).run(name, *[x.copy() for x in inputs])
    ch.both_agree(m, program.bundle.data, name, inputs, {}, got, on_cuda=True)
    expected = Interpreter(m).run(name, *inputs)
    roundings, scale = ROUNDINGS[dtype] * (4 if "block" in name else 1), 4.0
    for result, have, want in zip(function.results, got, expected):
        ch.assert_close(have, want, result.value.dtype, roundings, scale, f"seed {kh.SEED}: ")


@pytest.fixture(scope="module")
def suite():
    why = test_ops.reason("convolutions")
    if why:
        pytest.skip(why)
    import cuda_exec

    m = module()
    return m, cuda_exec.Program(test_ops.built("convolutions", m))


@pytest.mark.parametrize("name", CASES)
def test_convolution(suite, name):
    m, program = suite
    run_case(program, m, name)


def main():
    import cuda_exec

    m = module()
    program = cuda_exec.Program(test_ops.built("convolutions", m))
    failed = 0
    for name in [n for n in CASES if not sys.argv[1:] or any(word in n for word in sys.argv[1:])]:
        try:
            with np.errstate(all="ignore"):
                run_case(program, m, name)
        except Exception as error:  # noqa: BLE001 - every kind of failure is a line of the table
            failed += 1
            lines = [line for line in str(error).splitlines() if line.strip()]
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAIL {name}: {type(error).__name__}: {' | '.join(lines[:4])[:200]} ({os.path.basename(where.filename)}:{where.lineno})")
            if "cuCtxSynchronize" in str(error):
                print("the context is lost; the rest was not run")
                break
    print(f"{len(CASES)} cases, {failed} failed, {program.dispatches} launches")


if __name__ == "__main__":
    main()
