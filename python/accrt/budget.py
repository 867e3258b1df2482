"""Budgets: what work on an untrusted file may cost."""
from __future__ import annotations

import ctypes
import math
import time

from . import _ffi
from ._library import never_raises, struct
from ._waits import seconds


def above_0(timeout: float | None) -> float | None:
    """A limit of time that is not over at once."""
    found = seconds(timeout, least="seconds above 0")
    if found == 0:
        raise ValueError(f"timeout is {timeout!r}, expected seconds above 0, or None")
    return timeout if found is not None and type(timeout) is int else found


class Budget:
    """A limit of time, steps and host memory for opening, verifying, preparing, making sessions and
    planning, and a way to cancel them.

    One may be given to several calls; each has the whole of it. docs/hostile-input.md says what a
    step is.

    Args:
        timeout: seconds for each call that gets the budget; None or infinity: no limit.
        max_steps, max_memory: steps, bytes; None: defaults in proportion to the file, which no
            honest file reaches; math.inf: no limit.
    """

    __slots__ = ("timeout", "max_steps", "max_memory", "_flag")

    def __init__(self, timeout: float | None = None, max_steps: float | None = None, max_memory: float | None = None) -> None:
        timeout = above_0(timeout)
        for name, value in (("max_steps", max_steps), ("max_memory", max_memory)):
            if value is not None and seconds(value, name, "a number above 0") == 0:
                raise ValueError(f"{name} is {value!r}, expected a number above 0, or None")
        self.timeout, self.max_steps, self.max_memory = timeout, max_steps, max_memory
        self._flag = ctypes.c_uint32(0)

    def cancel(self) -> None:
        """Ends all work that has this budget, now and later, with CancelledError. From any
        thread."""
        self._flag.value = 1

    @property
    def cancelled(self) -> bool:
        return self._flag.value != 0

    def _c(self, begin: float | None = None):
        """The C struct. begin: when the time began (time.monotonic()); None: now."""
        left = self.timeout
        if left is not None and begin is not None:
            left -= time.monotonic() - begin
        return struct(_ffi.accrt_budget, timeout_ns=0 if left is None else _limit(left * 1e9), max_steps=_limit(self.max_steps),
                      max_memory_bytes=_limit(self.max_memory), cancel=ctypes.pointer(self._flag))

    @never_raises
    def __repr__(self) -> str:
        return f"Budget(timeout={self.timeout}, max_steps={self.max_steps}, max_memory={self.max_memory})"


def _limit(value: float | None) -> int:
    if value is None:
        return 0
    return (1 << 64) - 1 if math.isinf(value) or value >= 1 << 64 else max(int(value), 1)


def put(options, budget: Budget | None, begin: float | None = None, field: str = "budget") -> None:
    """Puts a budget, or None, into a field of a C struct of options, which keeps it alive."""
    if budget is None:
        return
    if not isinstance(budget, Budget):
        raise TypeError(f"budget is {type(budget).__name__}, expected accrt.Budget")
    setattr(options, field, ctypes.pointer(budget._c(begin)))
