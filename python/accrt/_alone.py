"""One thread at a time: what methods of several steps do when two threads, or one and what it
called, are in a session."""
from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from .errors import InvalidStateError

_Method = TypeVar("_Method", bound=Callable[..., Any])


def alone(method: _Method) -> _Method:
    """For methods of several steps: who comes while another is in one of these, of the same
    session, is refused, as the library refuses it within each step."""
    @functools.wraps(method)
    def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
        uses, me = self._uses, object()
        try:
            uses[me] = None
            if [*uses][0] is not me:  # no two are first
                raise in_use()
            return method(self, *arguments, **named)
        finally:
            uses.pop(me, None)  # one step, which Ctrl-C does not part
    return guarded  # type: ignore[return-value]


def in_use() -> InvalidStateError:
    return InvalidStateError("the session (with its calls) is in use, on another thread or below this call; it is for one thread at a time",
                             name="ACCRT_ERROR_INVALID_STATE")
