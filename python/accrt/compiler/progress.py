"""Progress of a compilation: within `with watching(function):` the function gets each step, as a
Step.

The compiler says which part begins (`part`), and `_children.each` how many jobs of it are done.
Without a watcher nothing is kept.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Callable, Iterator, NamedTuple, Optional


class Step(NamedTuple):
    """`done` of `total` steps of a part are done, `cached` of them were in the cache. A part:
    functions planned for hosts or CUDA, kernels compiled for a target, images linked."""

    part: str  # functions, kernels, weights
    target: str  # host, cuda; of kernels x86-64-v3, cuda, ...
    name: str  # of the function that is done
    done: int
    total: int
    cached: int = 0


Watcher = Callable[[Step], None]
_watcher: "contextvars.ContextVar[Optional[Watcher]]" = contextvars.ContextVar("watcher", default=None)
_part: "contextvars.ContextVar[tuple]" = contextvars.ContextVar("part", default=("", ""))
_jobs: "contextvars.ContextVar[int]" = contextvars.ContextVar("jobs", default=0)


@contextlib.contextmanager
def watching(watcher: Optional[Watcher] = None, jobs: int = 0) -> Iterator[None]:
    """Calls `watcher` with each step of compilations within, from any thread but never two at once.
    `jobs`: how many compilers run at a time (0: as many as there are processors)."""
    tokens = _watcher.set(watcher), _jobs.set(jobs)
    try:
        yield
    finally:
        _watcher.reset(tokens[0])
        _jobs.reset(tokens[1])


@contextlib.contextmanager
def part(name: str, target: str) -> Iterator[None]:
    """Jobs within are those of a part."""
    token = _part.set((name, target))
    try:
        yield
    finally:
        _part.reset(token)


def report(done: int, total: int, name: str = "", cached: int = 0) -> None:
    watcher = _watcher.get()
    if watcher is not None:
        watcher(Step(*_part.get(), name, done, total, cached))


def jobs() -> int:
    return _jobs.get()
