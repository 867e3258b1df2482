"""Every operation of the compiler: its kernels in a compiled bundle against the float64 reference,
at odd and empty shapes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
import rotation
from accrt.compiler import Interpreter, Module, cat, passes
from accrt.compiler import expr as ex
from accrt.compiler import ops

FLOATS = ("f32", "f64", "f16", "bf16")
INTS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
SHAPES = [(1, 1), (3, 5), (17, 33), (64, 130), (0, 4), (7, 0)]

# name -> (builder of the function's result from (function, n, m), low, high of the inputs, allowed
# roundings, scale)
CASES = {}


def case(name, low=-2.0, high=2.0, roundings=8.0, scale=1.0, shapes=SHAPES):
    def register(build):
        CASES[name] = (build, low, high, roundings, scale, shapes)
        return build

    return register


def _x(f, n, m, dtype="f32", name="x"):
    return f.input(name, dtype, [n, m])


def _unary(method, low, high, dtype, **arguments):
    case(f"{method}_{dtype}" + "".join(f"_{v}" for v in arguments.values()), low, high)(
        lambda f, n, m: getattr(_x(f, n, m, dtype), method)(**arguments)
    )


for _method, _low, _high in (
    ("neg", -9, 9), ("abs", -9, 9), ("relu", -3, 3), ("sqrt", 0, 9), ("rsqrt", 0.1, 9), ("reciprocal", 0.1, 9), ("floor", -5, 5),
    ("ceil", -5, 5), ("exp", -9, 9), ("log", 0.01, 9), ("tanh", -5, 5), ("erf", -4, 4), ("erfc", -4, 4), ("atan", -5, 5),
    ("expm1", -9, 9), ("log1p", -0.5, 9), ("sin", -9, 9), ("cos", -9, 9),
    ("sigmoid", -9, 9), ("silu", -9, 9), ("gelu", -6, 6),
):  # fmt: skip
    for _dtype in ("f32", *(("f64",) if _method != "erfc" else ()), *(("bf16", "f16") if _method in ("neg", "exp", "silu") else ())):
        _unary(_method, _low, _high, _dtype)
_unary("gelu", -6, 6, "f32", approximate="tanh")
_unary("neg", -100, 100, "i32")
_unary("abs", -100, 100, "i64")
for _dtype in FLOATS + INTS:
    for _method in ("add", "sub", "mul", "div", "maximum", "minimum"):
        case(f"{_method}_{_dtype}", 1 if _dtype.startswith("u") else -50, 50)(
            lambda f, n, m, d=_dtype, k=_method: getattr(_x(f, n, m, d), k)(f.input("y", d, [m]))
        )
for _dtype in INTS:
    _low = 0 if _dtype.startswith("u") else -50
    for _mode in ("trunc", "floor"):
        case(f"div_{_mode}_{_dtype}", _low, 50)(
            lambda f, n, m, d=_dtype, k=_mode: _x(f, n, m, d).div(f.input("y", d, [m]), rounding_mode=k)
        )
    case(f"remainder_{_dtype}", _low, 50)(lambda f, n, m, d=_dtype: _x(f, n, m, d) % f.input("y", d, [m]))
    case(f"div_number_{_dtype}", _low, 50)(lambda f, n, m, d=_dtype: _x(f, n, m, d) / 4)
    for _method in ("amax", "amin", "argmax"):
        case(f"{_method}_{_dtype}", _low, 50, shapes=SHAPES[:4])(lambda f, n, m, d=_dtype, k=_method: getattr(_x(f, n, m, d), k)(1))
        case(f"{_method}_first_{_dtype}", _low, 50, shapes=SHAPES[:4])(lambda f, n, m, d=_dtype, k=_method: getattr(_x(f, n, m, d), k)(0))
    case(f"product_{_dtype}", -(1 << 62), 1 << 62)(lambda f, n, m, d=_dtype: _x(f, n, m, d).matmul(f.input("y", d, [m, 5])))
    case(f"size_{_dtype}", _low, 50)(lambda f, n, m, d=_dtype: _x(f, n, m, d) * m)
    case(f"not_{_dtype}", -(1 << 62), 1 << 62)(lambda f, n, m, d=_dtype: _x(f, n, m, d).bitwise_not())
    case(f"pad_and_cat_{_dtype}", _low, 50)(lambda f, n, m, d=_dtype: cat([_x(f, n, m, d), f.full([n, 3], 7, d), f.input("y", d, [n, 2])], 1))
    case(f"sum_{_dtype}", _low, 50)(lambda f, n, m, d=_dtype: _x(f, n, m, d).sum(1))
    case(f"sqrt_{_dtype}", 0, 50)(lambda f, n, m, d=_dtype: _x(f, n, m, d).sqrt())
case("sum_bool")(lambda f, n, m: _x(f, n, m, "bool").sum(0))
case("equal_operator", -2, 2)(lambda f, n, m: _x(f, n, m, "i32") == f.input("y", "i32", [n, m]))
case("unequal_operator", -2, 2)(lambda f, n, m: _x(f, n, m, "i32") != 1)
case("pow_f32", 0.1, 4.0)(lambda f, n, m: _x(f, n, m).pow(f.input("y", "f32", [n, m])))
for _dtype in INTS:
    for _method in ("and", "or", "xor", "left_shift", "right_shift"):
        case(f"bitwise_{_method}_{_dtype}", -9 if "shift" in _method else -(1 << 62), 70 if "shift" in _method else 1 << 62)(
            lambda f, n, m, d=_dtype, k=_method: getattr(_x(f, n, m, d), f"bitwise_{k}")(f.input("y", d, [m])))
for _method in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(f"{_method}_i32", -2, 2)(lambda f, n, m, k=_method: getattr(_x(f, n, m, "i32"), k)(f.input("y", "i32", [n, 1])))
    case(f"{_method}_f32", -2, 2)(lambda f, n, m, k=_method: getattr(_x(f, n, m), k)(0.5))
for _method in ("logical_and", "logical_or", "logical_xor"):
    case(_method)(lambda f, n, m, k=_method: getattr(_x(f, n, m, "bool"), k)(f.input("y", "bool", [n, m])))
case("logical_not")(lambda f, n, m: _x(f, n, m, "bool").logical_not())
case("where")(lambda f, n, m: f.input("c", "bool", [n, 1]).where(_x(f, n, m), -1.0))
case("clamp")(lambda f, n, m: _x(f, n, m).clamp(-0.5, 1.0))
case("clamp_min_i32", -9, 9)(lambda f, n, m: _x(f, n, m, "i32").clamp(min=-2))
case("broadcast_three")(lambda f, n, m: _x(f, n, m) * f.input("y", "f32", [n, 1]) + f.input("z", "f32", [1, m]))
case("promotion", -9, 9)(lambda f, n, m: _x(f, n, m, "i32") + f.input("y", "f32", [n, m]))
case("number_of_symbol")(lambda f, n, m: _x(f, n, m) * f.full((), m + 1, "f32"))
case("long_chain", -1, 1, roundings=40)(
    lambda f, n, m: ((((_x(f, n, m) * 1.5 + 0.25).tanh() - 0.5).exp() + f.input("y", "f32", [n, m])).sigmoid() * 3.0).abs().sqrt()
)

for _source, _low, _high in (("f32", -300, 300), ("f64", -300, 300), ("i32", -300, 300), ("u8", 0, 255), ("i64", -9, 9), ("bool", 0, 1),
                             ("f16", -99, 99), ("bf16", -99, 99), ("i8", -99, 99), ("u32", 0, 999), ("i16", -30000, 30000),
                             ("u16", 0, 65000), ("u64", 0, 60000)):  # fmt: skip
    for _target in FLOATS + INTS + ("bool",):
        if _target != _source:
            case(f"cast_{_source}_{_target}", _low, _high, roundings=1)(
                lambda f, n, m, s=_source, t=_target: _x(f, n, m, s).to_copy(t)
            )

case("full_f32")(lambda f, n, m: f.full([n, m], 2.5) + _x(f, n, m) * 0.0)
case("full_alone_i32")(lambda f, n, m: (_x(f, n, m, "i32"), f.full([n, m], -7, "i32"))[1])
case("arange_i64", shapes=[(3, 5), (17, 33), (4, 0)])(lambda f, n, m: (_x(f, n, m), f.arange(3, n + m, 2))[1])
case("arange_f32")(lambda f, n, m: (_x(f, n, m), f.arange(m, dtype="f32") * 0.5)[1])
case("arange_broadcast")(lambda f, n, m: f.arange(m, dtype="f32") + _x(f, n, m))

case("reshape")(lambda f, n, m: (_x(f, n, m) + 1.0).view([m, n]))
case("transpose")(lambda f, n, m: _x(f, n, m).transpose(0, 1))
case("transpose_add")(lambda f, n, m: _x(f, n, m).transpose(0, 1) + f.input("y", "f32", [m, n]))
case("transpose_reshape")(lambda f, n, m: _x(f, n, m).transpose(0, 1).view([n * m]) * 2.0)
case("transpose_i8", -9, 9)(lambda f, n, m: f.input("x", "i8", [n, 3, m]).permute([2, 0, 1]))
case("expand")(lambda f, n, m: f.input("x", "f32", [n, 1]).expand([n, m]))
case("slice")(lambda f, n, m: f.input("x", "f32", [n + 4, m])[1:4])
case("slice_step")(lambda f, n, m: f.input("x", "f32", [n, 7])[:, 1:6:2])
case("slice_symbol")(lambda f, n, m: f.input("x", "f32", [n, m + 2])[:, : m + 1])
case("select")(lambda f, n, m: f.input("x", "f32", [n, 3, m])[:, 1])
case("select_last")(lambda f, n, m: f.input("x", "f32", [n, m, 5])[..., -1])
case("unsqueeze")(lambda f, n, m: _x(f, n, m).unsqueeze(1) * f.input("y", "f32", [3, 1]))
case("clone")(lambda f, n, m: _x(f, n, m).transpose(0, 1).clone())


@case("split")
def _split(f, n, m):
    first, second, third = f.input("x", "f32", [n, 6]).split([1, 2, 3], 1)
    return first + second * third[:, 1:]


for _dim in (0, 1):
    case(f"cat_{_dim}")(lambda f, n, m, d=_dim: cat([_x(f, n, m), f.input("y", "f32", [n, m]) * 2.0, _x(f, n, m, name="z")], d))
case("cat_u8", 0, 255)(lambda f, n, m: cat([f.input("x", "u8", [n, 3]), f.input("y", "u8", [n, m])], 1))

for _kind in ("sum", "mean", "amax", "amin"):
    for _dim in (0, 1, None):
        case(f"{_kind}_{_dim}", roundings=64, scale=32)(lambda f, n, m, k=_kind, d=_dim: getattr(_x(f, n, m), k)(d))
    case(f"{_kind}_f64", roundings=64, scale=32)(lambda f, n, m, k=_kind: getattr(_x(f, n, m, "f64"), k)(-1, True))
    case(f"{_kind}_bf16", roundings=4, scale=32)(lambda f, n, m, k=_kind: getattr(_x(f, n, m, "bf16"), k)(1))
for _kind in ("sum", "amax", "amin"):
    case(f"{_kind}_i32", -99, 99)(lambda f, n, m, k=_kind: getattr(_x(f, n, m, "i32"), k)(1))
case("sum_middle", roundings=64, scale=32)(lambda f, n, m: f.input("x", "f32", [n, 5, m]).sum(1, True))
case("sum_outer", roundings=64, scale=32)(lambda f, n, m: f.input("x", "f32", [n, 5, m]).sum([0, 2]))

case("softmax", -20, 20, roundings=32)(lambda f, n, m: _x(f, n, m).softmax(-1))
case("softmax_dim0", -20, 20, roundings=64)(lambda f, n, m: _x(f, n, m).softmax(0))
case("softmax_f64", -20, 20, roundings=64)(lambda f, n, m: _x(f, n, m, "f64").softmax(-1))
case("softmax_bf16", -5, 5, roundings=4)(lambda f, n, m: _x(f, n, m, "bf16").softmax(-1))
for _dtype in FLOATS:
    _few = 4 if _dtype in ("f16", "bf16") else 64
    case(f"masked_softmax_{_dtype}", -5, 5, roundings=_few)(lambda f, n, m, d=_dtype: _x(f, n, m, d).masked_softmax(f.input("mask", d, [m]), 0.5))
    case(f"masked_softmax_rows_{_dtype}", -5, 5, roundings=_few)(
        lambda f, n, m, d=_dtype: f.input("x", d, [3, n, m]).masked_softmax(f.input("mask", d, [n, m]), scale=-0.75))
case("masked_softmax_bool", -5, 5, roundings=64)(lambda f, n, m: _x(f, n, m).masked_softmax(_x(f, n, m, name="y").gt(-20.0)))
case("masked_softmax_plain", -5, 5, roundings=64)(lambda f, n, m: _x(f, n, m).masked_softmax(scale=2.0))
_ROWS = [(1, 1), (3, 5), (17, 33), (64, 130), (0, 4)]
case("layer_norm", roundings=512, shapes=_ROWS)(lambda f, n, m: _x(f, n, m).layer_norm(f.input("w", "f32", [m]), f.input("b", "f32", [m]), 1e-5))
case("layer_norm_plain", roundings=512, shapes=_ROWS)(lambda f, n, m: _x(f, n, m).layer_norm())
case("layer_norm_f64", roundings=512, shapes=_ROWS)(lambda f, n, m: _x(f, n, m, "f64").layer_norm(f.input("w", "f64", [m])))
case("rms_norm", roundings=64, shapes=_ROWS)(lambda f, n, m: _x(f, n, m).rms_norm(f.input("w", "f32", [m]), 1e-5))
case("rms_norm_bf16_weight", roundings=64, shapes=_ROWS)(lambda f, n, m: _x(f, n, m).rms_norm(f.input("w", "bf16", [m])))
for _dtype in FLOATS:
    _few = 16 if _dtype in ("f16", "bf16") else 512
    for _which in range(2):
        case(f"rms_norm_backward_{_which}_{_dtype}", roundings=_few, scale=32 if _which else 1, shapes=_ROWS)(
            lambda f, n, m, d=_dtype, k=_which: _x(f, n, m, d).rms_norm_backward(_x(f, n, m, d, "v"), f.input("w", d, [m]), 1e-5)[k])
    for _which in range(3):
        case(f"layer_norm_backward_{_which}_{_dtype}", roundings=_few, scale=32 if _which else 1, shapes=_ROWS[1:])(
            lambda f, n, m, d=_dtype, k=_which: _x(f, n, m, d).layer_norm_backward(_x(f, n, m, d, "v"), f.input("w", d, [m]), 1e-5)[k])
    case(f"softmax_backward_{_dtype}", -1, 1, roundings=_few, scale=8)(lambda f, n, m, d=_dtype: _x(f, n, m, d).softmax_backward(_x(f, n, m, d, "y")))
case("rms_norm_backward_bf16_weight", roundings=512, shapes=_ROWS)(
    lambda f, n, m: _x(f, n, m).rms_norm_backward(_x(f, n, m, name="v"), f.input("w", "bf16", [m]))[0])
case("rms_norm_backward_ranks", roundings=512, scale=32, shapes=_ROWS)(
    lambda f, n, m: f.input("x", "f32", [2, n, m]).rms_norm_backward(f.input("v", "f32", [2, n, m]), f.input("w", "f32", [m]), 1e-5)[1])
case("rms_norm_backward_row", roundings=512, shapes=_ROWS)(
    lambda f, n, m: f.input("x", "f32", [m]).rms_norm_backward(f.input("v", "f32", [m]), f.input("w", "f32", [m]), 1e-5)[1])
case("layer_norm_backward_turned", roundings=512, shapes=_ROWS[1:])(
    lambda f, n, m: f.input("x", "f32", [m, n]).t().layer_norm_backward(_x(f, n, m, name="v"), f.input("w", "f32", [m]))[0])
for _dtype in FLOATS:
    case(f"softmax_backward_scaled_{_dtype}", -1, 1, roundings=16 if _dtype in ("f16", "bf16") else 512, scale=8)(
        lambda f, n, m, d=_dtype: _x(f, n, m, d).softmax_backward(_x(f, n, m, d, "y"), -1, 0.125))
case("softmax_backward_dim0", -1, 1, roundings=512, scale=8)(lambda f, n, m: _x(f, n, m).softmax_backward(_x(f, n, m, name="y"), 0))

case("mm", roundings=64, scale=16)(lambda f, n, m: f.input("x", "f32", [n, m]).mm(f.input("y", "f32", [m, 9])))
case("mm_transposed", roundings=64, scale=16)(lambda f, n, m: f.input("x", "f32", [m, n]).t() @ f.input("y", "f32", [9, m]).t())
case("mm_f64", roundings=256, scale=16)(lambda f, n, m: f.input("x", "f64", [n, m]).mm(f.input("y", "f64", [m, 9])))
case("mm_i32", -9, 9)(lambda f, n, m: f.input("x", "i32", [n, m]).mm(f.input("y", "i32", [m, 9])))
case("mm_bf16", roundings=4, scale=16)(lambda f, n, m: f.input("x", "bf16", [n, m]).mm(f.input("y", "bf16", [m, 9])))
case("mm_f16", roundings=4, scale=16)(lambda f, n, m: f.input("x", "f16", [n, m]).mm(f.input("y", "f16", [m, 9])))
case("bmm", roundings=64, scale=16)(lambda f, n, m: f.input("x", "f32", [4, n, m]).bmm(f.input("y", "f32", [4, m, 3])))
case("matmul_broadcast", roundings=64, scale=16)(lambda f, n, m: f.input("x", "f32", [2, 1, n, m]) @ f.input("y", "f32", [3, m, 5]))
case("addmm", roundings=64, scale=16)(lambda f, n, m: f.input("c", "f32", [9]).addmm(f.input("x", "f32", [n, m]), f.input("y", "f32", [m, 9])))
case("linear_of_inputs", roundings=64, scale=16)(lambda f, n, m: _x(f, n, m).linear(f.input("w", "f32", [9, m]), f.input("b", "f32", [9])))


def _attention(f, n, m, heads=4, kv_heads=4, size=16, dtype="f32", **arguments):
    q = f.input("q", dtype, [2, heads, n, size])
    k, v = (f.input(name, dtype, [2, kv_heads, m, size]) for name in "kv")
    return q.scaled_dot_product_attention(k, v, **arguments)


_KEYS = [(1, 1), (3, 5), (17, 33), (5, 130), (0, 4)]
case("sdpa", roundings=64, shapes=_KEYS)(_attention)
case("sdpa_grouped", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, 6, 2))
case("sdpa_causal", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, is_causal=True))
case("sdpa_causal_offset", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, is_causal=True, causal_offset=2))
case("sdpa_window", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, is_causal=True, causal_offset=m, first_offset=m - 3))
case("sdpa_window_mask", roundings=64, shapes=_KEYS)(
    lambda f, n, m: _attention(f, n, m, attn_mask=f.input("mask", "f32", [2, 4, n, m]), first_offset=-1))
case("sdpa_f64_window", roundings=1 << 12, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, dtype="f64", first_offset=-2))
case("sdpa_scale", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, scale=0.3))
case("sdpa_mask_bool", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, attn_mask=f.input("mask", "bool", [2, 1, 1, m])))
case("sdpa_mask_f32", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, attn_mask=f.input("mask", "f32", [2, 4, n, m])))
case("sdpa_f64_decomposed", roundings=1 << 12, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, 4, 2, dtype="f64", is_causal=True))
case("sdpa_f64_mask", roundings=1 << 12, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, dtype="f64", attn_mask=f.input("mask", "bool", [2, 1, 1, m])))
case("sdpa_big_head", roundings=64, shapes=_KEYS)(lambda f, n, m: _attention(f, n, m, size=80))


def _self_attention(f, n, m):
    """From the slices of one product and back into rows, as transformers do."""
    x = f.input("x", "f32", [2, n, 3 * 32])
    q, k, v = (part.view([2, n, 4, 8]).transpose(1, 2) for part in x.split([32, 32, 32], -1))
    return q.scaled_dot_product_attention(k, v).transpose(1, 2).view([2, n, 32])


case("sdpa_strided", roundings=64, shapes=_KEYS)(_self_attention)
case("rope", roundings=8)(lambda f, n, m: f.input("x", "f32", [3, n, 8]).rope())
case("rope_position", roundings=8)(lambda f, n, m: f.input("x", "f32", [2, 3, n, 64]).rope(m, 500.0))
case("rope_strided", roundings=8)(lambda f, n, m: f.input("x", "f32", [n, 3, 16]).transpose(0, 1).rope(5).transpose(0, 1))
case("rope_f64", roundings=1 << 12)(lambda f, n, m: f.input("x", "f64", [3, n, 8]).rope(2))



def _weight(f, outputs, inputs, high, wide, dtype="f32"):
    """A constant: such weights are packed."""
    numbers = np.random.default_rng(7).uniform(-1, 1, (outputs, inputs, high, wide))
    return f.constant(f.module.constant(f"{f.name}.weight.{len(f.constants)}", kh.encode(numbers, dtype), dtype=dtype))


def _bias(f, *shape):
    return f.constant(f.module.constant(f"{f.name}.bias.{len(f.constants)}", np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)))


_IMAGES = [(1, 1), (3, 5), (2, 33), (0, 4)]
for _dtype in FLOATS:
    case(f"conv2d_{_dtype}", roundings=256 if _dtype == "f64" else 64 if _dtype == "f32" else 4, scale=16, shapes=_IMAGES)(
        lambda f, n, m, d=_dtype: f.input("x", d, [n, 5, m, m + 2]).conv2d(_weight(f, 40, 5, 3, 2, d), None, 1, [1, 2])
    )
case("conv2d_strided", roundings=64, scale=16, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 6, m, m + 9]).conv2d(_weight(f, 9, 6, 3, 3), _bias(f, 9), [2, 1], [1, 2, 0, 1], [1, 2])
)
case("conv2d_groups", roundings=64, scale=16, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 8, m + 2, 7]).conv2d(_weight(f, 12, 2, 3, 3), _bias(f, 12), groups=4)
)
case("conv2d_depthwise", roundings=64, scale=16, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 70, m, m]).conv2d(_weight(f, 70, 1, 3, 3), _bias(f, 70), 2, 1, groups=70).silu()
)
case("conv2d_of_patches", roundings=64, scale=16, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 4, 12, 8]).conv2d(f.input("w", "f32", [6, 2, 4, 2]), f.input("b", "f32", [6]), [4, 2], groups=2)
)
case("conv2d_of_inputs", roundings=64, scale=16, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 4, m + 2, 7]).conv2d(f.input("w", "f32", [6, 2, 3, 3]), f.input("b", "f32", [6]), groups=2)
)


@case("conv1d_chain", roundings=512, scale=64, shapes=_IMAGES)
def _conv1d_chain(f, n, m):
    """As a speech model begins: convolutions of one dimension, activations between them."""
    x = f.input("x", "f32", [n, 5, m + 2])
    y = x.unsqueeze(2).conv2d(_weight(f, 20, 5, 1, 3), _bias(f, 20), 1, [0, 0, 1, 1]).select(2, 0).gelu() * 2.0
    y = y.unsqueeze(2).conv2d(_weight(f, 12, 20, 1, 3), _bias(f, 12), [1, 2], [0, 0, 1, 1]).select(2, 0).gelu()
    return y.permute([0, 2, 1]) + f.input("y", "f32", [12])


@case("conv2d_block", roundings=512, scale=64, shapes=_IMAGES)
def _conv_block(f, n, m):
    """Factors and summands of channels, activations, a residual, joins: as networks of convolutions
    have them."""
    x = f.input("x", "f32", [n, 3, m + 1, m])
    y = (x.conv2d(_weight(f, 32, 3, 3, 3), None, 1, 1) * _bias(f, 1, 32, 1, 1) + _bias(f, 32, 1, 1)).relu()
    z = (y.conv2d(_weight(f, 32, 32, 1, 1)) * _bias(f, 32, 1, 1) + y).gelu()
    w = cat([z, (y.conv2d(_weight(f, 8, 32, 3, 3), _bias(f, 8), 1, 1) + 1.0) * 2.0], 1)
    return w.max_pool2d(3, 2, 1) * w.avg_pool2d(3, 2, 1) + w.mean([2, 3], True)


case("group_norm", roundings=512, shapes=_IMAGES)(
    lambda f, n, m: f.input("x", "f32", [n, 6, m, 2]).group_norm(3, f.input("w", "f32", [6]), f.input("b", "f32", [6]))
)
for _dtype in ("f32", "bf16", "f16"):
    case(f"group_norm_last_{_dtype}", roundings=2048 if _dtype == "f32" else 16, scale=4, shapes=_IMAGES)(
        lambda f, n, m, d=_dtype: f.input("x", d, [n, 70, m + 1, m + 3]).max_pool2d(2, 1).group_norm(7, f.input("w", d, [70])).silu()
        + f.input("y", d, [n, 70, m, m + 2])
    )
for _dtype in FLOATS:
    case(f"max_pool2d_{_dtype}", shapes=_IMAGES)(lambda f, n, m, d=_dtype: f.input("x", d, [n, 5, m + 1, m]).max_pool2d(2, [1, 2], 1, [1, 2]))
    case(f"avg_pool2d_{_dtype}", shapes=_IMAGES)(lambda f, n, m, d=_dtype: f.input("x", d, [n, 5, m + 1, m + 2]).avg_pool2d([2, 3], padding=1))

_INDEXED = [(1, 1), (3, 5), (17, 33), (0, 4)]
for _dtype in ("u8", "i32", "i64", "u32"):
    case(f"embedding_{_dtype}", 0, 6, shapes=_INDEXED)(lambda f, n, m, d=_dtype: f.input("w", "f32", [7, m]).embedding(f.input("i", d, [n, 2])))
case("embedding_bf16", 0, 6, shapes=_INDEXED)(lambda f, n, m: f.input("w", "bf16", [7, m]).embedding(f.input("i", "i64", [n])))
case("index_select_0", 0, 6, shapes=_INDEXED)(lambda f, n, m: f.input("x", "f32", [7, m]).index_select(0, f.input("i", "i64", [n])))
case("index_select_1", 0, 6, shapes=_INDEXED)(lambda f, n, m: f.input("x", "f32", [m, 7, 3]).index_select(1, f.input("i", "i32", [n])))
case("gather_1", 0, 6, shapes=_INDEXED)(lambda f, n, m: f.input("x", "f32", [n, 7]).gather(1, f.input("i", "i64", [n, m])))
case("gather_0", 0, 6, shapes=_INDEXED)(lambda f, n, m: f.input("x", "i32", [7, m]).gather(0, f.input("i", "i32", [n, m])))

@pytest.fixture(scope="module")
def suite(request):
    """All cases of this run as functions of one module, compiled once."""
    m = Module("ops")
    sizes = [m.symbol(name, maximum=1 << 16) for name in ("n", "m")]
    for name in rotation.asked(request, "name"):
        f = m.function(name)
        f.result("y", CASES[name][0](f, *sizes))
        _bind_sizes(f, sizes)
    return m, ch.program(m)


def _bind_sizes(f, sizes):
    """A size that no input has as a bare dimension is given as a number."""
    bound = {d.value for i in f.inputs if i.value is not None for d in i.value.shape if getattr(d, "op", "") == "symbol"}
    for size in sizes:
        if size.value not in bound:
            f.scalar(size.value, size)


@pytest.mark.rotating(80)
@pytest.mark.parametrize("name", CASES)
def test_operation(suite, name):
    module, running = suite
    _build, low, high, roundings, scale, shapes = CASES[name]
    function = module.functions[name]
    for n, m in shapes:
        random = np.random.default_rng([kh.SEED, n, m])
        sizes = {"n": n, "m": m}
        inputs = [
            ch.values(random, i.value.dtype, [ex.evaluate(s, sizes) for s in i.value.shape], low, high)
            for i in function.inputs
            if i.value is not None
        ]
        scalars = {i.name: sizes[i.symbol] for i in function.inputs if i.symbol}
        ch.compare(module, running, name, inputs, scalars, roundings, scale)


@pytest.mark.rotating(10)
@pytest.mark.parametrize("name", [name for name in CASES if "_backward" in name])
def test_gradients_where_no_kernel_does_them(suite, name, monkeypatch):
    """As other operations, which is how GPUs do those of long rows: the interpreter finds the
    same."""
    module, _running = suite
    monkeypatch.setattr(sys.modules["accrt.compiler.select"], "supported", lambda op, family="host": "_backward" not in op.name)
    m = passes.clone(module)
    m.functions = {name: m.functions[name]}
    simple = passes.run(m, [("decompose", lambda work: passes.decompose(work, "cuda"))])
    assert not any("_backward" in op.name for op in simple.functions[name].body.walk())
    for sizes in CASES[name][5]:
        random, given = np.random.default_rng([kh.SEED, *sizes]), dict(zip("nm", sizes))
        function = module.functions[name]
        inputs = [ch.values(random, i.value.dtype, [ex.evaluate(s, given) for s in i.value.shape]) for i in function.inputs if i.value is not None]
        scalars = {i.name: given[i.symbol] for i in function.inputs if i.symbol}
        wanted, = Interpreter(module).run(name, *inputs, **scalars)
        found, = Interpreter(simple).run(name, *inputs, **scalars)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_every_operation_has_a_case():
    """No operation is left out of the table above."""
    m = Module("count")
    sizes = [m.symbol(name) for name in ("n", "m")]
    used = set()
    for name, (build, *_rest) in CASES.items():
        f = m.function(name)
        f.result("y", build(f, *sizes))
        used |= {op.name for op in f.body.walk()}
    elsewhere = {
        # test_compiler_bundle.py
        "accrt.state_read", "accrt.state_write", "accrt.write_input", "accrt.call", "accrt.kernel",
        # test_serving_ops.py
        "accrt.rope_at", "accrt.state_scatter", "accrt.state_scatter_e4m3", "accrt.state_gather", "aten.argmax", "aten.topk",
        "aten.cumsum", "aten.sort", "accrt.scatter", "accrt.grouped_matmul",  # test_ordering.py
        "accrt.paged_attention",  # test_paged_attention.py
        "accrt.paged_scan",  # test_paged_scan.py
        # test_lora_ops.py
        *(f"accrt.lora_{half}{parts}" for half in ("shrink", "expand") for parts in ("", 2, 3)),
        "accrt.sample",  # test_sampling.py
        # test_step_passes.py
        "accrt.step_product", "accrt.rope_scatter", "accrt.turned_product", "accrt.step_tokens", "accrt.walked_attention", "accrt.greedy",
        "accrt.lora_pair", "accrt.lora_pair2", "accrt.lora_pair3", "accrt.token_groups",
        # made by passes
        "accrt.elementwise", "accrt.pack", "accrt.matmul_packed", "accrt.product", "accrt.conv_packed", "accrt.window", "accrt.group_norm_last", "accrt.staged",
        # test_packed.py
        "accrt.component", "accrt.pack_quantized", "accrt.linear_quantized", "accrt.dequantize", "accrt.embedding_quantized", "accrt.embedding_packed",
        "accrt.grouped_linear", "accrt.grouped_quantized",
    }  # fmt: skip
    assert set(ops.OPS) - used - elsewhere == set()
