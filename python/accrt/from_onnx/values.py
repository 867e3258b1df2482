"""What a name of an ONNX graph may be while it is lowered: a Value of the compiler, a Known tensor,
a list of these (a sequence), None (an input that is left out), or MISSING.

Sizes are Known tensors too: where a size is one that only a call knows, the array has Python
objects, and that element is an Expr.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ..compiler import Expr
from ..compiler import expr as ex
from ..from_torch.values import Missing, MISSING, no_type, Unsupported, UnsupportedOperations

__all__ = [
    "DTYPES", "Known", "Missing", "MISSING", "NUMPY", "Unsupported", "UnsupportedOperations", "dtype_named", "known_sizes", "listed", "number_of",
    "numpy_type",
]  # fmt: skip

#: The compiler's types by the names of ONNX.
DTYPES: Dict[str, str] = {
    "FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "INT64": "i64", "INT32": "i32", "INT16": "i16", "INT8": "i8",
    "UINT64": "u64", "UINT32": "u32", "UINT16": "u16", "UINT8": "u8", "BOOL": "bool",
}  # fmt: skip
#: What numpy holds each type in; bfloat16 is ml_dtypes'.
NUMPY = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
}  # fmt: skip
_OF_NUMPY = {theirs: ours for ours, theirs in NUMPY.items()}


@dataclass(eq=False)
class Known:
    """A tensor whose content is there while lowering: a weight, what was made of weights alone, or
    sizes. `name`: of a weight as it is."""

    array: Any
    name: str = ""
    of: str = ""  # the type, where the array has objects

    @property
    def dtype(self) -> str:
        if self.of:
            return self.of
        name = str(self.array.dtype)
        if name not in _OF_NUMPY:
            raise no_type(name)
        return _OF_NUMPY[name]

    @property
    def is_symbolic(self) -> bool:
        return self.array.dtype == object

    @property
    def shape(self) -> Sequence[int]:
        return tuple(self.array.shape)


def known_sizes(array: Any, of: str = "i64") -> Known:
    """A Known of an array of integers and expressions; plain integers where no expression is among
    them."""
    objects = np.asarray(array, dtype=object)
    flat = [ex.simplify(item) if isinstance(item, Expr) else item for item in objects.reshape(-1)]
    if not any(isinstance(item, Expr) for item in flat):
        return Known(np.array(flat, dtype=NUMPY[of]).reshape(objects.shape))
    made = np.empty(objects.size, dtype=object)
    made[:] = [item if isinstance(item, Expr) else int(item) for item in flat]
    return Known(made.reshape(objects.shape), of=of)


def number_of(item: Any) -> Optional[Any]:
    """The number, or the expression, in a Known tensor of one element."""
    if not isinstance(item, Known) or item.array.size != 1:
        return None
    number = item.array.reshape(-1)[0]
    return number if item.is_symbolic else number.item()


def numpy_type(dtype: str) -> Any:
    """numpy's type; of bf16 that of ml_dtypes, which onnx brings."""
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NUMPY[dtype])


def dtype_named(code: int) -> str:
    """The compiler's type of a number of onnx.TensorProto."""
    import onnx

    name = onnx.TensorProto.DataType.Name(code)
    if name not in DTYPES:
        raise no_type(name)
    return DTYPES[name]


def listed(item: Known) -> List[Any]:
    """The elements as Python's integers, and expressions."""
    return [e if isinstance(e, Expr) else int(e) for e in item.array.reshape(-1).tolist()]
