"""Weights that torchao has quantized stay packed, under the parameter's name. Other forms are
refused by name: the content of a quantized weight never becomes a plain one without a word."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from ..compiler import Quantized
from .table import lowers
from .values import array_of, dtype_of, Known, Unsupported

#: Operations between what a quantized parameter has and the product that uses it.
_BETWEEN = ("aten.t.default", "aten.to.dtype", "aten.flatten.using_ints", "aten.detach.default", "aten.alias.default")
_PART = "export.access_subclass_inner_tensor.default"
_EXPANDS = "torchao.dequantize_affine.default"


def is_quantized(item: Known) -> bool:
    """Whether a weight is codes by its type: matrices of small integers, and of integers that have
    several in them."""
    return bool(item.name) and item.tensor.dim() > 1 and str(item.tensor.dtype).rpartition(".")[2].startswith(("int8", "uint8", "int32", "int4", "uint4", "float8"))


def refuse_expanded(item: Known) -> None:
    """Of a constant that is about to be stored."""
    if item.made_of and item.tensor.dim() > 1 and item.tensor.is_floating_point():
        raise Unsupported(f"the quantized weight {item.made_of!r} would be expanded to {dtype_of(item.tensor.dtype)}; dequantize the model, and quantize= packs again")


@lowers(_PART)
def part(lo: Any, x: Known, name: str) -> Any:
    """A tensor inside of a parameter: codes ("qdata"), scales, zeros."""
    if name == "qdata" and not _is_kept(lo.node):
        raise Unsupported(f"the weight {x.name!r}, which is quantized as {type(x.tensor).__name__}, would be expanded where it is used")
    return Known(getattr(x.tensor, name), f"{x.name}.{name}")


def _is_kept(node: Any) -> bool:
    """Whether all that uses codes takes them packed."""
    for user in node.users:
        target = str(user.target)
        if target in _BETWEEN:
            if not _is_kept(user):
                return False
        elif target not in (_EXPANDS, "aten._assert_tensor_metadata.default") and not (target == "aten.mm.default" and _scaling(user) is not None):
            return False
    return True


def _behind(node: Any) -> Any:
    """The part of a parameter that a node has, or None."""
    while getattr(node, "op", "") == "call_function" and str(node.target) in _BETWEEN:
        node = node.args[0]
    return node if getattr(node, "op", "") == "call_function" and str(node.target) == _PART else None


def _scaling(product: Any) -> Any:
    """The multiplication of a product by the scales of its weight, which is all that uses it."""
    weight, users = _behind(product.args[1]), list(product.users)
    if weight is None or weight.args[1] != "qdata" or len(users) != 1 or str(users[0].target) != "aten.mul.Tensor":
        return None
    scale = _behind(users[0].args[1])
    return users[0] if users[0].args[0] is product and scale is not None and scale.args == (weight.args[0], "scale") else None


def product(lo: Any, x: Any) -> Optional[Any]:
    """x @ codes, times the scales: a linear operation. The multiplication that follows has nothing
    left to do."""
    scaling = _scaling(lo.node)
    if scaling is None:
        return None
    codes, scale = lo.env[_behind(lo.node.args[1])], lo.env[_behind(scaling.args[1])]
    lo.done.add(scaling)
    return lo.value(x).linear(_weight(lo, codes, scale, None, [1, codes.tensor.shape[1]], -128, 127, scale.tensor.dtype))


@lowers(_EXPANDS)
def dequantize(
    lo: Any, codes: Any, block: Sequence[int], scale: Any, zero: Any, dtype: Any, low: Any = None, high: Any = None, domain: Any = "INT", output_dtype: Any = None
) -> Any:  # fmt: skip
    import torch

    if not all(isinstance(item, Known) for item in (codes, scale)) or codes.tensor.dim() != 2 or list(block)[0] != 1 or "INT" not in str(domain).upper():
        raise Unsupported(f"weights in blocks of {list(block)}, or calculated ones")
    return _weight(lo, codes, scale, zero, block, low, high, torch.float32 if output_dtype is None else output_dtype)


def _weight(lo: Any, codes: Known, scale: Known, zero: Any, block: Sequence[int], low: Any, high: Any, dtype: Any) -> Any:
    """[n, k] of codes, with a scale for each row and `block[1]` columns."""
    import numpy as np

    name = codes.name.removesuffix(".qdata")
    if name not in lo.module.constants:
        (n, k), group, four = codes.tensor.shape, int(block[1]), (low, high) == (-8, 7)
        zeros = None if zero is None or not bool(zero.tensor.any()) else zero.tensor.reshape(n, -1).to("cpu").numpy().astype(np.int64)
        if not name or (zeros is not None and not four) or (four and k % 2) or codes.tensor.element_size() != 1:
            raise Unsupported(f"codes of {low} to {high} in rows of {k}" + (" with zero points" if zeros is not None else ""))
        scales, _ = array_of(scale.tensor.reshape(n, -1))
        data = codes.tensor.cpu().numpy()
        parts = {"data": _nibbles(data.astype(np.int64) + 8) if four else data, "scales": scales}
        if zeros is not None:
            parts["zeros"] = _nibbles(np.pad(zeros + 8, [(0, 0), (0, zeros.shape[1] % 2)]))
        layout = ("i4_group" if zeros is None else "i4_group_asym") if four else "i8_channel" if group == k else "i8_group"
        lo.module.weight(name, Quantized(layout, (n, k), parts, 0 if layout == "i8_channel" else group, dtype_of(dtype)))
    return lo.function.constant(lo.module.constants[name])


def _nibbles(codes: Any) -> Any:
    """Two to a byte, the first in the low half."""
    pairs = codes.reshape(codes.shape[0], -1, 2).astype("uint8")
    return pairs[..., 0] | pairs[..., 1] << 4
