"""Convolutions and pooling on hosts: channels go last, factors of channels into the weights, and
element-wise operations between them work on what lies channels last."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from .. import expr as ex
from .. import ops
from ..ir import Function, Module, Op, Value
from ..kernels.conv import MOST_CHANNELS
from ..ops.convolutions import conv_window, pool_window, Window
from .rewrite import constant_derived, rewrite, uses

_PACKED = ("f32", "f16", "bf16")
_TO_LAST, _TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def form_convolutions(module: Module) -> None:
    for function in module.functions.values():
        if function.prepare or not any(op.name in _FORMS and op.name != "aten.group_norm" for op in function.body.walk()):
            continue
        _fold(function)
        _form(function)
        _move_permutes(function)


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


def _form(function: Function) -> None:
    derived = constant_derived(function)

    def visit(op: Op) -> Optional[Sequence[Value]]:
        form = _FORMS.get(op.name)
        if form is None or op.result.dtype not in _PACKED:
            return None
        made = form(function, op, derived)
        return None if made is None else [made.permute(_TO_FIRST)]

    rewrite(function, visit)


def _attrs(op: Op, window: Window, **more: object) -> Dict[str, object]:
    return {"window": window, "columns": op.result.shape[1], "activation": "none", "last": "none", "dtype": op.result.dtype, **more}


def _form_conv(function: Function, op: Op, derived: Dict[int, List[str]]) -> Optional[Value]:
    x, weight, bias = op.operands
    if id(weight) not in derived or id(x) in derived or weight.dtype not in _PACKED or (bias is not None and id(bias) not in derived):
        return None
    groups, window = op.attrs["groups"], conv_window(op)
    if bias is not None and bias.dtype != "f32":
        bias = bias.to_copy("f32")
    x = x.permute(_TO_LAST)
    outputs, inputs = weight.shape[:2]
    if groups == outputs and inputs == 1:
        flat = weight.view([outputs, -1]).t().to_copy("f32").clone()
        return function.add("accrt.window", [x, flat, bias, None], _attrs(op, window, kind="depthwise")).result
    packed = [ops.build(function, "accrt.pack", part.permute([2, 3, 1, 0]).view([-1, outputs // groups])) for part in weight.chunk(groups, 0)]
    joined = packed[0] if groups == 1 else ops.cat(packed, 0)
    return function.add("accrt.conv_packed", [x, joined, bias, None], _attrs(op, window, groups=groups)).result


def _form_pool(function: Function, op: Op, derived: Dict[int, List[str]]) -> Optional[Value]:
    kind = "max" if op.name == "aten.max_pool2d" else "mean"
    return function.add("accrt.window", [op.operands[0].permute(_TO_LAST), None, None, None], _attrs(op, pool_window(op), kind=kind)).result


def _form_group_norm(function: Function, op: Op, derived: Dict[int, List[str]]) -> Optional[Value]:
    x, *rest = op.operands
    if x.rank != 4 or x.shape[1] // op.attrs["groups"] > MOST_CHANNELS:
        return None
    weight, bias = (v if v is None or v.dtype == "f32" else v.to_copy("f32") for v in rest)
    attrs = {"groups": op.attrs["groups"], "eps": op.attrs["eps"], "columns": x.shape[1], "activation": "none", "last": "none"}
    return function.add("accrt.group_norm_last", [x.permute(_TO_LAST), weight, bias, None], attrs).result


_FORMS = {"aten.group_norm": _form_group_norm, "aten.conv2d": _form_conv, "aten.max_pool2d": _form_pool, "aten.avg_pool2d": _form_pool}


# ---- Channels stay last between them -------------------------------------------------------------


def _move_permutes(function: Function) -> None:
    """Element-wise operations, joins, slices and lookups of what lies channels last are done
    there."""

    def visit(op: Op) -> Optional[Sequence[Value]]:
        definition = ops.OPS.get(op.name)
        if definition is None or len(op.results) != 1 or op.result.rank != 4:
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


def _first(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "aten.permute" and list(op.attrs["dims"]) == _TO_FIRST


def _last(value: Value) -> Value:
    if _first(value):
        return value.op.operands[0]
    shape = [1] * (4 - value.rank) + list(value.shape)
    return (value if value.rank == 4 else value.view(shape)).permute(_TO_LAST)
