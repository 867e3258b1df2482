"""Progress of long work: what was done, and how long it took; what begins that may take long, and
how far it is."""

from __future__ import annotations

import time
from typing import Callable, Optional

#: Called with what was done, and how many seconds it took. Its methods `begins` and `goes_on`,
#: where it has them, get the rest.
Progress = Optional[Callable[[str, float], None]]


class Clock:
    """Reports each part with its time."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._start = progress, time.monotonic()
        self._last = self._start

    def begins(self, what: str) -> None:
        report = getattr(self._progress, "begins", None)
        if report is not None:
            report(what)

    def goes_on(self, what: str) -> None:
        report = getattr(self._progress, "goes_on", None)
        if report is not None:
            report(what)

    def done(self, what: str) -> None:
        now = time.monotonic()
        if self._progress is not None:
            self._progress(what, now - self._last)
        self._last = now

    @property
    def total(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start
