"""The server's requests with new grammars, which wait here until a thread compiles their grammar.

A worker of the server never waits for a grammar. Requests with the same grammar have one turn
together. The oldest turn comes first. A request that waits is complete but for its grammar: in its
turn it is only given to the engine, so the requests of a turn run together.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import traceback
from time import monotonic
from typing import Any, Callable, Deque, Dict, Hashable, List, NamedTuple, Optional

from .._limited import NotStarted

#: So long a request waits for its turn. A grammar takes TRIAL_SECONDS of grammar.py at most.
PATIENCE_SECONDS = 30.0
#: If no thread starts, it is tried again after this time.
_AGAIN_SECONDS = 0.5


class _Waiting(NamedTuple):
    answer: Callable[[bool], None]
    refuse: Callable[[], None]
    until: float


_Turn = Deque[_Waiting]


class Turns:
    """most: so many grammars are compiled at a time. most_waiting: so many requests wait."""

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most, self._most_waiting = most, most_waiting
        self._changed = threading.Condition()
        self._coming: "collections.OrderedDict[Hashable, _Turn]" = collections.OrderedDict()
        self._under_way: Dict[Hashable, _Turn] = {}
        self._threads: Dict[Hashable, threading.Thread] = {}
        self._clerk: Optional[threading.Thread] = None
        self._closed = False

    def wait(self, key: Hashable, answer: Callable[[bool], None], refuse: Callable[[], None]) -> bool:
        """Calls one of the two in another thread: `answer` when the turn of `key` has come, or
        `refuse` after PATIENCE_SECONDS without it. The turn may last longer than that: `answer` is
        then given False, and has nothing compiled. False, and neither is called: too many wait.

        Raises:
            NotStarted: no thread starts.
        """
        with self._changed:
            waiting = sum(len(turn) for turns in (self._coming, self._under_way) for turn in turns.values())
            if self._closed or waiting >= self._most_waiting:
                return False
            self._need_clerk()
            turn = self._under_way.get(key)
            if turn is None:
                turn = self._coming.setdefault(key, collections.deque())
            turn.append(_Waiting(answer, refuse, monotonic() + PATIENCE_SECONDS))
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Refuses the requests that wait, and returns when all others are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [*self._threads.values(), *([self._clerk] if self._clerk else [])]
        for thread in threads:
            thread.join()

    # ---- the clerk: a thread that begins turns, and refuses what has waited too long ----

    def _need_clerk(self) -> None:
        if self._clerk is None:
            clerk = threading.Thread(target=self._serve, name="accrt-serve-turns", daemon=True)
            try:
                clerk.start()
            except RuntimeError as error:
                raise NotStarted(f"no thread can be started: {error}") from None
            self._clerk = clerk

    def _serve(self) -> None:
        while True:
            with self._changed:
                late = self._take_late()
                if not late and not self._begin():
                    if self._closed:
                        return
                    self._changed.wait(self._seconds())
            for one in late:
                contained(one.refuse)

    def _seconds(self) -> Optional[float]:
        """Until a request has waited too long, or a thread may start that could not."""
        if self._coming and len(self._under_way) < self._most:
            return _AGAIN_SECONDS
        ends = [one.until for turn in self._coming.values() for one in turn]
        return max(min(ends) - monotonic(), 0.0) if ends else None

    def _take_late(self) -> List[_Waiting]:
        now, late = monotonic(), []
        for key, turn in list(self._coming.items()):
            while turn and (self._closed or turn[0].until <= now):
                late.append(turn.popleft())
            if not turn:
                del self._coming[key]
        return late

    def _begin(self) -> bool:
        """Gives the oldest turn a thread, if one may start."""
        if not self._coming or len(self._under_way) >= self._most:
            return False
        key, turn = next(iter(self._coming.items()))
        thread = threading.Thread(target=self._answer, args=(key, turn), name="accrt-serve-grammar", daemon=True)
        try:
            thread.start()  # it waits for the guard
        except RuntimeError:
            return False
        del self._coming[key]
        self._under_way[key], self._threads[key] = turn, thread
        return True

    # ---- a thread of a turn ----

    def _answer(self, key: Hashable, turn: _Turn) -> None:
        """The first request has the grammar compiled; the others find it."""
        while True:
            with self._changed:
                if not turn:
                    del self._under_way[key], self._threads[key]
                    self._changed.notify_all()
                    return
                one, closed = turn.popleft(), self._closed
            if closed:
                contained(one.refuse)
            else:
                contained(one.answer, monotonic() < one.until)


def contained(function: Callable[..., None], *given: Any) -> None:
    """Calls it. What it raises is said, and ends no thread."""
    try:
        function(*given)
    except BaseException:  # noqa: BLE001 - other requests are still served
        with contextlib.suppress(BaseException):  # without memory
            traceback.print_exc()
