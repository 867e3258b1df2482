"""Operations named as ATen's beside torch itself, by the interpreter and compiled: with NaN,
infinities, negative zero, ties, empty tensors and tensors without dimensions.
tests/python/test_aten.py has their types and what is refused.

Marked `torch`: `./dev torch-test` and `./dev check models` run them.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, Module

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
pytestmark = pytest.mark.torch

TYPES = dict(bool=torch.bool, i8=torch.int8, u8=torch.uint8, i32=torch.int32, i64=torch.int64, f16=torch.float16, bf16=torch.bfloat16,
             f32=torch.float32, f64=torch.float64)  # fmt: skip
FLOATS, WHOLE = ("f32", "f16", "bf16", "f64"), ("i64", "i32")
INF, NAN = float("inf"), float("nan")
SPECIAL = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 20.0, -20.0, 88.0, -88.0, 1e-3, -1e-3, 6e4, -6e4, 1.5])
SMALL = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 2.0, -3.0, 0.5, -2.5])
TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


class Case(NamedTuple):
    """`inputs`: arrays, or (array, type); `ours` and `theirs` are called with the values. `exact`:
    bits, also zeros' signs."""

    inputs: Sequence[Any]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    types: Tuple[str, ...] = FLOATS
    scale: float = 1.0


def whole(*shape: int, low: int = -5, high: int = 6, seed: int = 1) -> np.ndarray:
    return np.random.default_rng([kh.SEED, seed, *shape]).integers(low, high, shape)


def real(*shape: int, seed: int = 2) -> np.ndarray:
    return np.round(np.random.default_rng([kh.SEED, seed, *shape]).standard_normal(shape) * 3, 2)


def with_specials(*shape: int) -> np.ndarray:
    """Numbers among which are ties, NaN, infinities and both zeros."""
    out = real(*shape).reshape(-1)
    out[: len(SMALL)] = SMALL[: out.size]
    out[-3:] = 1.0
    return np.random.default_rng(5).permutation(out).reshape(shape)


def method(name: str, *arguments: Any, **named: Any) -> Callable[..., Any]:
    return lambda x, *more: getattr(x, name)(*more, *arguments, **named)


def index(array: Any, dtype: str = "i64") -> Tuple[np.ndarray, str]:
    return np.asarray(array), dtype


PAIRS = (np.repeat(SMALL, len(SMALL)), np.tile(SMALL, len(SMALL)))
WHOLES = (np.repeat(np.arange(-4, 5), 9), np.tile(np.arange(-4, 5), 9))
ROWS = with_specials(6, 8)
_PICTURE = with_specials(1, 2, 3, 5)
CASES: Dict[str, Case] = {}
for _name in "neg abs relu sqrt rsqrt reciprocal floor ceil exp log tanh erf sin cos sigmoid silu gelu logical_not".split():
    _theirs = getattr(F, _name) if _name in ("silu", "gelu", "relu") else getattr(torch, _name)
    for _kind, _array in (("", SPECIAL), (".0d", np.array(-INF)), (".empty", np.zeros((0, 3)))):
        CASES[_name + _kind] = Case([_array], method(_name), _theirs)
_OTHERS = {"relu6": F.relu6, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh, "elu": F.elu, "leaky_relu": F.leaky_relu,
           "mish": F.mish, "softplus": F.softplus, "log_sigmoid": F.logsigmoid}  # fmt: skip
for _name in "exp2 expm1 log1p log2 log10 sinh cosh tan round trunc sign square isnan isinf".split():
    _OTHERS[_name] = getattr(torch, _name)
for _name, _theirs in _OTHERS.items():
    CASES[_name] = Case([SPECIAL], method(_name), _theirs)
    CASES[_name + ".empty"] = Case([np.zeros((0, 3))], method(_name), _theirs)
CASES["softplus.0"] = Case([SPECIAL[5:]], method("softplus", 0), lambda x: F.softplus(x, 0))
CASES["gelu.tanh"] = Case([SPECIAL], method("gelu", "tanh"), lambda x: F.gelu(x, approximate="tanh"))
for _name in "add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor".split():
    CASES[_name] = Case(PAIRS, method(_name), getattr(torch, _name))
    CASES[_name + ".0d"] = Case([SMALL, np.array(-0.0)], method(_name), getattr(torch, _name))
CASES["pow"] = Case(PAIRS, method("pow"), torch.pow)
for _exponent in (2, 3, 0.5, -1, 0, -0.5, INF, NAN):
    CASES[f"pow.{_exponent}"] = Case([SPECIAL], method("pow", _exponent), functools.partial(lambda x, e: torch.pow(x, e), e=_exponent))
CASES["pow.of_number"] = Case([SMALL], lambda x: 2.0**x, lambda x: 2.0**x)
CASES["where"] = Case([(np.arange(121) % 3 == 0, "bool"), *PAIRS], lambda c, x, y: c.where(x, y), lambda c, x, y: torch.where(c, x, y))
CASES["clamp"] = Case([SPECIAL], method("clamp", -1.0, 2.0), lambda x: torch.clamp(x, -1.0, 2.0))
CASES["clamp.min"] = Case([SPECIAL], method("clamp", min=-1.0), lambda x: torch.clamp(x, min=-1.0))
CASES["clamp.max"] = Case([SPECIAL], method("clamp", max=2.0), lambda x: torch.clamp(x, max=2.0))
CASES["clamp.crossed"] = Case([SPECIAL], method("clamp", 2.0, -1.0), lambda x: torch.clamp(x, 2.0, -1.0))
CASES["clamp.infinite"] = Case([SPECIAL], method("clamp", -INF, INF), lambda x: torch.clamp(x, -INF, INF))
for _name in "sum mean amax amin".split():
    _theirs = getattr(torch, _name)
    CASES[_name + ".all"] = Case([real(6, 8)], method(_name), _theirs)
    CASES[_name + ".dims"] = Case([ROWS.reshape(2, 3, 8)], method(_name, [0, 2]), functools.partial(lambda x, f: f(x, [0, 2]), f=_theirs))
    CASES[_name + ".keepdim"] = Case([ROWS], method(_name, [1], True), functools.partial(lambda x, f: f(x, [1], keepdim=True), f=_theirs))
    CASES[_name + ".0d"] = Case([np.array(NAN)], method(_name), _theirs)
CASES["sum.empty"] = Case([np.zeros((0, 3))], method("sum", [0]), lambda x: torch.sum(x, [0]))
CASES["mean.empty"] = Case([np.zeros((0, 3))], method("mean", [0]), lambda x: torch.mean(x, [0]))
CASES["amax.of_no_rows"] = Case([np.zeros((0, 3))], method("amax", [1]), lambda x: torch.amax(x, [1]))
for _dim in (0, 1, -1):
    CASES[f"cumsum.{_dim}"] = Case([ROWS], method("cumsum", _dim), functools.partial(lambda x, d: torch.cumsum(x, d), d=_dim), scale=20)
    CASES[f"softmax.{_dim}"] = Case([np.where(np.isnan(ROWS), 1, ROWS)], method("softmax", _dim), functools.partial(lambda x, d: torch.softmax(x, d), d=_dim))
    for _down in (False, True):
        CASES[f"sort.{_dim}.{_down}"] = Case([ROWS], method("sort", _dim, _down),
                                             functools.partial(lambda x, d, w: torch.sort(x, dim=d, descending=w, stable=True), d=_dim, w=_down))  # fmt: skip
    CASES[f"argmax.{_dim}"] = Case([ROWS], method("argmax", _dim), functools.partial(lambda x, d: torch.argmax(x, d), d=_dim))
    CASES[f"topk.{_dim}"] = Case([ROWS], lambda x, _d=_dim: x.topk(3, _d)[0], functools.partial(lambda x, d: torch.topk(x, 3, d)[0], d=_dim), ("f32", "f16", "bf16"))
    CASES[f"topk.places.{_dim}"] = Case([real(6, 8)], lambda x, _d=_dim: x.topk(5, _d)[1], functools.partial(lambda x, d: torch.topk(x, 5, d)[1], d=_dim), ("f32",))
CASES["cumsum.empty"] = Case([np.zeros((0, 3))], method("cumsum", 0), lambda x: torch.cumsum(x, 0))
CASES["sort.empty"] = Case([np.zeros((3, 0))], method("sort"), lambda x: torch.sort(x, stable=True))
CASES["argmax.all"] = Case([ROWS], method("argmax"), torch.argmax)
CASES["argmax.keepdim"] = Case([real(6, 8)], method("argmax", 1, True), lambda x: torch.argmax(x, 1, True))
for _name in "log_softmax logsumexp var".split():
    CASES[_name] = Case([ROWS], method(_name, 1), functools.partial(lambda x, f: f(x, 1), f=getattr(torch, _name)), scale=4)
    CASES[_name + ".finite"] = Case([real(6, 8)], method(_name, 1), functools.partial(lambda x, f: f(x, 1), f=getattr(torch, _name)), scale=8)
for _name in ("cummax", "cummin", "median"):
    CASES[_name] = Case([ROWS], functools.partial(lambda x, n: getattr(x, n)(1)[0], n=_name), functools.partial(lambda x, f: f(x, 1)[0], f=getattr(torch, _name)))
CASES["cummax.places"] = Case([real(6, 8)], lambda x: x.cummax(0)[1], lambda x: torch.cummax(x, 0)[1])
CASES["median.places"] = Case([real(6, 7)], lambda x: x.median(1)[1], lambda x: torch.median(x, 1)[1])
CASES["logcumsumexp"] = Case([ROWS], method("logcumsumexp", 1), lambda x: torch.logcumsumexp(x, 1), scale=8)
CASES["cumprod.long"] = Case([real(3, 300) * 0.1 + 1], method("cumprod", 1), lambda x: torch.cumprod(x, 1), scale=300)
CASES["erfinv"] = Case([np.array([0.0, 1e-30, 1e-6, 0.1, -0.5, 0.6, -0.9, 0.999, 1.0, -1.0, 1.5, NAN])], method("erfinv"), torch.erfinv, ("f32", "f16", "bf16"), 8)
CASES["bessel_i"] = Case([np.array([0.0, 1e-6, 0.5, -3.0, 7.9, 9.9, 10.1, -30.0, 80.0, NAN])], method("bessel_i"), torch.special.i0, ("f32", "f64"), 32)
CASES["bessel_i.1"] = Case([np.array([0.0, 1e-6, 0.5, -3.0, 7.9, 9.9, 10.1, -30.0, 500.0, NAN])], method("bessel_i", 1, True), torch.special.i1e, ("f32", "f64"), 32)
_GAMMA = np.array([0.0, 1e-30, 1e-3, 0.1, -0.5, -0.9, 0.999, 1.0, 2.0, -1.0, 1.5, 9.9, -7.3, 80.0, 1e6, np.inf, NAN])
CASES["lgamma"] = Case([_GAMMA], method("lgamma"), torch.lgamma, ("f32", "f16", "bf16"), 2)
CASES["digamma"] = Case([_GAMMA], method("digamma"), torch.digamma, ("f32", "f16", "bf16"), 2)
CASES["mode"] = Case([real(6, 8).round()], lambda x: x.mode(1)[0], lambda x: torch.mode(x, 1)[0])
CASES["upsample_cubic"] = Case([real(1, 2, 3, 5)], method("upsample_cubic", [7, 4], False), lambda x: F.interpolate(x, (7, 4), mode="bicubic"), scale=16)
CASES["upsample_filtered"] = Case([real(1, 2, 6, 5)], method("upsample_filtered", [2, 4], False),
                                  lambda x: F.interpolate(x, (2, 4), mode="bilinear", antialias=True), ("f32", "f64"), 16)  # fmt: skip
CASES["hypot"] = Case(PAIRS, method("hypot"), torch.hypot)
CASES["glu"] = Case([ROWS], method("glu"), F.glu, scale=4)
CASES["diagonal"] = Case([ROWS], method("diagonal", 1), lambda x: torch.diagonal(x, 1))
CASES["unfold"] = Case([ROWS], method("unfold", 1, 3, 2), lambda x: x.unfold(1, 3, 2))
CASES["pixel_shuffle"] = Case([with_specials(1, 4, 2, 3)], method("pixel_shuffle", 2), lambda x: F.pixel_shuffle(x, 2))
CASES["upsample_nearest"] = Case([_PICTURE], method("upsample_nearest", [7, 4]), lambda x: F.interpolate(x, (7, 4)))
CASES["upsample_nearest.exact"] = Case([_PICTURE], method("upsample_nearest", [7, 4], None, True), lambda x: F.interpolate(x, (7, 4), mode="nearest-exact"))
for _aligned in (False, True):
    CASES[f"upsample_linear.{_aligned}"] = Case([real(1, 2, 3, 5)], method("upsample_linear", [7, 4], _aligned),
                                                functools.partial(lambda x, a: F.interpolate(x, (7, 4), mode="bilinear", align_corners=a), a=_aligned), scale=4)  # fmt: skip
CASES["softmax.nan"] = Case([ROWS], method("softmax"), lambda x: torch.softmax(x, -1))
CASES["softmax.lost"] = Case([np.full((2, 5), -INF)], method("softmax"), lambda x: torch.softmax(x, -1))
CASES["softmax.empty"] = Case([np.zeros((2, 0))], method("softmax"), lambda x: torch.softmax(x, -1))
CASES["softmax.0d"] = Case([np.array(3.0)], method("softmax"), lambda x: torch.softmax(x, -1))
CASES["gather.0"] = Case([ROWS, index(whole(4, 8, low=0))], lambda x, i: x.gather(0, i), lambda x, i: torch.gather(x, 0, i))
CASES["gather.1"] = Case([ROWS, index(whole(6, 3, low=0))], lambda x, i: x.gather(1, i), lambda x, i: torch.gather(x, 1, i))
CASES["gather.empty"] = Case([ROWS, index(np.zeros((0, 8), int))], lambda x, i: x.gather(0, i), lambda x, i: torch.gather(x, 0, i))
_PLACES = np.argsort(real(6, 8, seed=9), 1)[:, :4]
CASES["scatter"] = Case([ROWS, index(_PLACES), with_specials(6, 4)], lambda x, i, s: x.scatter(i, s, 1), lambda x, i, s: torch.scatter(x, 1, i, s))
CASES["scatter.0"] = Case([ROWS, index(np.argsort(real(6, 8, seed=9), 0)[:2]), with_specials(2, 8)], lambda x, i, s: x.scatter(i, s, 0), lambda x, i, s: torch.scatter(x, 0, i, s))
CASES["scatter.add"] = Case([ROWS, index(whole(6, 4, low=0)), with_specials(6, 4)], lambda x, i, s: x.scatter(i, s, 1, True),
                            lambda x, i, s: torch.scatter_add(x, 1, i, s), ("f32", "f64"), 10)  # fmt: skip
CASES["index_select.0"] = Case([ROWS, index([5, 0, 0, 3])], lambda x, i: x.index_select(0, i), lambda x, i: torch.index_select(x, 0, i))
CASES["index_select.1"] = Case([ROWS, index([7, 0, 2])], lambda x, i: x.index_select(1, i), lambda x, i: torch.index_select(x, 1, i))
CASES["index_select.empty"] = Case([ROWS, index(np.zeros(0, int))], lambda x, i: x.index_select(1, i), lambda x, i: torch.index_select(x, 1, i))
CASES["embedding"] = Case([ROWS, index([[5, 0, 0], [3, 1, 2]])], lambda w, i: w.embedding(i), lambda w, i: F.embedding(i, w))
CASES["cat.0"] = Case([ROWS, with_specials(2, 8), np.zeros((0, 8))], lambda *v: v[0].function.cat(v, 0), lambda *v: torch.cat(v, 0))
CASES["cat.-1"] = Case([ROWS, with_specials(6, 3)], lambda *v: v[0].function.cat(v, -1), lambda *v: torch.cat(v, -1))
_IMAGE, _ODD = real(2, 4, 7, 6), with_specials(1, 2, 6, 5)
CASES["conv2d"] = Case([_IMAGE, real(6, 4, 3, 3), real(6)], lambda x, w, b: x.conv2d(w, b), lambda x, w, b: F.conv2d(x, w, b), scale=200)
CASES["conv2d.strided"] = Case([_IMAGE, real(6, 4, 3, 2)], lambda x, w: x.conv2d(w, None, [2, 1], [1, 2], [1, 2]), lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), (1, 2)), scale=200)
CASES["conv2d.groups"] = Case([_IMAGE, real(4, 2, 3, 3), real(4)], lambda x, w, b: x.conv2d(w, b, padding=1, groups=2), lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2), scale=100)
CASES["conv2d.depthwise"] = Case([_IMAGE, real(4, 1, 3, 3)], lambda x, w: x.conv2d(w, groups=4), lambda x, w: F.conv2d(x, w, groups=4), scale=50)
CASES["conv2d.special"] = Case([_ODD, real(3, 2, 2, 2)], lambda x, w: x.conv2d(w), lambda x, w: F.conv2d(x, w), ("f32", "f64"), scale=50)
CASES["max_pool2d"] = Case([_ODD], method("max_pool2d", 2), lambda x: F.max_pool2d(x, 2))
CASES["max_pool2d.padded"] = Case([_ODD], method("max_pool2d", [3, 2], [2, 1], 1), lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1))
CASES["max_pool2d.lost"] = Case([np.full((1, 1, 4, 4), -INF)], method("max_pool2d", 3, 1, 1), lambda x: F.max_pool2d(x, 3, 1, 1))
CASES["avg_pool2d"] = Case([_ODD], method("avg_pool2d", 2), lambda x: F.avg_pool2d(x, 2), scale=5)
CASES["avg_pool2d.padded"] = Case([_ODD], method("avg_pool2d", [3, 2], [2, 1], 1), lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1), scale=5)
CASES["layer_norm"] = Case([real(6, 8), real(8), real(8, seed=4)], method("layer_norm"), lambda x, w, b: F.layer_norm(x, (8,), w, b), scale=20)
CASES["layer_norm.special"] = Case([ROWS], method("layer_norm"), lambda x: F.layer_norm(x, (8,)), scale=5)
CASES["layer_norm.constant"] = Case([np.full((2, 8), 3.0)], method("layer_norm"), lambda x: F.layer_norm(x, (8,)))
CASES["rms_norm"] = Case([real(6, 8), real(8)], method("rms_norm", 1e-6), lambda x, w: F.rms_norm(x, (8,), w, 1e-6), scale=20)
CASES["rms_norm.special"] = Case([ROWS], method("rms_norm"), lambda x: F.rms_norm(x, (8,)), scale=5)
CASES["group_norm"] = Case([real(2, 6, 3), real(6), real(6, seed=4)], lambda x, w, b: x.group_norm(3, w, b), lambda x, w, b: F.group_norm(x, 3, w, b), scale=20)
CASES["group_norm.special"] = Case([with_specials(2, 6, 3)], method("group_norm", 2), lambda x: F.group_norm(x, 2), scale=5)
CASES["matmul.empty"] = Case([np.zeros((3, 0)), np.zeros((0, 2))], method("matmul"), torch.matmul)
CASES["matmul.special"] = Case([with_specials(3, 6), real(6, 4)], method("matmul"), torch.matmul, ("f32", "f64"), 50)
CASES["linear.special"] = Case([with_specials(3, 6), real(4, 6), real(4)], method("linear"), F.linear, ("f32", "f64"), 50)
for _name in "silu gelu tanh sigmoid relu".split():  # one kernel with the product
    _activation = getattr(F, _name) if _name in ("silu", "gelu", "relu") else getattr(torch, _name)
    CASES[f"linear.{_name}"] = Case([np.array([[-INF, 1.0], [INF, 1.0], [NAN, 1.0], [-1e4, 0.0], [2.0, 1.0]]), np.array([[1.0, 0.5], [0.25, 0.5], [1.0, -0.5]])],
                                    lambda x, w, _n=_name: getattr(x.linear(w), _n)(), functools.partial(lambda x, w, f: f(F.linear(x, w)), f=_activation), ("f32",), 4)  # fmt: skip
# Of integers and bools.
for _name in "add sub mul eq ne lt le gt ge maximum minimum logical_and logical_or logical_xor div".split():
    CASES["int." + _name] = Case(WHOLES, method(_name), getattr(torch, _name), WHOLE)
for _name in "bitwise_and bitwise_or bitwise_xor".split():
    CASES[_name] = Case(WHOLES, method(_name), getattr(torch, _name), (*WHOLE, "i8"))
    CASES[_name + ".bool"] = Case([np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])], method(_name), getattr(torch, _name), ("u8",))
for _name in "bitwise_left_shift bitwise_right_shift".split():
    CASES[_name] = Case([WHOLES[0], WHOLES[1] + 4], method(_name), getattr(torch, _name), (*WHOLE, "i8"))
_DIVISORS = np.where(WHOLES[1] == 0, 3, WHOLES[1])
for _name in "floor_divide remainder".split():
    CASES[_name] = Case([WHOLES[0], _DIVISORS], method(_name), getattr(torch, _name), (*WHOLE, "i8"))
for _mode in ("trunc", "floor"):
    CASES[f"div.{_mode}"] = Case([WHOLES[0], _DIVISORS], method("div", rounding_mode=_mode), functools.partial(lambda x, y, m: torch.div(x, y, rounding_mode=m), m=_mode), WHOLE)
CASES["int.pow.2"] = Case([whole(20)], method("pow", 2), lambda x: torch.pow(x, 2), WHOLE)
CASES["int.clamp"] = Case([whole(20)], method("clamp", -2, 3), lambda x: torch.clamp(x, -2, 3), WHOLE)
CASES["int.sum"] = Case([whole(4, 5)], method("sum", [1]), lambda x: torch.sum(x, [1]), (*WHOLE, "i8", "u8", "bool"))
CASES["int.cumsum"] = Case([whole(4, 5)], method("cumsum", 1), lambda x: torch.cumsum(x, 1), (*WHOLE, "bool"))
CASES["int.sort"] = Case([whole(4, 9)], method("sort"), lambda x: torch.sort(x, stable=True), WHOLE)
CASES["int.argmax"] = Case([whole(4, 9)], method("argmax", 1), lambda x: torch.argmax(x, 1), WHOLE)
CASES["int.amax"] = Case([whole(4, 9)], method("amax", [1]), lambda x: torch.amax(x, [1]), WHOLE)
CASES["int.gather"] = Case([whole(4, 9), index(whole(4, 2, low=0))], lambda x, i: x.gather(1, i), lambda x, i: torch.gather(x, 1, i), WHOLE)
CASES["int.scatter.add"] = Case([whole(4, 9), index(whole(4, 6, low=0)), whole(4, 6, seed=3)], lambda x, i, s: x.scatter(i, s, 1, True),
                                lambda x, i, s: torch.scatter_add(x, 1, i, s), WHOLE)  # fmt: skip
CASES["int.where"] = Case([(np.arange(20) % 3 == 0, "bool"), whole(20), whole(20, seed=3)], lambda c, x, y: c.where(x, y), lambda c, x, y: torch.where(c, x, y), WHOLE)


def inputs_of(case: Case, dtype: str) -> List[Tuple[np.ndarray, str]]:
    return [given if isinstance(given, tuple) else (given, dtype) for given in case.inputs]


def function_name(label: str) -> str:
    return "f_" + label.replace(".", "_").replace("-", "m")


@functools.lru_cache(maxsize=None)
def made(dtype: str) -> Tuple[Module, Any]:
    """All cases of a type as functions of one module, and that compiled."""
    module = Module("values_" + dtype)
    for label, case in CASES.items():
        if dtype not in case.types:
            continue
        f = module.function(function_name(label))
        found = case.ours(*(f.input(f"x{i}", kind, list(array.shape)) for i, (array, kind) in enumerate(inputs_of(case, dtype))))
        for i, value in enumerate(found if isinstance(found, (list, tuple)) else (found,)):
            f.result(f"y{i}", value)
    return module, ch.program(module)


def check(got: np.ndarray, wanted: "torch.Tensor", dtype: str, scale: float, where: str) -> None:
    """NaN and infinities at the same places, all else within the roundings of the type; integers
    exactly."""
    assert tuple(got.shape) == tuple(wanted.shape), f"{where}: shape {got.shape}, torch's {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        np.testing.assert_array_equal(got, wanted.numpy(), err_msg=where)
        return
    exact, tolerance = wanted.to(torch.float64).numpy(), TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=4 * tolerance, atol=tolerance * scale, err_msg=where)


@pytest.mark.rotating(4, by="dtype")
@pytest.mark.parametrize("dtype, label", [(dtype, label) for dtype in TYPES for label, case in CASES.items() if dtype in case.types])
def test_values_beside_torch(dtype, label):
    case, (module, program) = CASES[label], made(dtype)
    arrays = [kh.encode(array, kind) for array, kind in inputs_of(case, dtype)]
    tensors = [torch.from_numpy(np.array(kh.decode(stored, kind))).to(TYPES[kind]) for stored, (_, kind) in zip(arrays, inputs_of(case, dtype))]
    # oneDNN, which takes over on some processors, has other values at infinities and zeros than
    # ATen.
    with torch.backends.mkldnn.flags(enabled=False):
        wanted = case.theirs(*tensors)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    name = function_name(label)
    with np.errstate(all="ignore"):
        interpreted = Interpreter(module).run(name, *arrays)
    compiled = ch.session(program).run(name, *[array.copy() for array in arrays])
    for i, (result, theirs) in enumerate(zip(module.functions[name].results, wanted)):
        kind = result.value.dtype
        assert TYPES[kind] == theirs.dtype, f"{label}: {kind}, torch's {theirs.dtype}"
        # it calculates in f64
        rounded = kh.decode(kh.encode(np.asarray(interpreted[i]), kind), kind)
        check(rounded, theirs, kind, case.scale, f"{label} of {dtype}, interpreted")
        check(kh.decode(np.asarray(compiled[i]), kind), theirs, kind, case.scale, f"{label} of {dtype}, compiled")
