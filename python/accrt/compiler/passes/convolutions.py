"""Convolutions and pooling: channels go last, factors of channels into the weights, and
element-wise operations between them work on what lies channels last.

What the weights of a convolution become is the family's: for hosts accrt.pack's panels, for CUDA
rows of [outputs, kernel height * kernel width * channels].
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, List, Optional, Sequence

from .. import expr as ex
from .. import ops
from ..ir import Function, Module, Op, Value
from ..kernels.conv import MOST_CHANNELS
from ..ops.convolutions import conv_window, is_patches, pool_window, Window
from ..ops.windows import padded
from .rewrite import constant_derived, rewrite, uses

_PACKED = ("f32", "f16", "bf16")
_TO_LAST, _TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
#: The window of a product of channels alone.
_POINTS = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


def form_convolutions(module: Module, family: str = "host") -> None:
    for function in _with_images(module):
        _fold(function)
        _form(function, _FORMS if family == "host" else _CUDA_FORMS)
        _move_permutes(function)


def fold_channels(module: Module) -> None:
    """Factors of channels alone: where other passes come before form_convolutions."""
    for function in _with_images(module):
        _fold(function)


def _with_images(module: Module) -> List[Function]:
    names = [name for name in _FORMS if name != "aten.group_norm"]
    return [f for f in module.functions.values() if not f.prepare and any(op.name in names for op in f.body.walk())]


def _fold(function: Function) -> None:
    """conv2d(x, w, b) * s + t with s and t of the channels becomes conv2d(x, w * s, b * s + t)."""
    for _round in range(8):
        used, derived = uses(function), constant_derived(function)
        changed: List[Op] = []

        def visit(op: Op) -> Optional[Sequence[Value]]:
            if op.name not in ("aten.mul", "aten.add"):
                return None
            for value, other in (op.operands, op.operands[::-1]):
                conv = value.op
                if conv is None or conv.name != "aten.conv2d" or len(used.get(id(value), ())) != 1 or conv.block is not op.block or id(value) in taken:
                    continue
                if id(other) in derived and _of_channels(other, value) and all(v is None or v.dtype == "f32" for v in (*conv.operands, other)):
                    taken.add(id(value))
                    changed.append(op)
                    return [_folded(function, conv, op.name, other.view([-1]))]
            return None

        taken: set = set()
        rewrite(function, visit)
        if not changed:
            break


def _of_channels(value: Value, like: Value) -> bool:
    lead = value.shape[: max(value.rank - 3, 0)]
    return value.rank >= 3 and ex.same(value.shape[-3], like.shape[1]) and all(ex.same(size, 1) for size in (*value.shape[-2:], *lead))


def _folded(function: Function, conv: Op, name: str, other: Value) -> Value:
    x, weight, bias = conv.operands
    if name == "aten.add":
        bias = other if bias is None else bias + other
    else:
        weight, bias = weight * other.view([-1, 1, 1, 1]), None if bias is None else bias * other
    return function.add("aten.conv2d", [x, weight, bias], conv.attrs).result


def _form(function: Function, forms: Dict[str, Form]) -> None:
    derived = constant_derived(function)

    def visit(op: Op) -> Optional[Sequence[Value]]:
        form = forms.get(op.name)
        if form is None or op.result.dtype not in _PACKED:
            return None
        made = form(function, op, derived)
        return None if made is None else [made.permute(_TO_FIRST)]

    rewrite(function, visit)


def _attrs(op: Op, window: Window, **more: object) -> Dict[str, object]:
    return {"window": window, "columns": op.result.shape[1], "activation": "none", "last": "none", "dtype": op.result.dtype, **more}


def _form_conv(function: Function, op: Op, derived: Dict[int, List[str]], family: str = "host") -> Optional[Value]:
    x, weight, bias = op.operands
    if id(weight) not in derived or id(x) in derived or weight.dtype not in _PACKED or (bias is not None and id(bias) not in derived):
        return None
    groups, window = op.attrs["groups"], conv_window(op)
    outputs, inputs = weight.shape[:2]
    if family == "cuda" and groups == 1:
        if is_patches(x, window) and not (_first(x) and inputs % 8 == 0):
            return None  # one copy and a product
        if window == _POINTS:
            return x.permute(_TO_LAST).linear(weight.view([outputs, inputs]), bias)
    if bias is not None and bias.dtype != "f32":
        bias = bias.to_copy("f32")
    x = x.permute(_TO_LAST)
    if groups == outputs and inputs == 1:
        flat = weight.view([outputs, -1]).t().to_copy("f32").clone()
        return function.add("accrt.window", [x, flat, bias, None], _attrs(op, window, kind="depthwise")).result
    joined = _rows(weight) if family == "cuda" else _panels(function, weight, groups)
    return function.add("accrt.conv_packed", [x, joined, bias, None], _attrs(op, window, groups=groups)).result


def _panels(function: Function, weight: Value, groups: int) -> Value:
    outputs = weight.shape[0] // groups
    packed = [ops.build(function, "accrt.pack", part.permute([2, 3, 1, 0]).view([-1, outputs])) for part in weight.chunk(groups, 0)]
    return packed[0] if groups == 1 else ops.cat(packed, 0)


def _rows(weight: Value) -> Value:
    """[outputs, k], channels of a place of the kernel side by side, and zeros up to a multiple of
    8."""
    rows = weight.permute([0, 2, 3, 1]).clone().view([weight.shape[0], -1])
    return padded(rows, [(0, -rows.shape[1] % 8)])


def _form_pool(function: Function, op: Op, derived: Dict[int, List[str]]) -> Optional[Value]:
    kind = "max" if op.name == "aten.max_pool2d" else "mean"
    return function.add("accrt.window", [op.operands[0].permute(_TO_LAST), None, None, None], _attrs(op, pool_window(op), kind=kind)).result


def _form_group_norm(function: Function, op: Op, derived: Dict[int, List[str]], most: int = 0) -> Optional[Value]:
    """`most`: channels that the kernel takes; 0: as many in each group as the host's does."""
    x, *rest = op.operands
    if x.rank != 4 or x.shape[1] > (most or MOST_CHANNELS * op.attrs["groups"]):
        return None
    weight, bias = (v if v is None or v.dtype == "f32" else v.to_copy("f32") for v in rest)
    attrs = {"groups": op.attrs["groups"], "eps": op.attrs["eps"], "columns": x.shape[1], "activation": "none", "last": "none"}
    return function.add("accrt.group_norm_last", [x.permute(_TO_LAST), weight, bias, None], attrs).result


#: (function, operation, what follows from constants) -> the result, channels last; or None.
Form = Callable[[Function, Op, Dict[int, List[str]]], Optional[Value]]
_FORMS: Dict[str, Form] = {
    "aten.group_norm": _form_group_norm, "aten.conv2d": _form_conv, "aten.max_pool2d": _form_pool, "aten.avg_pool2d": _form_pool
}  # fmt: skip
#: As in cuda/convolutions.py.
_CUDA_CHANNELS = 3072
_CUDA_FORMS: Dict[str, Form] = {
    **_FORMS, "aten.conv2d": functools.partial(_form_conv, family="cuda"), "aten.group_norm": functools.partial(_form_group_norm, most=_CUDA_CHANNELS)
}  # fmt: skip


# ---- Channels stay last between them -------------------------------------------------------------


def _move_permutes(function: Function) -> None:
    """Element-wise operations, joins, slices and lookups of what lies channels last are done
    there."""

    def visit(op: Op) -> Optional[Sequence[Value]]:
        definition = ops.OPS.get(op.name)
        if definition is None or len(op.results) != 1:
            return None
        if op.result.rank == 3 or (op.name == "aten.view" and _line(op.operands[0]) is not None):
            return _moved_line(function, op)
        if op.result.rank != 4:
            return None
        if op.name == "aten.cat" and all(_first(v) for v in op.operands):
            axis = ops.axis_of(op.attrs["dim"], 4)
            return [ops.cat([_last(v) for v in op.operands], _TO_FIRST[axis]).permute(_TO_FIRST)]
        if op.name in ("aten.slice", "aten.index_select") and _first(op.operands[0]):
            attrs = {**op.attrs, "dim": _TO_FIRST[ops.axis_of(op.attrs["dim"], 4)]}
            return [function.add(op.name, [_last(op.operands[0]), *op.operands[1:]], attrs).result.permute(_TO_FIRST)]
        if not definition.scalar_op or not any(v is not None and _first(v) and ex.same_shape(v.shape, op.result.shape) for v in op.operands):
            return None
        operands = [v if v is None or v.rank == 0 else _last(v) for v in op.operands]
        return [function.add(op.name, operands, op.attrs).result.permute(_TO_FIRST)]

    rewrite(function, visit)


def _line(value: Optional[Value]) -> Optional[Value]:
    """The image of height 1, channels last but for a permute, that a value [batch, channels, width]
    is."""
    op = None if value is None else value.op
    if op is None or op.name != "aten.select" or op.attrs["dim"] != 2 or not _first(op.operands[0]) or not ex.same(op.operands[0].shape[2], 1):
        return None
    return op.operands[0]


def _moved_line(function: Function, op: Op) -> Optional[Sequence[Value]]:
    """What follows a convolution of one dimension is done where channels are last."""
    images = [_line(v) for v in op.operands]
    first = next((image for image in images if image is not None), None)
    if first is None:
        return None
    if op.name == "aten.view":
        return [first] if ex.same_shape(op.result.shape, first.shape) else None
    if op.name == "aten.permute":
        return [_last(first).select(1, 0)] if list(op.attrs["dims"]) == [0, 2, 1] else None
    alike = all(image is not None or v is None or v.rank == 0 for v, image in zip(op.operands, images))
    if not ops.OPS[op.name].scalar_op or not alike:
        return None
    operands = [v if image is None else _last(image) for v, image in zip(op.operands, images)]
    return [function.add(op.name, operands, op.attrs).result.permute(_TO_FIRST).select(2, 0)]


def _first(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "aten.permute" and list(op.attrs["dims"]) == _TO_FIRST


def _last(value: Value) -> Value:
    if _first(value):
        return value.op.operands[0]
    shape = [1] * (4 - value.rank) + list(value.shape)
    return (value if value.rank == 4 else value.view(shape)).permute(_TO_LAST)
