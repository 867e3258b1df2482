"""The beginning of `accrt-serve`: Ctrl-C ends it in one line from here on, also while modules are
imported, which takes longest of a start whose model is cached."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import List, Optional


def _end(number: int, _frame: object) -> None:
    """Nothing has begun that would have to be cleaned up."""
    with contextlib.suppress(OSError):  # the terminal is closed
        os.write(2, f"accrt-serve: ended by {signal.Signals(number).name} while it was starting\n".encode())
    os._exit(128 + number)


def main(argv: Optional[List[str]] = None) -> int:
    """What `command.main` does."""
    # nohup
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, _end)
    from .command import main as serve

    try:
        return serve(argv)
    finally:
        for number in numbers:  # what ends now has ended, and says no more
            signal.signal(number, signal.SIG_DFL)


__all__ = ["main"]
