"""Quantized modules on their way through accrt.from_torch: the weights that torchao and
compressed-tensors made become the compiler's packed ones, and what they do with activations at each
call becomes operations.

compressed-tensors has no operation for a packed weight: its hook expands all weights at the first
call. `kept_packed` stands in for it while torch exports.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .compiler import Quantized
from .from_torch.table import lowers, TABLE
from .from_torch.values import array_of, dtype_of, Known, Unsupported

#: torchao's operation from codes to floats.
EXPANDS = "torchao.dequantize_affine.default"
_EXPANDED = "accrt.expanded_weight.default"

# ---- Activations, as torchao quantizes them ------------------------------------------------------


def _shapes(x: Any, block: Sequence[Any]) -> Tuple[List[Any], List[int]]:
    """The shape of scales with all dimensions, and the dimensions that share one: rows, or the
    whole."""
    shared = [d for d, size in enumerate(block) if not (isinstance(size, int) and size == 1)]
    wrong = [d for d in shared if isinstance(block[d], int) and isinstance(x.shape[d], int) and block[d] != x.shape[d]]
    if wrong or len(block) != x.rank:
        raise Unsupported(f"activations in blocks of {list(block)}")
    return [1 if d in shared else x.shape[d] for d in range(x.rank)], shared


@lowers("torchao.choose_qparams_affine.default")
def choose(
    lo: Any, x: Any, mapping: str, block: Sequence[Any], _dtype: Any, low: Any, high: Any, eps: Any = None, scale_dtype: Any = None, zero_dtype: Any = None, keepdim: bool = False
) -> Any:  # fmt: skip
    import torch

    x = lo.value(x)
    kept, shared = _shapes(x, block)
    if mapping not in ("SYMMETRIC", "ASYMMETRIC") or low is None or high is None:
        raise Unsupported(f"activations quantized {mapping} to {low} and {high}")
    least, most = (x.amin(shared, keepdim=keepdim).minimum(0.0), x.amax(shared, keepdim=keepdim).maximum(0.0)) if shared else (x.minimum(0.0), x.maximum(0.0))
    smallest = torch.finfo(_torch_dtype(x.dtype)).smallest_normal if eps is None else eps
    if mapping == "SYMMETRIC":
        scale = ((least * -1.0).maximum(most) / (float(high - low) / 2)).maximum(smallest)
        zero = scale * 0.0 + float(int((high + low + 1) / 2))
    else:
        scale = ((most - least) / float(high - low)).maximum(smallest)
        zero = (float(low) - (least / scale).round()).maximum(float(low)).minimum(float(high))
    to = "i32" if zero_dtype is None else dtype_of(zero_dtype)
    return [scale.to_copy(x.dtype if scale_dtype is None else dtype_of(scale_dtype)), zero.to_copy(to)]


def _torch_dtype(name: str) -> Any:
    import torch

    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}[name]


@lowers("torchao.quantize_affine.default")
def quantize(lo: Any, x: Any, block: Sequence[Any], scale: Any, zero: Any, dtype: Any, low: Any = None, high: Any = None) -> Any:
    x = lo.value(x)
    kept, _shared = _shapes(x, block)
    if low is None or high is None:
        raise Unsupported("activations without a range")
    codes = TABLE["aten.mul.Tensor"](lo, x, 1.0 / lo.value(scale).reshape(kept)).round()
    if zero is not None:
        codes = TABLE["aten.add.Tensor"](lo, codes, lo.value(zero).reshape(kept))
    return codes.maximum(float(low)).minimum(float(high)).to_copy(dtype_of(dtype))


@lowers(EXPANDS)
def dequantize(
    lo: Any, codes: Any, block: Sequence[Any], scale: Any, zero: Any, _dtype: Any, low: Any = None, high: Any = None, *more: Any, output_dtype: Any = None
) -> Any:  # fmt: skip
    """A weight, or activations on their grid. `more`: the type of the result; of older versions the
    domain of zero points comes first."""
    import torch

    to = next((item for item in (*more, output_dtype) if isinstance(item, torch.dtype)), torch.float32)
    if not isinstance(codes, Known):
        return _on_grid(lo, lo.value(codes), block, scale, zero, dtype_of(to))
    domains = [item for item in more if isinstance(item, str)]
    if not isinstance(scale, Known) or codes.tensor.dim() != 2 or list(block)[0] != 1 or any("INT" not in item.upper() for item in domains):
        raise Unsupported(f"weights in blocks of {list(block)}, or calculated ones")
    return affine(lo, codes, scale, zero, block, low, high, to)


def _on_grid(lo: Any, codes: Any, block: Sequence[Any], scale: Any, zero: Any, dtype: str) -> Any:
    kept, _shared = _shapes(codes, block)
    values = codes.to_copy(dtype)
    if zero is not None:
        values = values - lo.value(zero).reshape(kept).to_copy(dtype)
    return TABLE["aten.mul.Tensor"](lo, values, lo.value(scale).reshape(kept)).to_copy(dtype)


# ---- Weights of torchao --------------------------------------------------------------------------


def affine(lo: Any, codes: Known, scale: Known, zero: Any, block: Sequence[int], low: Any, high: Any, dtype: Any) -> Any:
    """[n, k] of codes, with a scale for each row and `block[1]` columns."""
    import numpy as np

    (n, k), group, four = codes.tensor.shape, int(block[1]), (low, high) == (-8, 7)
    zeros = None if zero is None or not bool(zero.tensor.any()) else zero.tensor.reshape(n, -1).to("cpu").numpy().astype(np.int64)
    if (four and k % 2) or codes.tensor.element_size() != 1:
        raise Unsupported(f"codes of {low} to {high} in rows of {k}" + (" with zero points" if zeros is not None else ""))
    data = codes.tensor.cpu().numpy()
    parts = {"data": _nibbles(data.astype(np.int64) + 8) if four else data, "scales": array_of(scale.tensor.reshape(n, -1))[0]}
    if four and zeros is not None:
        parts["zeros"] = _nibbles(np.pad(zeros + 8, [(0, 0), (0, zeros.shape[1] % 2)]))
    elif zeros is not None:
        parts["zeros"] = zeros.astype(np.int8)
    if four:
        layout = "i4_group" if zeros is None else "i4_group_asym"
    else:
        layout = "i8_asym" if zeros is not None else "i8_channel" if group == k else "i8_group"
    return _constant(lo, codes.name.removesuffix(".qdata"), Quantized(layout, (n, k), parts, 0 if layout == "i8_channel" else group, dtype_of(dtype)))


def floats(lo: Any, codes: Known, scale: Known, dtype: str) -> Any:
    """[n, k] of floats of 8 bits, with one scale or one for each row."""
    import torch

    (n, k), count = codes.tensor.shape, scale.tensor.numel()
    kind = {"float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2"}.get(str(codes.tensor.dtype).rpartition(".")[2])
    if kind is None or count not in (1, n):
        raise Unsupported(f"{codes.tensor.dtype} of {n} x {k} with {count} scales")
    parts = {"data": codes.tensor.detach().cpu().contiguous().view(torch.uint8).numpy(), "scales": array_of(scale.tensor.reshape(-1))[0]}
    layout = "f8_tensor" if count == 1 else "f8_channel"
    return _constant(lo, codes.name.removesuffix(".qdata"), Quantized(layout, (n, k), parts, 0, dtype, {"data": kind}))


def _constant(lo: Any, name: str, made: Quantized) -> Any:
    """A packed weight under its name."""
    if not name:
        raise Unsupported("a quantized weight that was calculated")
    if name not in lo.module.constants:
        lo.module.weight(name, made)
    return lo.function.constant(lo.module.constants[name])


def _nibbles(codes: Any) -> Any:
    """Two to a byte, the first in the low half."""
    pairs = codes.reshape(codes.shape[0], -1, 2).astype("uint8")
    return pairs[..., 0] | pairs[..., 1] << 4


# ---- Modules of compressed-tensors ---------------------------------------------------------------


@contextlib.contextmanager
def kept_packed(model: Any) -> Iterator[None]:
    """Within, modules that compressed-tensors has compressed run with an operation that takes their
    packed weights; afterwards they are as they were."""
    found = {} if not hasattr(model, "named_modules") else {name: module for name, module in model.named_modules() if _is_compressed(module)}
    if not found:
        yield
        return
    hooks: List[Tuple[Any, int, Any]] = []
    for module in model.modules():
        hook = getattr(module, "ct_decompress_hook", None)
        if hook is not None and hook.id in module._forward_pre_hooks:
            hooks.append((module, hook.id, module._forward_pre_hooks.pop(hook.id)))
    forwards = [(module, module.__dict__.get("forward")) for module in found.values()]
    try:
        for name, module in found.items():
            module.forward = _forward_of(name, module)
        yield
    finally:
        for module, forward in forwards:
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.forward = forward
        for module, key, hook in hooks:
            module._forward_pre_hooks[key] = hook


def _is_compressed(module: Any) -> bool:
    scheme, status = getattr(module, "quantization_scheme", None), getattr(module, "quantization_status", None)
    return getattr(scheme, "weights", None) is not None and str(getattr(status, "value", status)) == "compressed"


def _forward_of(name: str, module: Any) -> Any:
    """What the module calculates, from its packed weight."""
    import torch

    operation, given, scheme = _operation(), _parts(name, module), module.quantization_scheme
    for activations in (scheme.input_activations, scheme.output_activations):
        if activations is not None:
            _keep_range(activations, given[0].device)

    def forward(x: Any) -> Any:
        enabled = getattr(module, "quantization_enabled", True)
        if enabled and scheme.input_activations:
            x = _activations(module, x, "input", scheme.input_activations)
        y = torch.nn.functional.linear(x, operation(*given), module.bias)
        return _activations(module, y, "output", scheme.output_activations) if enabled and scheme.output_activations else y

    return forward


def _keep_range(activations: Any, device: Any) -> None:
    """compressed-tensors keeps the tensors of a range for all calls: while torch traces, it would
    keep those of the trace."""
    from compressed_tensors.quantization.utils import calculate_range

    calculate_range(activations, device)


def _activations(module: Any, x: Any, which: str, scheme: Any) -> Any:
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    return forward_quantize(module, x, which, scheme)


def _operation() -> Any:
    """The operation that stands for an expanded weight. Nothing calculates it: its lowering takes
    the parts."""
    import torch

    if not hasattr(torch.ops.accrt, "expanded_weight"):
        schema = "(Tensor data, Tensor scale, Tensor? zeros, Tensor? order, int rows, int columns, str layout) -> Tensor"
        torch.library.define("accrt::expanded_weight", schema)
        torch.library.register_fake("accrt::expanded_weight")(
            lambda _data, scale, _zeros, _order, rows, columns, _layout: scale.new_empty((rows, columns))
        )
    return torch.ops.accrt.expanded_weight


def _parts(path: str, module: Any) -> Tuple[Any, ...]:
    """What the operation takes. Raises ValueError where no layout is this weight's."""
    import torch

    scheme = module.quantization_scheme.weights
    words, scale = getattr(module, "weight_packed", None), getattr(module, "weight_scale", None)
    data = module._parameters.get("weight") if words is None else words
    zeros, order = (getattr(module, f"weight_{what}", None) for what in ("zero_point", "g_idx"))
    bits, kind = int(scheme.num_bits), str(getattr(scheme.type, "value", scheme.type))
    rows, columns = module.out_features if isinstance(module, torch.nn.Linear) else 0, getattr(module, "in_features", 0)
    many = scale.numel() if scale is not None else 0
    layout = ""
    if not rows or data is None or not many or scheme.actorder in (True, "group") and order is None:
        pass
    elif kind == "int" and words is not None and bits in (4, 8) and columns % (32 // bits) == 0 and many % rows == 0:
        layout = ("i4_group" if zeros is None else "ct_i4_asym") if bits == 4 else "ct_i8" if zeros is None else "ct_i8_asym"
    elif kind == "int" and words is None and data.dtype == torch.int8 and (many % rows == 0 or many == 1 and zeros is None):
        layout = "i8_asym" if zeros is not None else "i8_channel" if many in (1, rows) else "i8_group"
    elif kind == "float" and words is None and data.dtype == torch.float8_e4m3fn:
        tiled = list(scheme.block_structure or ()) == [128, 128] and many == -(-rows // 128) * -(-columns // 128)
        layout = "f8_tensor" if many == 1 else "f8_channel" if many == rows else "f8_block128" if tiled else ""
    if not layout:
        how = f"{bits} bits ({kind}, {getattr(scheme.strategy, 'value', scheme.strategy)})"
        raise ValueError(f"{path}: the weights of this {type(module).__name__} are of {how}, for which there is no packed layout; decompress the model first")
    return data, scale, zeros, order, rows, columns, layout


@lowers(_EXPANDED)
def expanded(lo: Any, data: Known, scale: Known, zeros: Any, order: Any, rows: int, columns: int, layout: str) -> Any:
    import torch

    scales = scale.tensor.detach()
    if layout == "i8_channel":
        scales = scales.reshape(-1).expand(rows)
    elif layout == "f8_block128":
        scales = scales.reshape(-(-rows // 128), -(-columns // 128))
    array, dtype = array_of(scales)
    raw = data.tensor.detach().cpu().contiguous()
    words = layout.startswith("ct_")
    parts: Dict[str, Any] = {"data": raw.numpy() if words or layout.startswith("i8") else raw.view(torch.uint8).numpy(), "scales": array}
    for role, item in (("zeros", zeros), ("group_index", order)):
        parts.update({} if item is None else {role: item.tensor.detach().cpu().contiguous().numpy()})
    grouped = layout not in ("i8_channel", "f8_tensor", "f8_channel", "f8_block128")
    group = columns * rows // scales.numel() if grouped else 0
    types = {"data": "f8e4m3fn"} if layout.startswith("f8") else {}
    return _constant(lo, data.name.removesuffix("_packed"), Quantized(layout, (rows, columns), parts, group, dtype, types))


__all__ = ["EXPANDS", "affine", "floats", "kept_packed"]
