"""Sums over large dimensions keep the error bounds of f32: whatever adds up 10^5 to 10^6 elements,
of odd counts, is close to float64."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, Module
from accrt.compiler.kernels.conv import blocking

RANDOM = np.random.default_rng([kh.SEED, 13])
#: Where a result is no plain sum: the error of each element by the sum of its size and the results'
#: root mean square, in attention, and in all else.
MOST, LEAST = 6e-6, 2e-6
#: f32's unit roundoff.
UNIT = 2.0**-24
#: Terms that are one chain of additions at most: of products and windows (BLOCK_K of gemm_core.h
#: and grouped.c, BLOCK of window.c), of products whose operands are gathered or widened (SLICE_K of
#: gemm_core.h), and of sums, whose chains are joined in double (BLOCK of reduce.h).
CHAIN, SLICE, SUM_CHAIN = 4096, 192, 1024


def odd(low, high):
    """A random odd number."""
    return int(RANDOM.integers(low // 2, high // 2)) * 2 + 1


#: Elements of a row that is reduced, products of one sum, elements of a side of a square window.
N, K, SIDE = odd(200_000, 300_000), odd(100_000, 130_000), odd(301, 351)


def windows(x, w, groups=1):
    """A convolution whose kernel is almost as large as the image, in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    rows, columns = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    x, w = x.reshape(len(x), groups, -1, *x.shape[2:]), w.reshape(groups, -1, *w.shape[1:])
    places = [(i, j) for i in range(rows) for j in range(columns)]
    sums = [np.einsum("ngcij,gocij->ngo", x[..., i : i + w.shape[3], j : j + w.shape[4]], w, optimize=True) for i, j in places]
    return np.stack(sums, -1).reshape(len(x), -1, rows, columns)


def means(x, height, width):
    channels = x.shape[1]
    return windows(x, np.full((channels, 1, height, width), 1.0 / (height * width)), channels)


#: What is faster than the interpreter, which goes through places of windows one by one.
REFERENCES = {
    "conv1d": windows, "conv2d": windows, "conv2d of many channels": windows, "conv2d of each channel": lambda x, w: windows(x, w, 4),
    "avg_pool": lambda x: means(x, SIDE - 1, SIDE), "avg_pool of one dimension": lambda x: means(x, 1, K - 2),
}  # fmt: skip


#: By name: shapes of inputs, and what is made of them.
CASES = {
    "sum": ([(8, N)], lambda f, x: x.sum(-1)),
    "sum of columns": ([(N // 4, 9)], lambda f, x: x.sum(0)),
    "sum of all": ([(3, N)], lambda f, x: x.sum()),
    "mean of 10^6": ([(8, 999_999)], lambda f, x: x.mean(-1)),
    "variance": ([(8, N)], lambda f, x: x.var(-1)),
    "norm": ([(8, N)], lambda f, x: (x * x).sum(-1).sqrt()),
    "softmax": ([(4, N)], lambda f, x: x.softmax(-1)),
    "softmax over the first": ([(N // 8, 3)], lambda f, x: x.softmax(0)),
    "log_softmax": ([(4, N)], lambda f, x: x.log_softmax(-1)),
    "logsumexp": ([(8, N)], lambda f, x: x.logsumexp(-1)),
    "layer_norm of 10^6": ([(2, 999_999)], lambda f, x: x.layer_norm()),
    "rms_norm": ([(4, N)], lambda f, x: x.rms_norm()),
    "group_norm": ([(1, 4, SIDE, SIDE)], lambda f, x: x.group_norm(2)),
    "cumsum": ([(3, N)], lambda f, x: x.cumsum(-1)),
    "cumsum over the first": ([(N // 8, 3)], lambda f, x: x.cumsum(0)),
    "linear": ([(3, K), (7, K)], lambda f, x, w: x.linear(w)),
    "linear of many rows": ([(33, K // 2), (5, K // 2)], lambda f, x, w: x.linear(w)),
    "weights": ([(3, K), (7, K)], lambda f, x, w: x.linear(w)),
    "weights of many rows": ([(33, K // 2), (5, K // 2)], lambda f, x, w: x.linear(w)),
    "matmul": ([(3, K), (K, 5)], lambda f, x, y: x.matmul(y)),
    "matmul of 10^6": ([(2, 999_999), (999_999, 3)], lambda f, x, y: x.matmul(y)),
    "matmul, transposed": ([(K, 3), (5, K)], lambda f, x, y: x.permute([1, 0]).matmul(y.permute([1, 0]))),
    "bmm": ([(2, 3, K), (2, K, 5)], lambda f, x, y: x.matmul(y)),
    "conv1d": ([(1, 101, 1, K // 101), (8, 101, 1, K // 101 - 4)], lambda f, x, w: x.conv2d(w)),
    "conv2d": ([(1, 101, SIDE // 9, SIDE // 9), (8, 101, SIDE // 9 - 1, SIDE // 9 - 2)], lambda f, x, w: x.conv2d(w)),
    "conv2d of many channels": ([(1, K // 9, 3, 3), (8, K // 9, 3, 3)], lambda f, x, w: x.conv2d(w)),
    "conv2d of each channel": ([(1, 4, SIDE, SIDE), (4, 1, SIDE - 1, SIDE - 1)], lambda f, x, w: x.conv2d(w, groups=4)),
    "avg_pool": ([(1, 4, SIDE, SIDE)], lambda f, x: x.avg_pool2d([SIDE - 1, SIDE], stride=[1, 1])),
    "avg_pool of one dimension": ([(1, 4, 1, K)], lambda f, x: x.avg_pool2d([1, K - 2], stride=[1, 1])),
    "attention": ([(1, 1, 1, 16), (1, 1, K, 16), (1, 1, K, 16)], lambda f, q, k, v: q.scaled_dot_product_attention(k, v)),
    "attention of many rows": ([(1, 2, 20, 16), (1, 2, K // 4, 16), (1, 2, K // 4, 16)], lambda f, q, k, v: q.scaled_dot_product_attention(k, v)),
    "grouped": ([(5, K // 2), (2, K // 2, 70)], lambda f, x, w: x.grouped_matmul(w, f.arange(2).to_copy("i32") * 2 + 3)),
    "softmax's gradient": ([(4, N), (4, N)], lambda f, g, x: g.softmax_backward(x.softmax(-1))),
    "layer_norm's gradient": ([(4, N), (4, N), (N,)], lambda f, g, x, w: g.layer_norm_backward(x, w, 1e-5)[0]),
    "rms_norm's gradient": ([(4, N), (4, N), (N,)], lambda f, g, x, w: g.rms_norm_backward(x, w, 1e-6)[0]),
}  # fmt: skip


#: Results that are plain sums: how many terms each has, how many values are multiplied in each
#: term, and what the sum is multiplied by.
SUMS = {
    "sum": (N, 1, 1.0), "sum of columns": (N // 4, 1, 1.0), "sum of all": (3 * N, 1, 1.0), "mean of 10^6": (999_999, 1, 1 / 999_999),
    "linear": (K, 2, 1.0), "linear of many rows": (K // 2, 2, 1.0), "weights": (K, 2, 1.0), "weights of many rows": (K // 2, 2, 1.0),
    "matmul": (K, 2, 1.0), "matmul of 10^6": (999_999, 2, 1.0), "matmul, transposed": (K, 2, 1.0), "bmm": (K, 2, 1.0),
    "conv1d": (101 * (K // 101 - 4), 2, 1.0), "conv2d": (101 * (SIDE // 9 - 1) * (SIDE // 9 - 2), 2, 1.0),
    "conv2d of many channels": (K // 9 * 9, 2, 1.0), "conv2d of each channel": ((SIDE - 1) ** 2, 2, 1.0),
    "avg_pool": ((SIDE - 1) * SIDE, 1, 1 / ((SIDE - 1) * SIDE)), "avg_pool of one dimension": (K - 2, 1, 1 / (K - 2)),
    "grouped": (K // 2, 2, 1.0),
}  # fmt: skip
#: Cases whose second tensor is a weight, which is packed.
WEIGHTS = ("weights", "weights of many rows", "conv1d", "conv2d", "conv2d of many channels", "conv2d of each channel")
#: bf16 in the cases that have kernels of its own for it.
SHORT = ("weights", "matmul", "conv2d", "sum", "layer_norm of 10^6", "softmax", "cumsum", "attention", "grouped")


def chains_of(name, dtype):
    """How many terms are one chain of additions, and how many chains a second one joins."""
    terms = SUMS[name][0]
    if name.startswith(("sum", "mean")):
        return min(SUM_CHAIN, terms), 0
    if name not in ("conv1d", "conv2d", "conv2d of many channels"):
        gathered = name.startswith(("linear", "matmul", "bmm")) or (dtype == "bf16" and name.startswith("weights"))
        length = min(SLICE if gathered else CHAIN, terms)
        return length, math.ceil(terms / length)
    # a row of the kernel, or so many channels of one place, as conv.py chooses
    (_, channels, height, width), (outputs, _, *kernel) = CASES[name][0]
    window = types.SimpleNamespace(kernel=tuple(kernel), stride=(1, 1), dilation=(1, 1))
    at_once = blocking(window, channels, outputs, height - kernel[0] + 1, width - kernel[1] + 1)["slice"]
    length = min(channels * kernel[1] if at_once == channels else at_once, CHAIN)
    return length, math.ceil(terms / length)


def largest_error(name, kind, dtype, wanted):
    """What the error of each element may be.

    An addition that gives s has an error of its own, which is at most UNIT * |s|. Such errors are
    independent, with a mean of 0, where terms are random (Higham and Mary, "A New Approach to
    Probabilistic Rounding Error Analysis", 2019, and "Sharper Probabilistic Backward Error Analysis
    for Basic Linear Algebra Kernels with Random Data", 2020). An error that is uniform in its
    interval has a standard deviation of UNIT * |s| / sqrt(3). So the error of a sum has a standard
    deviation of UNIT / sqrt(3) * sqrt(sum of s * s), over all partial sums s. A partial sum of k
    random terms of mean m and standard deviation d has E[s * s] = k * d * d + k * k * m * m. Added
    up over the chains that is the first part of `partial`. The chain that joins them ends at the
    sum itself, far from its mean for some results: its partial sums lie around the line to the sum,
    and what they lie off it is less than a walk without an end does. Errors pass six such standard
    deviations once in 1e8 results. Two roundings are added: of the factor, and of the result.

    The bound follows from the terms and not from the results: the root mean square of few results
    may be small by chance, and the rounding errors of their terms are not small with it.
    """
    if name not in SUMS:
        return (MOST if name.startswith("attention") else LEAST) * (np.abs(wanted) + math.sqrt(np.mean(np.square(wanted))))
    terms, factors, share = SUMS[name]
    mean, square = (0.5, 1 / 3) if kind == "positive" else (0.0, 1.0)
    mean, square = mean**factors, square**factors
    chain, chains = chains_of(name, dtype)
    variance = square - mean * mean
    partial = terms * (variance * chain / 2 + mean * mean * chain * chain / 3) + chains * (terms * variance / 2 + (wanted / share) ** 2 / 3)
    return 6 * UNIT / math.sqrt(3) * np.sqrt(partial) * share + 2 * UNIT * np.abs(wanted)


@pytest.mark.rotating(16)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_long_sums(name, dtype):
    """Of numbers around 0, and of positive ones, whose sums grow all the time."""
    if dtype == "bf16" and name not in SHORT:
        pytest.skip("as in f32")
    shapes, build = CASES[name]
    for kind in ("around 0", "positive"):
        random = np.random.default_rng([kh.SEED, len(name), kind == "positive"])
        numbers = [random.random(shape, np.float32) if kind == "positive" else random.standard_normal(shape, np.float32) for shape in shapes]
        given = [kh.encode(n, dtype) for n in numbers]
        module = Module("long")
        function = module.function("forward")
        inputs = [function.input("x", dtype, list(shapes[0]))]
        for i, shape in enumerate(shapes[1:], 1):
            fixed = name in WEIGHTS
            inputs.append(function.constant(module.constant("w", given[1], dtype)) if fixed else function.input(f"x{i}", dtype, list(shape)))
        function.result("y", build(function, *inputs))
        called = given[:1] if name in WEIGHTS else given
        (got,) = ch.session(ch.program(module)).run("forward", *called)
        reference = REFERENCES.get(name)
        wanted = reference(*[kh.decode(g, dtype) for g in given]) if reference else Interpreter(module).run("forward", *called)[0]
        # the rounding of the result's type
        own = ch.EPSILON["bf16"] / 2 * np.abs(wanted) if dtype == "bf16" else 0.0
        assert got.shape == wanted.shape
        error = float(((np.abs(kh.decode(got, dtype) - wanted) - own) / largest_error(name, kind, dtype, wanted)).max())
        print(f"{name}, {kind}, {dtype}: {error:.2g} of what it may be")
        assert error <= 1, f"{name} of {shapes}, {kind}: {error:.3g} of the error that it may have, seed {kh.SEED}"
