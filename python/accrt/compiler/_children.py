"""Compilers as processes of their own, several at a time, none of which is left behind when this
one must stop."""

from __future__ import annotations

import concurrent.futures
import contextvars
import os
import signal
import subprocess
import threading
from typing import Any, Callable, List, Optional, Sequence, Set, TypeVar

from .._system import environment
from . import progress

_In, _Out = TypeVar("_In"), TypeVar("_Out")
_SECONDS = 2.0  # for a compiler to end by itself


class _Group:
    """Compilers that one call of `each` has started."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), False
        self._running: Set[Any] = set()

    def start(self, command: Sequence[str], directory: str, cwd: Optional[str]) -> Any:
        with self._lock:
            if self._ended:
                raise InterruptedError("stopped")
            # A session of its own, so that a compiler ends with all that it has started. Its
            # temporary files are removed with the directory.
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, start_new_session=True,
                                       env={**environment(), "TMPDIR": os.path.abspath(directory)})  # fmt: skip
            self._running.add(process)
            return process

    def done(self, process: Any) -> None:
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Ends those that run; none is started after it."""
        with self._lock:
            self._ended, running = True, list(self._running)
        for process in running:
            _end(process)


_own = threading.local()


def _signal(process: Any, number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _end(process: Any) -> None:
    _signal(process, signal.SIGTERM)
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)


def run(command: Sequence[str], directory: str, cwd: Optional[str] = None) -> "subprocess.CompletedProcess[str]":
    """Runs a compiler, whose temporary files lie in a directory, and takes what it says."""
    group = getattr(_own, "group", None) or _Group()
    _own.ran = True
    process = group.start(command, directory, cwd)
    try:
        out, err = process.communicate()
    except BaseException:
        _end(process)
        process.communicate()
        raise
    finally:
        group.done(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def each(function: Callable[[_In], _Out], jobs: Sequence[_In]) -> List[_Out]:
    """function(job) for each job, on as many threads as there are processors. What ends the wait,
    Ctrl-C say, ends the compilers too. Progress reports each that is done; those that ran no
    compiler were in the cache."""
    group, context, lock = _Group(), contextvars.copy_context(), threading.Lock()
    done = {True: 0, False: 0}  # by whether a compiler ran

    def reported(job: _In) -> _Out:
        _own.ran = False
        made = function(job)
        with lock:
            done[_own.ran] += 1
            context.run(progress.report, sum(done.values()), len(jobs), cached=done[False])
        return made

    count = max(1, min(len(jobs), progress.jobs() or os.cpu_count() or 1))
    pool = concurrent.futures.ThreadPoolExecutor(count, initializer=lambda: setattr(_own, "group", group))
    try:
        return list(pool.map(reported, jobs))
    except BaseException:
        group.end()
        raise
    finally:
        pool.shutdown()


__all__ = ["each", "run"]
