"""Foreign waits that Ctrl-C ends: Python's signal handlers run between foreign calls, never inside
of one."""
from __future__ import annotations

import math
from _thread import allocate_lock
from time import monotonic_ns

from . import _ffi
from ._library import last_error, shown
from ._threads import start
from .errors import Error

#: How long a foreign call waits before Python looks at its signals.
SLICE_NS = 50_000_000
#: What took no longer the last time is done in one call without a limit, as accrt_call_attempt does
#: it.
SHORT_NS = SLICE_NS // 8


#: 285 years, whose nanoseconds fit 63 bits: who waits for longer has no limit.
_MOST_SECONDS = 9e9


def seconds(value, name: str = "timeout", least: str = "a number of seconds that is not negative") -> float | None:
    """A limit of time that a caller gives: None for none, which infinity is too. Of other limits it
    says whether they are right.

    Raises:
        TypeError: no number. ValueError: nan, or a negative number.
    """
    if value is None:
        return None
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        found = float(value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}, expected {least}, or None") from None
    except OverflowError:  # an int that no float holds
        found = math.inf if value > 0 else -1.0
    if not found >= 0:
        raise ValueError(f"{name} is {value!r}, expected {least}, or None")
    return None if found > _MOST_SECONDS else found


def until(function, limit_ns: int, *head, tail: tuple = (), asked_ns: int | None = None) -> int:
    """Calls `function(*head, timeout_ns, *tail)`, which gives a status, until it is over: in
    slices, between which Python sees its signals. `asked_ns` is the caller's own limit, where
    `limit_ns` is what is left of it.

    Raises:
        TimeoutError: the limit is over, and differs from the one that the function got last.
    """
    asked_ns = limit_ns if asked_ns is None else asked_ns
    if limit_ns <= SLICE_NS and limit_ns == asked_ns:
        return function(*head, limit_ns, *tail)
    end, left = monotonic_ns() + limit_ns, min(limit_ns, SLICE_NS)
    while True:
        status = function(*head, left, *tail)
        if status != _ffi.ACCRT_ERROR_TIMEOUT:
            return status
        now = monotonic_ns()
        if now >= end:
            break
        left = min(end - now, SLICE_NS)
    raise with_limit(last_error(status), left, asked_ns)


def with_limit(error: Error, part_ns: int, asked_ns: int) -> Error:
    """The error of a call that had a part of the caller's limit, with the whole limit in its
    message."""
    error.message = error.message.replace(f"{part_ns} ns", f"{asked_ns} ns", 1)
    error.args = (error.message,)
    return error


def apart(make):
    """`make()` on a thread of its own, when this is the main thread: for foreign calls that have no
    limit (files, code, plans). Ctrl-C ends the wait; what was begun goes on, and what it makes is
    dropped."""
    import threading  # here: it takes longer to import than the rest of the package
    if threading.current_thread() is not threading.main_thread():
        return make()
    over, outcome = allocate_lock(), []
    over.acquire()

    def run() -> None:
        try:
            outcome.append((make(), None))
        except BaseException as error:  # noqa: BLE001 - the caller's to raise
            outcome.append((None, error))
        finally:
            over.release()

    try:
        start(run)
    except RuntimeError:  # no more threads
        return make()
    over.acquire()  # signals are handled meanwhile
    value, error = outcome.pop()
    if error is None:
        return value
    try:
        raise error
    finally:
        # its traceback has this frame: together they would be a cycle, with all that the caller
        # holds
        del error
