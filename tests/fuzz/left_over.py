"""What a process has left over: the bytes of its heap that are in use, and what LeakSanitizer finds
that nothing points to. Both are known where AddressSanitizer is in the process.

A soak does the same work again between two answers: the interpreter's own leftovers are then in
both, and a leak of each round trip in the second alone.
"""
from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import tempfile
from typing import Callable, List, NamedTuple, Optional

_process = ctypes.CDLL(None)
#: What is lost through functions or files of accrt is its own.
OWN = re.compile(r"accrt|\.\./(runtime|loader|abi|format|write|serve|python/native)/")


def _function(name: str):
    """One of the sanitizer's, or None."""
    try:
        return getattr(_process, name)
    except AttributeError:
        return None


_live = _function("__sanitizer_get_current_allocated_bytes")
_check = _function("__lsan_do_recoverable_leak_check")
_report_to = _function("__sanitizer_set_report_path")


class Found(NamedTuple):
    """live_bytes: of the heap. lost_bytes: to which nothing points. own: stacks of those that go
    through accrt's libraries."""

    live_bytes: int
    lost_bytes: int
    own: List[str]


def found() -> Optional[Found]:
    """None without the sanitizer."""
    if _live is None or _check is None or _report_to is None:
        return None
    for _ in range(3):
        gc.collect()
    _live.restype = ctypes.c_size_t
    live = _live()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report")
        _report_to(path.encode())
        _check()
        _report_to(b"stderr")
        text = "".join(open(os.path.join(folder, name), errors="replace").read() for name in os.listdir(folder))
    if "fatal error" in text:
        sys.exit(f"left_over: LeakSanitizer could not look: {text}")
    stacks = [part for part in text.split("\n\n") if "leak of" in part]
    lost = sum(int(size) for size in re.findall(r"leak of (\d+) byte", text))
    return Found(live, lost, [stack for stack in stacks if OWN.search(stack)])


#: So often the same is done again until nothing more is kept: caches fill up slowly.
REPEATS = 12


def settles(again: Callable[[], None], rounds: int, who: str) -> str:
    """Does `again` until the heap no longer grows, and says so. A leak of each round trip never
    ends.

    Raises:
        SystemExit: each time leaves more than 8 bytes of the heap for each of its round trips, or
            loses more than one; or anything is lost by accrt.
    """
    first = found()
    if first is None:
        return "no sanitizer, so the heap was not looked at"
    grown = []
    for _ in range(REPEATS):
        again()
        second = found()
        assert second is not None
        more, lost = second.live_bytes - first.live_bytes, second.lost_bytes - first.lost_bytes
        if second.own:
            sys.exit(f"{who}: {rounds} round trips lost {lost} bytes; stacks of accrt's:\n" + "\n\n".join(second.own))
        grown.append(more)
        if more <= 8 * rounds + 4096 and lost <= rounds:
            return (f"{rounds} of them again, {len(grown)} times: {more:+} bytes of the heap's {second.live_bytes / 1e6:.1f} MB at last, "
                    f"{lost:+} bytes that nothing points to, none of them of accrt's")
        first = second
    sys.exit(f"{who}: each {rounds} round trips leave more of the heap: {grown} bytes")
