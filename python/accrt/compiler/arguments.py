"""What callers give to the compiler, checked where it is given: an IRError says what it is, what is
expected, and what there is.

Integers are Python's and numpy's; bools, floats and strings are none. Sizes are integers or
expressions of symbols. Nothing is rounded.
"""

from __future__ import annotations

import difflib
import math
import operator
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import expr as ex
from .expr import Expr, Size

DTYPES = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")
#: What numpy, torch and C call them.
_OTHER_NAMES = {
    "bool_": "bool", "boolean": "bool", "int8": "i8", "uint8": "u8", "int16": "i16", "short": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int": "i64", "int64": "i64", "long": "i64", "uint64": "u64",
    "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "single": "f32", "float64": "f64", "double": "f64",
}  # fmt: skip


class IRError(ValueError):
    """A rule of the IR is broken; the message names the function and the operation."""


def described(item: Any) -> str:
    """What an argument is, for messages."""
    item = plain(item)
    if item is None or isinstance(item, (bool, int, float, str, bytes, Expr)):
        return repr(item)
    if hasattr(item, "__array_interface__"):
        return "a numpy array"
    text = repr(item) if isinstance(item, (list, tuple, dict)) or hasattr(item, "block") or hasattr(item, "op") else ""
    kind = type(item).__name__
    return text if text and len(text) < 60 else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def near(name: Any, there: Iterable[str], what: str = "there are") -> str:
    """"; did you mean ..." where something is near, else all that is there."""
    known = sorted(there)
    text = name if isinstance(name, str) else ""
    found = difflib.get_close_matches(text.lower(), [k.lower() for k in known], 3, 0.6)
    close = [k for k in known if k.lower() in found or (len(text) > 1 and k.lower().startswith(text.lower()))]
    if close:
        return "; did you mean " + " or ".join(map(repr, close[:3])) + "?"
    return f"; {what} {', '.join(known)}" if known else "; there is none"


def is_integer(item: Any) -> bool:
    """Python's and numpy's integers; no bool, no array with dimensions, no value of a function."""
    if type(item) is int:
        return True
    if isinstance(item, bool) or hasattr(item, "op") or not hasattr(item, "__index__") or getattr(item, "shape", ()) != ():
        return False
    return getattr(getattr(item, "dtype", None), "kind", "i") in ("i", "u")


def integer(item: Any, what: str, least: Optional[int] = None) -> int:
    """An int."""
    if not is_integer(item):
        raise IRError(f"{what} is {described(item)}, expected an integer")
    found = operator.index(item)
    if least is not None and found < least:
        raise IRError(f"{what} is {found}, expected {least} or more")
    if not -(1 << 63) <= found < 1 << 63:
        raise IRError(f"{what} is {found}, which does not fit 64 bits")
    return found


def size(item: Any, what: str) -> Size:
    """An int, or an expression in canonical form."""
    if isinstance(item, Expr):
        return ex.simplify(item)
    if not is_integer(item):
        more = f": m.symbol({item!r}) gives the expression" if isinstance(item, str) and item.isidentifier() else ""
        raise IRError(f"{what} is {described(item)}, expected an integer or an expression of symbols{more}")
    return integer(item, what)


def sizes(items: Any, what: str) -> Tuple[Size, ...]:
    """A shape."""
    return tuple(size(item, f"{what}[{i}]") for i, item in enumerate(listed(items, what)))


def listed(items: Any, what: str, of: str = "integers") -> List[Any]:
    """A list of what is no string, no dict and no value of a function."""
    if isinstance(items, (str, bytes, dict)) or hasattr(items, "op") or not hasattr(items, "__iter__"):
        example = f", as [{items!r}]" if isinstance(items, Expr) or is_integer(items) else ""
        raise IRError(f"{what} is {described(items)}, expected a list of {of}{example}")
    return list(items)


def dims(items: Any, what: str) -> Tuple[int, ...]:
    """One dimension or several."""
    if is_integer(items):
        return (integer(items, what),)
    return tuple(integer(item, f"{what}[{i}]") for i, item in enumerate(listed(items, what, "dimensions")))


def flag(item: Any, what: str) -> bool:
    """True or False, also numpy's; 0 and 1."""
    if isinstance(item, bool) or type(item).__name__ in ("bool_", "bool") and hasattr(item, "item"):
        return bool(item)
    if is_integer(item) and operator.index(item) in (0, 1):
        return bool(item)
    raise IRError(f"{what} is {described(item)}, expected True or False")


def plain(item: Any) -> Any:
    """Numbers of numpy as Python's; all else as it is."""
    if type(item).__module__ == "numpy" and getattr(item, "shape", None) == () and hasattr(item, "item") and type(item).__name__ != "ndarray":
        return item.item()
    return item


def is_number(item: Any) -> bool:
    return isinstance(plain(item), (bool, int, float))


def number(item: Any, what: str) -> Any:
    """A bool, an int or a float of Python, or an expression."""
    found = plain(item)
    if not isinstance(found, (bool, int, float, Expr)):
        raise IRError(f"{what} is {described(item)}, expected a number")
    return found


def typed(item: Any, dtype: str, what: str) -> Any:
    """The same, for a kernel's parameter of this type: integers take no float, and no number that
    does not fit. "": of any."""
    found = number(item, what)
    if isinstance(found, Expr) or dtype[:1] not in ("i", "u"):
        return found
    bits = int(dtype[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "i" else (0, (1 << bits) - 1)
    if isinstance(found, (bool, float)):
        raise IRError(f"{what} is {described(item)}, expected an integer ({dtype}) or an expression of symbols")
    if not low <= found <= high:
        raise IRError(f"{what} is {found}, which does not fit {dtype}")
    return found


def real(item: Any, what: str) -> float:
    """A float that is a number."""
    found = plain(item)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
        raise IRError(f"{what} is {described(item)}, expected a number")
    return float(found)


def text(item: Any, what: str) -> str:
    if not isinstance(item, str):
        raise IRError(f"{what} is {described(item)}, expected a str")
    return item


def name(item: Any, what: str) -> str:
    """A name that is not empty and has no NUL in it."""
    if not text(item, what) or "\0" in item:
        raise IRError(f"{what} is {item!r}: the name is empty, or has a NUL in it")
    return item


def dtype(item: Any, what: str) -> str:
    """The short name of a data type."""
    if isinstance(item, str) and item in DTYPES:
        return item
    own = getattr(item, "name", None) or getattr(item, "__name__", None) or str(item)
    meant = _OTHER_NAMES.get(str(own).rpartition(".")[2]) or (str(own) if str(own) in DTYPES else "")
    more = f"; did you mean {meant!r}?" if meant else f"; there are {', '.join(DTYPES)}"
    raise IRError(f"{what}: no data type {item!r}{more}")


#: By the word in a schema.
CONVERT: Dict[str, Callable[[Any, str], Any]] = {
    "Size": size, "Size[]": sizes, "int": integer, "int[]": dims, "bool": flag, "float": real, "Scalar": number, "dtype": dtype, "str": text,
}  # fmt: skip


def converted(kind: str, item: Any, what: str) -> Any:
    """An argument as its schema says; `kind` ends with "?" where None stands for itself."""
    if kind.endswith("?"):
        if item is None:
            return None
        kind = kind[:-1]
    return CONVERT[kind](item, what) if kind in CONVERT else item
