"""The process in which `Kernel.check(isolated=True)` runs a kernel: reads it and its arguments from
standard input, and says what it finds, a line of JSON each. It also lays each argument at the edge
of pages that nothing may touch: if it ends there, the last line says where."""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from typing import Any, Sequence

from ._kernel_check import _direct, _Guarded, look
from .errors import Error
from .instance import Instance
from .kernels import KernelPack
from .tensor import View

_PAGE, _GUARD = mmap.PAGESIZE, 16 * mmap.PAGESIZE
_NONE, _READ = 0, 1  # of mprotect
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Given:
    """An argument's content. Taken by `as_view` as it is."""

    def __init__(self, dtype: int, shape: Sequence[int], content: bytes) -> None:
        self._memory = ctypes.create_string_buffer(content, max(len(content), 1))
        self.content = content
        self._view = View(None, ctypes.addressof(self._memory), 0, dtype, shape, None, self)

    def _weight_view(self, _dtype: int | None) -> View:
        return self._view


class _Edged(_Guarded):
    """An argument whose end ("after") or beginning ("before") is that of the pages that may be
    touched, or that can only be read ("locked")."""

    def __init__(self, like: _Guarded, edge: str) -> None:
        self.name, self.written, self.like, self.content = like.name, like.written, like.like, like.content
        whole = -(-len(self.content) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, whole + 2 * _GUARD)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._address = base + _GUARD + (whole - len(self.content) if edge == "after" else 0)
        ctypes.memmove(self._address, self.content, len(self.content))
        first, size, how = {"after": (_GUARD + whole, _GUARD, _NONE), "before": (0, _GUARD, _NONE), "locked": (_GUARD, whole, _READ)}[edge]
        if size and _mprotect(base + first, size, how) != 0:
            raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")

    def _weight_view(self, _dtype: int | None) -> View:
        rank = self.like.c.rank
        return View(None, self._address, 0, self.like.c.dtype, self.like.shape_array[:rank], None, self)


def _edges(kernel: Any, guarded: Sequence, sizes: Sequence[int], say: Any) -> None:
    """A run for each argument at each edge."""
    for at, one in enumerate(guarded):
        if not isinstance(one, _Guarded):
            continue
        ends = {"after": f"reads or writes outside of {one.name}: after its end", "before": f"reads or writes outside of {one.name}: before its beginning"}
        if not one.written:
            ends["locked"] = f"writes {one.name}, which is declared as read"
        for edge, text in ends.items():
            edged = [*guarded]
            edged[at] = _Edged(one, edge)
            say({"run": "", "edge": text})
            _direct(kernel, edged, sizes)


def _values(head: dict, data: Any) -> list:
    return [_Given(value["dtype"], value["shape"], data.read(value["bytes"])) if isinstance(value, dict) else value for value in head["values"]]


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # what the kernel prints goes elsewhere

    def say(line: dict) -> None:
        os.write(answer, json.dumps(line).encode() + b"\n")

    try:
        head = json.loads(sys.stdin.buffer.readline())
        source = sys.stdin.buffer.read(head["source"]) if isinstance(head["source"], int) else head["source"]
        pack = KernelPack(Instance(options={"host.threads": 2}), source)
        kernel = pack.kernel(head["name"])
        kernel._types = tuple(head["types"])
        guarded: list = []
        for place, value in zip(kernel._places, _values(head, sys.stdin.buffer)):
            memory = isinstance(value, _Given)
            guarded.append(_Guarded(place[2][0], place[1], value._view, value.content) if memory else value)
    except Exception as error:  # noqa: BLE001 - the other process says it
        say({"error": f"{type(error).__name__}: {error}"})
        return
    try:
        found = look(kernel, guarded, head["sizes"], lambda what: say({"run": what}))
    except Error as error:
        found = [f"refuses its arguments: {error}"]
    for line in found:
        say({"found": line})
    if not found:
        _edges(kernel, guarded, head["sizes"], say)
    say({"done": True})
