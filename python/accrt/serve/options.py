"""Options of engines, models and servers: tables of names with defaults, and how what is given for
them is checked before anything is made."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from .._library import close, number, shown

#: name -> (default, help)
Table = Mapping[str, Tuple[Any, str]]
#: Those that the library keeps in 64 bits; other whole numbers have 32.
_LONG = ("kv_bytes", "max_queued_tokens", "max_step_ns", "seed", "max_header_bytes", "max_body_bytes", "max_held_bytes", "max_output_bytes")
#: Texts that are paths: an os.PathLike is one too.
_PATHS = ("weights", "chat_template")
#: 100 years, whose nanoseconds fit.
_MOST_SECONDS = 3.2e9


def known(given: Mapping[str, Any], tables: Sequence[Table], whose: str) -> None:
    """Raises TypeError for a name that no table has."""
    names = [name for table in tables for name in table]
    for name in given:
        if name not in names:
            near = close(name, names)
            hint = f"did you mean {near[0]!r}? T" if near else "t"
            raise TypeError(f"{whose} has no option {name!r}; {hint}here are {', '.join(names)}")


def checked(given: Mapping[str, Any], table: Table) -> Dict[str, Any]:
    """All options of a table, with defaults for those that are missing or None. TypeError,
    ValueError, OverflowError: one of them is none."""
    return {name: default if given.get(name) is None else _one(name, given[name], default) for name, (default, _help) in table.items()}


def _one(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {shown(value)}, expected True or False")
        return value
    if isinstance(default, float):
        return _seconds(name, value)
    if isinstance(default, int):
        if isinstance(value, bool):
            raise TypeError(f"{name} is {value}, expected a whole number")
        return number(value, name, 64 if name in _LONG else 32)
    if name in _PATHS and isinstance(value, os.PathLike):
        return os.fspath(value)
    if name == "weights" and isinstance(value, (list, tuple)) and all(isinstance(one, (str, os.PathLike)) for one in value):
        return [os.fspath(one) for one in value]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}, expected a string")
    if not value or "\0" in value:
        raise ValueError(f"{name} is {value!r}, expected a text " + ("without a NUL" if value else "that is not empty"))
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {shown(value)}, expected a number of seconds")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}, expected a number of seconds that is not negative")
    return min(float(value), _MOST_SECONDS)


def limits(options: Mapping[str, Any], most: Mapping[str, Optional[int]], whose: str) -> None:
    """Raises ValueError for a number above what there is."""
    for name, limit in most.items():
        if limit is not None and options[name] > limit:
            raise ValueError(f"{name} is {options[name]}, and {whose} has {limit}")


__all__ = ["Table", "checked", "known", "limits"]
