"""Weights that torchao has quantized stay packed, under the parameter's name: here are the products
that take them, in _torch_quantized.py their content. Other forms are refused by name: the content
of a quantized weight never becomes a plain one without a word."""

from __future__ import annotations

from typing import Any, Optional

from .. import _torch_quantized as made
from .table import lowers
from .values import dtype_of, Known, Unsupported

#: Operations between what a quantized parameter has and the product that uses it.
_BETWEEN = ("aten.t.default", "aten.to.dtype", "aten.flatten.using_ints", "aten.detach.default", "aten.alias.default")
_PART = "export.access_subclass_inner_tensor.default"
_PRODUCTS = ("aten.mm.default", "aten.matmul.default", "aten._int_mm.default")


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
        elif target == "aten.mul.Tensor":  # scaled ahead of a product
            if user.args[0] is not node or _scale_of(user, node) is None or not _is_kept(user):
                return False
        elif target not in (made.EXPANDS, "aten._assert_tensor_metadata.default") and not (target in _PRODUCTS and _found(user) is not None):
            return False
    return True


def _behind(node: Any) -> Any:
    """The part of a parameter that a node has, or None."""
    while getattr(node, "op", "") == "call_function" and str(node.target) in _BETWEEN:
        node = node.args[0]
    return node if getattr(node, "op", "") == "call_function" and str(node.target) == _PART else None


def _scale_of(multiplication: Any, codes: Any) -> Any:
    """The scales of the weight whose codes these are, where a multiplication is by them."""
    weight, scale = _behind(codes), _behind(multiplication.args[1])
    matches = weight is not None and weight.args[1] == "qdata" and scale is not None and scale.args == (weight.args[0], "scale")
    return scale if matches else None


def _found(product: Any) -> Any:
    """Of a product by packed codes: the codes, their scales, and the multiplication by them that
    follows (None: it comes first)."""
    node = product.args[1]
    while str(node.target) in _BETWEEN:
        node = node.args[0]
    if str(node.target) == "aten.mul.Tensor":
        scale = _scale_of(node, node.args[0])
        return None if scale is None else (_behind(node.args[0]), scale, None)
    codes, at = _behind(product.args[1]), product
    while codes is not None and codes.args[1] == "qdata":
        users = [user for user in at.users if str(user.target) != "aten._assert_tensor_metadata.default"]
        if len(users) != 1 or str(users[0].target) not in ("aten.mul.Tensor", "aten.to.dtype") or users[0].args[0] is not at:
            return None
        at = users[0]
        scale = _scale_of(at, codes) if str(at.target) == "aten.mul.Tensor" else None
        if scale is not None:
            return codes, scale, at
    return None


def product(lo: Any, x: Any) -> Optional[Any]:
    """x @ codes, times the scales: a linear operation. A multiplication by them that follows has
    nothing left to do."""
    given = getattr(lo.node, "args", ())  # those of ONNX have none
    found = _found(lo.node) if len(given) > 1 and hasattr(given[1], "target") else None
    if found is None:
        return None
    codes, scale, x = lo.env[found[0]], lo.env[found[1]], lo.value(x)
    lo.done.add(found[2])
    if x.dtype == "i8":
        x = x.to_copy("f32")
    if codes.tensor.is_floating_point():
        return x.linear(made.floats(lo, codes, scale, x.dtype))
    return x.linear(made.affine(lo, codes, scale, None, [1, codes.tensor.shape[1]], -128, 127, scale.tensor.dtype))


@lowers("aten._int_mm.default")
def int_mm(lo: Any, a: Any, _b: Any) -> Any:
    result = product(lo, a)
    if result is None:
        raise Unsupported("a product of integers that are no weight of torchao")
    return result
