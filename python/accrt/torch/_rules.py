"""What torch's transformations do with an operator: tags, autocast, vmap."""
from __future__ import annotations

from typing import Any, Mapping, Optional

import torch


def tags() -> tuple[Any, ...]:
    """It is sound under torch.compile, and gets tensors that lie as they do without: what is not
    contiguous is copied in each call."""
    order = getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order
    return torch.Tag.pt2_compliant_tag, order


def register_autocast(operator: Any, library: Any) -> None:
    """Under autocast each floating-point input is cast to the type that the function declares for
    it. What is written is not, nor is float64, as with torch's own."""
    for kind in ("CPU", "CUDA"):
        _register_autocast(operator, library, f"Autocast{kind}", kind.lower())


def _register_autocast(operator: Any, library: Any, key: str, device: str) -> None:
    without = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(*given: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            # weights of a module, which come last, have their types
            return operator.overload(*[_cast(value, device, *known[1:3]) for known, value in zip(operator.inputs, given)], *given[len(operator.inputs):])

    library.impl(operator.name.partition("::")[2], lambda _keys, *given: cast(*given), key, with_keyset=True)


def _cast(value: Any, device: str, kind: str, type_: Any) -> Any:
    if not isinstance(value, torch.Tensor) or kind in ("read_write", "scalar") or not type_.dtype.is_floating_point:
        return value
    castable = value.is_floating_point() and value.device.type == device and value.dtype not in (torch.float64, type_.dtype)
    return value.to(type_.dtype) if castable else value


def refuse_vmap(operator: Any, library: Any) -> None:
    """Of an operator that writes: an element of a batch may be no memory that can be written."""
    written = ", ".join(name for name, kind, _t, _o in operator.inputs if kind == "read_write")

    def refuse(_keys: Any, *given: Any) -> Any:
        raise RuntimeError(f"{operator.where} writes {written}, and torch.vmap maps no operator that writes: give what it writes as a result")

    library.impl(operator.name.partition("::")[2], refuse, "FuncTorchBatched", with_keyset=True)


#: Where torch sends tensors whose elements do not lie as a function reads them.
_OTHER_LAYOUTS = [f"{kind}{place}" for kind in ("Sparse", "SparseCsr", "NestedTensor", "Quantized") for place in ("CPU", "CUDA")] + ["MkldnnCPU"]


def refuse_layouts(operator: Any, library: Any) -> None:
    """Of sparse tensors and the like torch's own error lists all of its backends."""

    def refuse(*given: Any) -> Any:
        raise of_layout(operator.where, dict(zip((known[0] for known in operator.inputs), given))) or TypeError(f"{operator.where}: a weight is no plain tensor")

    for key in _OTHER_LAYOUTS:
        library.impl(operator.name.partition("::")[2], refuse, key)


def of_layout(where: str, given: Mapping[str, Any]) -> Optional[TypeError]:
    """The error of the first tensor that is sparse, nested or quantized."""
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or (value.layout == torch.strided and not value.is_nested and not value.is_quantized):
            continue
        kind, way = f"{value.layout}", f"{name}.to_dense()"
        if value.is_nested:
            kind, way = "nested", f"torch.nested.to_padded_tensor({name}, 0.)"
        elif value.is_quantized:
            kind, way = "quantized", f"{name}.dequantize()"
        return TypeError(f"{where}: {name} is a {kind} tensor: pass {way}")
    return None
