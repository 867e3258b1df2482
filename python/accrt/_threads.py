"""Threads that the end of the interpreter does not wait for.

CPython frees the states of all other threads when it ends. A thread that was started and has not
run yet may then use its own: 3.11.2 dies of that by SIGSEGV. So the end waits here until each
thread has begun; from then on CPython stops it safely. What threading.Thread starts has begun when
`start` returns, but that module takes longer to import than the rest of the package.
"""
from __future__ import annotations

import atexit
import os
from _thread import allocate_lock, start_new_thread
from typing import Callable

BEGIN_LIMIT_S = 20.0  # how long the end of the interpreter waits for a thread to begin

_starting: set = set()  # a lock for each thread that has not begun; who begins releases it
_ending = False


def start(run: Callable[[], object]) -> None:
    """Calls `run()` on a thread of its own.

    Raises:
        RuntimeError: no more threads, or the interpreter ends.
    """
    begun = allocate_lock()
    begun.acquire()

    def begin() -> None:
        _starting.discard(begun)
        begun.release()
        run()

    # and then looks at _ending, while _at_exit sets it and then looks here: one of both sees the
    # other
    _starting.add(begun)
    try:
        if _ending:
            raise RuntimeError("no thread starts while the interpreter ends")
        start_new_thread(begin, ())
    except Exception:
        _starting.discard(begun)
        begun.release()
        raise


def _at_exit() -> None:
    global _ending
    _ending = True
    try:
        for begun in list(_starting):
            begun.acquire(True, BEGIN_LIMIT_S)
    except KeyboardInterrupt:
        pass


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_starting.clear)  # the threads are not there
