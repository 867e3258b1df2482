"""What a node of an exported graph may be while it is lowered, and the errors of lowering.

A node is a Value of the compiler, a Known tensor (its content is there now), a number, an Expr (a
size that only a call knows), None, a list of these, or MISSING: what an operation without a
lowering would have given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from ..compiler import IRError


class Missing:
    """The result of an operation that has no lowering. What takes it is not looked at: the list has
    causes only."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(eq=False)
class Known:
    """A torch tensor whose content is there while lowering: a weight, or what was made of weights
    and numbers alone. `name`: of a weight as it is. `made_of`: the name of a quantized weight that
    it was made of."""

    tensor: Any
    name: str = ""
    made_of: str = ""


class Unsupported(Exception):
    """One operation cannot be lowered. Raised by lowerings, and gathered into
    UnsupportedOperations."""


class UnsupportedOperations(IRError):
    """All that a model has and the compiler cannot do. `operations`: name, how often, where in the
    model, and why."""

    def __init__(self, model: str, operations: List[Tuple[str, int, str, str]]):
        self.operations = operations
        lines = [plain(f"  {name} x{count}{': ' + why if why else ''}{' (' + where + ')' if where else ''}") for name, count, where, why in operations]
        super().__init__(f"{plain(model)}: no lowering for {len(operations)} operation{'s' if len(operations) != 1 else ''}:\n" + "\n".join(lines))


def plain(text: str) -> str:
    """One line that controls no terminal: names are those of a file."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(error: BaseException) -> str:
    """The first line of what another library says, where it is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def free_name(name: str, taken: Any) -> str:
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free


DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool",
}  # fmt: skip


def no_type(name: str, advice: str = "") -> Unsupported:
    """Why tensors of a type are refused, and what they can be in its place."""
    return Unsupported(f"tensors of {name}, which bundles do not have" + (f": {advice}" if advice else ""))


def dtype_of(dtype: Any) -> str:
    """The compiler's name of a torch dtype."""
    name = str(dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise no_type(name)
    return DTYPES[name]


def array_of(tensor: Any) -> Tuple[Any, str]:
    """A numpy array of a torch tensor's content, and its data type."""
    import torch

    dtype = dtype_of(tensor.dtype)
    plain = tensor.detach().cpu().contiguous()
    if dtype == "bf16":
        return plain.view(torch.int16).numpy().view("uint16"), dtype
    return plain.numpy(), dtype


def number_of(value: Any) -> Optional[Any]:
    """The number in a Known tensor without dimensions."""
    return value.tensor.item() if isinstance(value, Known) and value.tensor.dim() == 0 else None
